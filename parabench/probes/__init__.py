"""Instruments: one file each. Only the step clock runs inside timed steps."""
