"""Reasons to doubt a number, as rules about the rows of tables."""
