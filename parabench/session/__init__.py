"""One session, from the request to its conclusion."""
