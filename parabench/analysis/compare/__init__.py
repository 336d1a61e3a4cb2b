"""Two sessions or more beside each other: did it get slower, which is fastest, and what else is not the same."""
