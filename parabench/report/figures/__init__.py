"""Figures made in Python."""
