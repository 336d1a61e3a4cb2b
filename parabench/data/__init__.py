"""Training data: tokens, and how each global batch is split between ranks."""
