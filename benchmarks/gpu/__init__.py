"""Conformance checks of the GPU path: what must hold on a machine with an NVIDIA GPU, in ten minutes or less on one.

    make gpu
    python -m benchmarks.gpu [--only NAME,...] [--json FILE] [--list] [--rehearse]

Each check runs in a process of its own, so that a crash or a hang of one is its verdict and no more. The Python that
runs it needs torch and what measuring needs, not ruptures. Exit code 0 when all that could run passed, 1 when one
failed, 2 with the reason where there is no GPU.

`--rehearse` runs on the CPU those checks that have a meaning there: that finds mistakes in the checks, where no GPU is.
"""
