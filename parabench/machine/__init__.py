"""What is here: CPUs, GPUs, versions of libraries, and the peaks that efficiency is held against."""
