"""What the instruments tell of a step's time, bytes and memory."""
