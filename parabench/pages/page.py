"""One HTML page from a template and figures: everything in the one file, escaped, and no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from parabench.analysis import tables, words
from parabench.analysis.session import Session
from parabench.pages import figures
from parabench.record import MIB


@dataclass(frozen=True)
class Table:
    """Rows of text below `head`. The first `texts` columns are words, the others numbers. `closed`: behind `title`,
    because a figure shows the same. `note` says how to read it, where the section's caption is not the place."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    texts: int = 1
    closed: bool = True
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page with figures and tables; without any, `empty` says why there are none. `lead` is what they
    show, in a sentence or two; `pairs` are facts, each with its name."""

    id: str
    title: str
    caption: str
    panels: list[figures.Panel]
    empty: str
    tables: tuple[Table, ...] = ()
    lead: str = ""
    pairs: tuple[tuple[str, str], ...] = ()


def render_page(template: str, session: Session, sections: list[Section], machine: Section, **content: Any) -> str:
    """The page of a session: `template` filled with `content`, with what is known of the session, and its `machine`."""
    return fill(
        template,
        sections,
        session=session,
        environment=tables.environment_rows(session),
        command=shlex.join(session.argv),
        skipped=tables.skipped_rows(session),
        machine=machine,
        **content,
    )


def fill(template: str, sections: list[Section], **content: Any) -> str:
    """A page as text: `template` filled with `content`, with the figures of its `sections`."""
    panels = {
        f"{section.id}-{i}": json.loads(panel.figure.to_json())
        for section in sections
        for i, panel in enumerate(section.panels)
    }
    scripts = [_script(get_plotlyjs()), _script(_asset("report.js"))] if panels else [_script(_asset("report.js"))]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts]
    return (
        _environment()
        .get_template(template)
        .render(
            csp=f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'",
            style=Markup(_asset("report.css").replace("</", "<\\/")),
            scripts=[Markup(script) for script in scripts],
            figures=script_json(panels),
            sections=sections,
            **content,
        )
    )


def script_json(data: object) -> Markup:
    """JSON inside a script element: no character that HTML or an old JavaScript parser would act on."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _script(source: str) -> str:
    """JavaScript as an inline script may hold it; the policy's hash is of exactly this text."""
    return source.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _asset(name: str) -> str:
    return resources.files("parabench.reports").joinpath(name).read_text(encoding="utf-8")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "ms": _cell(lambda seconds: words.digits(seconds * 1e3)),
        "us": _cell(lambda seconds: words.digits(seconds * 1e6)),
        "digits": _cell(words.digits),
        "count": _cell(lambda value: f"{value:,.0f}"),
        "percent": _cell(words.percent),
        "mib": _cell(lambda count: words.digits(count / MIB)),
        "rate": _cell(words.rate),
        "seconds": _cell(lambda seconds: f"{words.digits(seconds)} s"),
        "key": _cell(repr, unknown=""),
        "whole": _cell(lambda value: str(int(value)), unknown=""),
        "text": lambda value: value if isinstance(value, str) else "",
        "buckets": tables.bucket_sizes,
        "when": tables.when,
        "line": words.one_line,
    }
    environment.filters.update(filters)
    return environment


def _cell(say: Callable[[float], str], unknown: str = "–") -> Callable[[float | None], str]:
    """A filter that says a number, and a dash where there is none: unknown is never shown as 0."""
    return lambda value: say(value) if words.known(value) else unknown
