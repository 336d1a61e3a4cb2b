"""Statistics on plain numbers and tables, independent of sessions."""

# The confidence of all intervals, bounds and sets, unless a sentence names another.
CONFIDENCE = 0.95
