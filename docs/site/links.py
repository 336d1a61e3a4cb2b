"""Whether every link of the built site leads to a file of it and an anchor there, and no page loads anything else.

`python -m docs.site.links site` prints what is wrong, and then exits with 1. mkdocs checks what pages of Markdown say;
this reads what a browser gets, the theme's own links and the report's too, and asks no network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose address a browser loads by itself, by the tag; of links only styles, scripts, pictures.
LOADS = {"audio", "embed", "iframe", "img", "link", "object", "script", "source", "video"}
ADDRESSES = ("href", "src", "data")


class Page(HTMLParser):
    """What a page has: its anchors, and each address with the tag that has it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.addresses: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.addresses += [(tag, given[name]) for name in ADDRESSES if name in given and not _no_file(tag, name, given)]


def _no_file(tag: str, name: str, given: dict[str, str]) -> bool:
    """An address that is only said (the page's own, for search engines), or an attribute that is none."""
    return given.get("rel") == "canonical" or (name == "data" and tag != "object")


def broken(site: Path) -> Iterator[str]:
    """What is wrong with the links of all pages, by page."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for tag, address in dict.fromkeys(page.addresses):
            wrong = _wrong(site.resolve(), path, tag, address, pages)
            if wrong:
                yield f"{path.relative_to(site.resolve())}: {address}: {wrong}"


def _wrong(site: Path, path: Path, tag: str, address: str, pages: dict[Path, Page]) -> str:
    parts = urlsplit(address)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return "loaded from elsewhere" if tag in LOADS else ""
    # The page for what is not found may be shown at any depth, so its addresses begin at the root.
    there = site / unquote(parts.path).lstrip("/") if parts.path.startswith("/") else path.parent / unquote(parts.path)
    target = there.resolve() if parts.path else path
    if not target.is_relative_to(site):
        return "leads out of the site"
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors and "=" not in anchor:
        return "no such anchor"  # `tab=trust` is none: the report's script reads it
    return ""


def main(site: Path) -> None:
    """Print what is wrong, or how much was looked at. Exits with 1 where something is wrong."""
    wrong = [*broken(site)]
    print("\n".join(wrong) or f"every link of {len([*site.rglob('*.html')])} pages leads somewhere")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
