"""This machine: CPUs, GPUs, versions of libraries, and the peak rates for computing efficiency."""
