"""Generate lists of the site from the code, to replace the lines `<!-- from code: NAME -->` of pages.

For readers of the unbuilt page, the text before such a line names another source of the list.
"""

from __future__ import annotations

import html
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import click

from docs.site.schemas import SCHEMAS
from docs.site.schemas import schema as schema_of
from parabench.analysis import details
from parabench.analysis.collectives.bus import CALL_COLUMNS
from parabench.analysis.numbers import COLUMNS
from parabench.cli import COMMANDS, main
from parabench.metrics import METRICS
from parabench.plan.suite import AXES
from parabench.records import Declared
from parabench.store.database import TABLES, create_statements
from parabench.strategies import OPTIONAL, STRATEGIES

PLACE = re.compile(r"^<!-- from code: ([\w ]+) -->$", re.MULTILINE)


def filled(markdown: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """Replace each place of a page by the text that `parts` returns. Raises KeyError for an unknown name."""
    return PLACE.sub(lambda found: parts[found[1]](), markdown)


def plain(text: str) -> str:
    """Escape Markdown's markup in a text. Text between backticks stays code."""
    pieces = re.split(r"(`[^`]*`)", text)
    escaped = (
        piece if piece.startswith("`") else re.sub(r"([*_\[\]\\])", r"\\\1", html.escape(piece, quote=False))
        for piece in pieces
    )
    return "".join(escaped).replace("|", r"\|").replace("\n", " ")


def table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a Markdown table. Its cells are Markdown, too."""
    lines = (heads, ["---"] * len(heads), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(text: str) -> str:
    """Return a cell of code. A bar is escaped, because it would end the cell."""
    return f"`{text}`".replace("|", r"\|")


class MarkdownHelp(click.HelpFormatter):
    """Write the help of a command as Markdown, section by section, as click calls it. Examples are a block of code."""

    _in_examples = False

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        self.write(f"```text\n{prog} {args}\n```\n\n")

    def write_text(self, text: str) -> None:
        if self._in_examples:
            self.write(f"# {text}\n")
        else:
            self.write("".join(f"{plain(each)}\n\n" for each in text.split("\n\n")))

    def write_paragraph(self) -> None:
        self.write("\n")

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self._in_examples = name == "Examples"
        self.write(f"**{name}**\n\n" + "```sh\n" * self._in_examples)
        yield
        self.write("```\n\n" * self._in_examples)

    @contextmanager
    def indentation(self) -> Iterator[None]:
        yield

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        self.write(table(("option", "what it does"), ((code(name), plain(text)) for name, text in rows)) + "\n")


def axes() -> str:
    """List the values of each axis, and the strategies that have it."""
    rows = ((code(name), _values(axis), _strategies_with(name)) for name, axis in AXES.items())
    return table(("axis", "value", "strategies"), rows)


def _values(axis: Declared) -> str:
    if axis.field.choices:
        return ", ".join(map(code, axis.field.choices))
    if axis.field.path:
        return "a text"
    several = "; several, joined by `+`, are a list" if axis.listed else ""
    whole = f"; `{axis.field.divides}` is a multiple of it" if axis.field.divides else ""
    return plain(axis.expected) + several + whole


def _strategies_with(name: str) -> str:
    if name not in OPTIONAL:
        return "all"
    return ", ".join(code(strategy) for strategy, entry in STRATEGIES.items() if name in entry.axes)


def options() -> str:
    """List the `--help` of every command."""
    return "\n".join(_help_of(name) for name in COMMANDS)


def _help_of(name: str) -> str:
    group = click.Context(main, info_name="parabench", **main.context_settings)
    command = main.get_command(group, name)
    assert command is not None
    ctx = command.make_context(name, [], parent=group, resilient_parsing=True)
    formatter = MarkdownHelp()
    command.format_help(ctx, formatter)
    return f"### {name}\n\n{formatter.getvalue()}"


def columns() -> str:
    """List the columns of each table of a results database, with SQLite's types."""
    with closing(sqlite3.connect(":memory:")) as store:
        store.executescript(";".join(create_statements()))
        return "\n".join(
            f"### {name}\n\n{table(('column', 'type', 'may be null'), _columns_of(store, name))}" for name in TABLES
        )


def _columns_of(store: sqlite3.Connection, name: str) -> Iterator[tuple[str, str, str]]:
    for _, column, kind, not_null, _, key in store.execute(f"PRAGMA table_info({name})"):
        yield code(column), kind, "" if not_null or key else "yes"


def metrics() -> str:
    """List the metrics of samples, with their units."""
    rows = ((code(name), metric.unit, plain(metric.meaning)) for name, metric in METRICS.items())
    return table(("metric", "unit", "meaning"), rows)


def meanings(columns: Mapping[str, str]) -> Callable[[], str]:
    """Return a function that lists the columns of a table with their meanings."""
    return lambda: table(("column", "meaning"), ((code(name), meaning) for name, meaning in columns.items()))


def schemas() -> str:
    """List the keys of the JSON of each command."""
    return "\n".join(map(_schema, SCHEMAS))


def _schema(whose: str) -> str:
    schema = schema_of(whose)
    file = f"{whose}.schema.json"
    parts = [f"## {whose}\n\n{schema['title']}: [{file}]({file}).\n\n{_object(schema, whose)}"]
    for name, each in schema.get("$defs", {}).items():
        parts.append(f"### {name} {{ #{whose}-{name} }}\n\n{_object(each, whose)}")
    return "\n".join(parts)


def _object(schema: Mapping[str, Any], whose: str) -> str:
    description = f"{plain(schema['description'])}\n\n" if "description" in schema else ""
    if "properties" not in schema:
        return f"{description}{_kind(schema, whose)}\n"
    rows = ((code(name), _kind(each, whose), plain(each["description"])) for name, each in schema["properties"].items())
    return description + table(("key", "value", "meaning"), rows)


def _kind(schema: Mapping[str, Any], whose: str) -> str:
    """Return the type of a value as Markdown. A type with a heading on the page is a link."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{whose}-{name})"
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(each)) for each in schema["enum"])
    for several in ("oneOf", "anyOf"):
        if several in schema:
            return " or ".join(_kind(each, whose) for each in schema[several])
    kinds = schema.get("type", "any")
    words = kinds if isinstance(kinds, str) else " or ".join(kinds)
    inner = schema.get("items", schema.get("additionalProperties"))
    return f"{words} of {_kind(inner, whose)}" if inner and isinstance(inner, dict) else words


PARTS: dict[str, Callable[[], str]] = {
    "axes": axes,
    "calls": meanings(details.CALLS),
    "columns": columns,
    "memory": meanings(details.MEMORY),
    "metrics": metrics,
    "numbers": meanings(COLUMNS),
    "numbers of collectives": meanings(CALL_COLUMNS),
    "options": options,
    "schemas": schemas,
    "steps": meanings(details.STEPS),
}
