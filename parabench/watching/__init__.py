"""A training loop that is the user's own: its steps are timed and stored as those of parabench's trainer are."""
