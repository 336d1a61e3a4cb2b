"""One session, from the request to the answer."""
