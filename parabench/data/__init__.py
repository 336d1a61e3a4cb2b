"""Training data: where samples come from, and how each global batch is split between ranks."""
