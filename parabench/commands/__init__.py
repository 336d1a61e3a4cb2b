"""The commands of the command line.

They import slow modules such as torch and pandas when they run, so that `--help` and `list` are quick.
"""
