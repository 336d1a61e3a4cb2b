"""The commands of the command line. They import modules when they run, so that `--help`, `list` and commands that read
results are quick and do not import torch."""
