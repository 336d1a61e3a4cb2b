"""parabench: profiling and benchmarking of distributed PyTorch training."""

__version__ = "0.1.0"
