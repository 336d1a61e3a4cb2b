"""Statistics that know nothing of sessions."""
