"""What other programs read: JUnit, Markdown, traces."""
