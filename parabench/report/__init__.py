"""Figures, sections and pages, and the other files of a gate (Markdown, JUnit XML)."""
