"""Every relative link and anchor of the documents leads somewhere, and every page is reachable from the index."""

import re
from collections.abc import Iterator
from pathlib import Path

from paths import DOCS, ROOT

INDEX = DOCS / "README.md"
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted(DOCS.rglob("*.md")),
)
ELSEWHERE = ("http://", "https://", "mailto:")


def links(text: str) -> Iterator[str]:
    """The targets of all links and pictures, without those in code."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"\]\(([^)\s]+)\)", prose)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> Iterator[str]:
    """The relative links of a page that lead nowhere."""
    for link in links(page.read_text()):
        if link.startswith(ELSEWHERE):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            yield f"{page.relative_to(ROOT)}: {link}"


def test_every_relative_link_leads_somewhere() -> None:
    assert [each for page in PAGES for each in broken(page)] == []


def test_every_page_is_one_click_from_the_index() -> None:
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in links(INDEX.read_text())}
    missing = sorted(str(page.relative_to(DOCS)) for page in {*DOCS.rglob("*.md")} - {INDEX} - listed)
    assert missing == [], "docs/README.md: list them"
    assert INDEX in {(ROOT / link).resolve() for link in links((ROOT / "README.md").read_text())}
