"""Facts about machines, nodes and libraries, and their differences between sessions."""
