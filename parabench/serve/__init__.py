"""The report of a session while its run goes on: its progress, the newest page, and the server."""
