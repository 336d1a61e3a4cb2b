"""The answers: page templates, style and script of the report."""
