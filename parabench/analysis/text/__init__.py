"""Sentences about what analysis found."""
