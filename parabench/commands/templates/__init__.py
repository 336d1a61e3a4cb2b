"""What `parabench init` writes: `$name` and the like are filled in, except in workflows."""
