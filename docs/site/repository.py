"""Add files outside docs/ to the site if its pages link to them, below `repository/`.

A Markdown file becomes a page, a source file a page that shows it, and a folder a page that lists its files. Pictures
and other files are copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BELOW = "repository"
AS_IT_IS = {".css", ".html", ".png", ".svg"}
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def linked(markdown: str, page: str) -> Iterator[tuple[str, str]]:
    """Yield each relative link of a page, with its path from the root. `page` is the path of the page from the root."""
    for link in dict.fromkeys(LINK.findall(markdown)):
        yield link, normpath(PurePosixPath(page).parent / link)


def outside(path: str) -> bool:
    """Return whether a path from the root exists outside docs/."""
    return not path.startswith(("docs/", "..")) and (ROOT / path).exists()


def in_site(path: str) -> str:
    """Return the path in the site's sources, from docs/, for a path in the repository."""
    if not outside(path):
        return relpath(path, "docs")
    is_page = path.endswith(".md") or PurePosixPath(path).suffix in AS_IT_IS
    return f"{BELOW}/{path}" if is_page else f"{BELOW}/{path}.md"


def relinked(markdown: str, page: str) -> str:
    """Return a page with links that are valid at its place in the site's sources.

    On the site, the text of a link to a page is `certainty` instead of `certainty.md`.
    """
    here = PurePosixPath(in_site(page)).parent
    where = dict(linked(markdown, page))
    markdown = LINK.sub(lambda found: relpath(in_site(where[found[1]]), here), markdown)
    return re.sub(r"(?<=\[)([\w-]+)\.md(?=\]\()", r"\1", markdown)


def reached() -> set[str]:
    """Return the paths of all files and folders outside docs/ that pages link to, directly or through each other."""
    waiting = [str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md")]
    found: set[str] = set()
    while waiting:
        page = waiting.pop()
        new = {path for _, path in linked(markdown_of(page), page) if outside(path)} - found
        found |= new
        waiting += [path for path in new if not is_file_itself(path)]
    return found


def is_file_itself(path: str) -> bool:
    """Return whether the site has a copy of a file instead of a page."""
    return PurePosixPath(path).suffix in AS_IT_IS


def markdown_of(path: str) -> str:
    """Return the page of a file or folder, with links relative to its path in the repository."""
    file = ROOT / path
    if path.endswith(".md"):
        return file.read_text()
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if each.is_file())
        return f"# {path}\n\n" + "".join(f"- [{name}]({file.name}/{name})\n" for name in names)
    language = {".py": "python", ".sbatch": "sh"}.get(file.suffix, file.suffix.removeprefix("."))
    return f"# {path}\n\n```{language}\n{file.read_text()}```\n"
