"""Facts about machines, nodes and libraries, and how those of sessions differ."""
