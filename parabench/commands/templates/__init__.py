"""The files that `parabench init` writes. Placeholders such as `$name` are filled in, except in workflows."""
