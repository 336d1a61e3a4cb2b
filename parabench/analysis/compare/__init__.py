"""Two or more sessions next to each other: slowdowns, ratios, and other differences."""
