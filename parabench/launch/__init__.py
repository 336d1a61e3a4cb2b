"""One launch: new processes for its ranks, and the first cause if it fails."""
