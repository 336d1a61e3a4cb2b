"""Parallel strategies: one recipe a file. What is known of each without torch stands in `parabench.family`."""
