"""How sure intervals and sets of answers are."""

# Of every interval, bound and set, unless a sentence says another.
CONFIDENCE = 0.95
