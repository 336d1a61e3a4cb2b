"""Pure functions from stored results to answers, on DataFrames. No torch, no plots."""
