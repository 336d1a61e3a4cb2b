"""Serve the report of a session during its run: progress and the newest page."""
