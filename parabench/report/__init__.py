"""Write answers as HTML pages, Markdown and JUnit XML, and instrumented steps as traces."""
