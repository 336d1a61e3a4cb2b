"""Pure functions from stored results to answers: DataFrames in, dataclasses or DataFrames out. No torch, no plots."""
