"""Commands of the command line, one a file; `cli` puts them together with the short ones."""
