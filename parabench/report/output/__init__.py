"""What other programs read: JUnit and Markdown."""
