"""What a page embeds, as its script reads it."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects as go

from parabench.report.figures.figures import Panel


def unpacked(column: Any, n: int) -> list[Any]:
    """One packed column of `n` rows as a list; the reverse of `parabench.report.data.columns`."""
    if isinstance(column, list):
        return column
    if "all" in column:
        return [column["all"]] * n
    if "from" in column:
        return [column["from"] + i for i in range(n)]
    if "times" in column:
        return [None if each is None else each * column["times"] for each in column["of"]]
    return [column["values"][at] for at in column["of"]]


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028&amp;"


class Page(HTMLParser):
    """What a browser would see: elements by id, and all text outside of scripts and style."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.scripts, self._open = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open == "script":
            self.scripts[-1] += data
        elif self._open != "style":
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.words))


def figures(text):
    """What the page embeds, which plotly takes."""
    found = json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)[1])
    spare = [figure for own in found.get("of_case", {}).values() for figure in own]
    for figure in [*(figure for name, figure in found.items() if name != "of_case"), *spare]:
        go.Figure(data=figure["data"], layout=figure["layout"])
    return found


def made(seen, *makers):
    """The sections that `makers` make of a session, by their ids."""
    return {section.id: section for make in makers if (section := make(seen)) is not None}


def drawn(panel: Panel) -> go.Figure:
    """A panel's figure as plotly takes it. Raises ValueError for what plotly has no place for."""
    return go.Figure(panel.figure)


def data(text):
    """What the page's script draws from, its tables as columns in full (what `script/data.js` does)."""
    found = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])
    return {
        name: columns(value) if isinstance(value, dict) and "n" in value else value for name, value in found.items()
    }


def columns(table):
    return {name: unpacked(value, table["n"]) for name, value in table.items() if name != "n"}


def section(text, name):
    """A section's words, tags and scripts left out."""
    found = re.search(rf'<section id="{name}">(.*?)</section>', text, re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", found[1])))
