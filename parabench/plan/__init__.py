"""Plan the launches of a session before anything starts, without torch."""
