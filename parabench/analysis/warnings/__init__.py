"""What speaks against trusting numbers, one module for each source."""
