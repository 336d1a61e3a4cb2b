"""`parabench.watch`: time and record the steps of the user's own training loop."""
