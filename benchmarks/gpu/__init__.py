"""Conformance checks of the GPU path on a machine with an NVIDIA GPU."""
