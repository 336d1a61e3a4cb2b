"""How well step times are foretold: what was measured on emulated machines is the truth."""
