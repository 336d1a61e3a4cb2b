"""Reasons to doubt a number, as rules on tables, with one module for each source."""
