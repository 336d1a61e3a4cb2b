"""Run a session, from the request to the answer."""
