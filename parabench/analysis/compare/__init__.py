"""Compare two or more sessions: slowdowns, ratios, and other differences."""
