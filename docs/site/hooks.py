"""Hooks that mkdocs calls while it builds the site (mkdocs.yml).

They add lists from the code, the files outside docs/ that pages link to, and the report of the run of `make docs`.
"""

from __future__ import annotations

import json

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.site import from_code, repository, sample, schemas

PARTS = {**from_code.PARTS, "run of this site": sample.run}
_path_of: dict[str, str] = {}  # {path of a page in the site's sources: path in the repository}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/, the JSON Schemas, and the sample report."""
    for path in sorted(repository.reached()):
        uri = repository.in_site(path)
        _path_of[uri] = path
        if repository.is_file_itself(path):
            files.append(File.generated(config, uri, abs_src_path=str(repository.ROOT / path)))
        else:
            files.append(File.generated(config, uri, content=repository.markdown_of(path)))
    for name in schemas.SCHEMAS:
        text = json.dumps(schemas.schema(name), indent=2)
        files.append(File.generated(config, f"reference/{name}.schema.json", content=text))
    files.append(File.generated(config, sample.URI, abs_src_path=str(sample.REPORT)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the generated lists, and correct links to files outside docs/."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]  # the page is an index itself
    path = _path_of.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return from_code.filled(repository.relinked(markdown, path), PARTS)
