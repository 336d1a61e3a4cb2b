"""Two variants measured in turns."""
