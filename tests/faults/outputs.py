"""What a command said and wrote, judged: whether a terminal, a page, a spreadsheet or a pull request could take it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from xml.etree import ElementTree

from tests.faults.naughty import CALL

# What a terminal acts on, Unicode's marks of direction, and halves of characters.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# 0: all is well, 1: a regression or a launch that is not ok, 2: wrong usage, 3: inconclusive.
CODES = (0, 1, 2, 3)


def of_terminal(text: str) -> Iterator[str]:
    """What of a text controls a terminal."""
    found = CONTROLS.search(text)
    if found:
        yield f"a terminal would act on {found[0]!r} in {text[max(0, found.start() - 30) : found.end() + 30]!r}"


def of_refusal(stderr: str, stdout: str) -> Iterator[str]:
    """What is wrong with how a command refused: it says one line, which is not endless."""
    lines = stderr.splitlines()
    if len(lines) != 1 or not lines[0].startswith("parabench: "):
        yield f"refused in {len(lines)} lines: {stderr[:300]!r}"
    elif len(lines[0]) > 2000:
        yield f"refused in a line of {len(lines[0])} characters: {lines[0][:100]!r}"
    if stdout:
        yield f"refused, and said {stdout[:100]!r}"


def of_json(text: str) -> Iterator[str]:
    def constant(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        json.loads(text, parse_constant=constant)
        text.encode()
    except ValueError as error:
        yield f"JSON: {error}"


def of_junit(text: str) -> Iterator[str]:
    try:
        ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        yield f"XML: {error}"


_TAG = re.compile(r"</?[A-Za-z!?][^>]*>?")
_ALLOWED = {"<details>", "</details>", "<summary>", "</summary>"}
_MENTION = re.compile(r"(?<![\w&])@\w|(?<![&\w])#\d|https?://|\bwww\.", re.IGNORECASE)


def of_markdown(text: str) -> Iterator[str]:
    """Outside of blocks of code: tags, mentions and links; and tables whose rows are not alike."""
    fence, width = "", 0
    for line in text.splitlines():
        mark = re.match(r"`{3,}", line)
        if mark and (not fence or line == fence):
            fence = "" if fence else mark[0]
            continue
        if fence:
            continue
        yield from (f"Markdown has {tag}" for tag in _TAG.findall(line) if tag not in _ALLOWED)
        yield from (f"Markdown has {found} in {line[:120]!r}" for found in _MENTION.findall(line))
        if line.startswith("| "):
            cells = line.count("|")
            if width and cells != width:
                yield f"a row of Markdown has {cells} bars, the first {width}: {line[:120]!r}"
            width = width or cells
        else:
            width = 0
    if fence:
        yield "a block of code has no end"


ELEMENTS = {"img", "iframe", "object", "embed", "base", "form", "link", "details-open"}


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._code = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if tag == "link" and names == {"rel": "icon", "href": "data:,"}:  # the page's own: it has none
            return
        if tag in ELEMENTS or any(name.startswith("on") for name in names):
            self.found.append(f"the page has <{tag} {names}>"[:200])
        if (names.get("href") or "").lower().startswith(("javascript:", "data:", "http")):
            self.found.append(f"the page has a link to {names['href']}"[:200])
        self._code = tag == "script" and "type" not in names

    def handle_data(self, data: str) -> None:
        if self._code and CALL in data:
            self.found.append("the page's script calls what a text says")


def of_page(text: str) -> Iterator[str]:
    """What of a page a browser would act on."""
    yield from _Page(text).found
    try:
        text.encode()
    except UnicodeEncodeError as error:
        yield f"the page: {error}"
