"""Check every link of the built site, and that no page loads a file from a network.

`python -m docs.site.links site` prints the errors, and exits with 1 if there are any. mkdocs checks the Markdown pages.
This module checks the HTML, with the links of the theme and of the report. It needs no network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Tags whose address a browser loads without a click.
LOADS = {"audio", "embed", "iframe", "img", "link", "object", "script", "source", "video"}
ADDRESSES = ("href", "src", "data")


class Page(HTMLParser):
    """The anchors of a page, and its addresses, each with its tag."""

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
    """Return whether an attribute is not an address, or an address for search engines only."""
    return given.get("rel") == "canonical" or (name == "data" and tag != "object")


def broken(site: Path) -> Iterator[str]:
    """Yield the errors in the links of all pages."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for tag, address in dict.fromkeys(page.addresses):
            error = _error(site.resolve(), path, tag, address, pages)
            if error:
                yield f"{path.relative_to(site.resolve())}: {address}: {error}"


def _error(site: Path, path: Path, tag: str, address: str, pages: dict[Path, Page]) -> str:
    parts = urlsplit(address)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return "loaded from a network" if tag in LOADS else ""
    # Browsers show the page 404.html at any depth, so its addresses start at the root.
    there = site / unquote(parts.path).lstrip("/") if parts.path.startswith("/") else path.parent / unquote(parts.path)
    target = there.resolve() if parts.path else path
    if not target.is_relative_to(site):
        return "leads out of the site"
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors and "=" not in anchor:
        return "no such anchor"  # the report's script reads `tab=trust`, which is not an anchor
    return ""


def main(site: Path) -> None:
    """Print the errors, or the number of pages. Exits with 1 if there are errors."""
    errors = [*broken(site)]
    print("\n".join(errors) or f"every link of {len([*site.rglob('*.html')])} pages is valid")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
