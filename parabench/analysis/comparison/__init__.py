"""Two or more sessions beside each other: which is fastest, by how much, and what else is not the same."""
