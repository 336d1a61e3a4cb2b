"""One launch: fresh ranks, and the whole truth about how it ended."""
