"""Sections of the report, with one module for a tab or a part of it."""
