"""The page of a session while its run goes on: how far it is, the renewal of the page, the server."""
