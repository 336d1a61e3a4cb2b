"""The documentation as a site: what mkdocs is told beside the pages that stand in docs/."""
