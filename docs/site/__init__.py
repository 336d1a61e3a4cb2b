"""Build the documentation as a site: content that mkdocs adds to the pages in docs/."""
