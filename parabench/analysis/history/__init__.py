"""Each case over sessions, and when it changed."""
