"""Data that pages embed, as columns."""
