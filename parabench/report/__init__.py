"""What is shown: figures, sections, pages, and the files that a gate writes."""
