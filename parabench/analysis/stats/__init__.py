"""Statistics on plain numbers and tables, independent of sessions."""

# Of every interval, bound and set, unless a sentence says another.
CONFIDENCE = 0.95
