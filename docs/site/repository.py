"""Files of the repository outside docs/ that its pages link to, as files of the site.

A page is a page (CONTRIBUTING.md), a file of code is a page that shows it, a folder one that lists its files, and all
else, such as a picture, is the file itself. They keep their paths, below `repository/`.
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
    """The relative links of a page, and the path of each from the root. `page` is the page's own path from there."""
    for link in dict.fromkeys(LINK.findall(markdown)):
        yield link, normpath(PurePosixPath(page).parent / link)


def outside(path: str) -> bool:
    """Whether a path from the root is of something that is there, and not in docs/."""
    return not path.startswith(("docs/", "..")) and (ROOT / path).exists()


def in_site(path: str) -> str:
    """Where the site's sources have what the repository has at this path, as a path from docs/."""
    if not outside(path):
        return relpath(path, "docs")
    is_page = path.endswith(".md") or PurePosixPath(path).suffix in AS_IT_IS
    return f"{BELOW}/{path}" if is_page else f"{BELOW}/{path}.md"


def relinked(markdown: str, page: str) -> str:
    """A page whose links lead to the same files where it lies in the site's sources.

    Who reads a site follows links to pages, not to files: of a link that is called `certainty.md` the end is left out.
    """
    here = PurePosixPath(in_site(page)).parent
    where = dict(linked(markdown, page))
    markdown = LINK.sub(lambda found: relpath(in_site(where[found[1]]), here), markdown)
    return re.sub(r"(?<=\[)([\w-]+)\.md(?=\]\()", r"\1", markdown)


def reached() -> set[str]:
    """The paths from the root of all files and folders outside docs/ that pages lead to, also by way of each other."""
    waiting = [str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md")]
    found: set[str] = set()
    while waiting:
        page = waiting.pop()
        new = {path for _, path in linked(markdown_of(page), page) if outside(path)} - found
        found |= new
        waiting += [path for path in new if not is_file_itself(path)]
    return found


def is_file_itself(path: str) -> bool:
    """Whether the site has the very file, and no page of it."""
    return PurePosixPath(path).suffix in AS_IT_IS


def markdown_of(path: str) -> str:
    """The page of a file or a folder of the repository, with links as they are at that path."""
    file = ROOT / path
    if path.endswith(".md"):
        return file.read_text()
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if each.is_file())
        return f"# {path}\n\n" + "".join(f"- [{name}]({file.name}/{name})\n" for name in names)
    language = {".py": "python", ".sbatch": "sh"}.get(file.suffix, file.suffix.removeprefix("."))
    return f"# {path}\n\n```{language}\n{file.read_text()}```\n"
