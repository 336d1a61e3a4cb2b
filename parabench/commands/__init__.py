"""Commands of the command line, one a file. They import what they need when they run, so that `--help`, `list` and
what reads a store stay quick and free of torch."""
