"""A page: one HTML file made from a template, figures and data.

It needs no network, its data is escaped, and only parabench's scripts run. The files are in `reports/`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.environment import facts
from parabench.analysis.numbers import case_type
from parabench.analysis.session import Session
from parabench.analysis.warnings.codes import grouped
from parabench.files import shipped_folder
from parabench.report.sections.environment import machine_section
from parabench.report.spec import CASE, ERROR, FORMATS, TEXT, Column, Section, Tab
from parabench.store.results import records

STYLES = ("page", "answer", "live", "table", "detail", "compare")
FILTERS: dict[str, Callable[..., Any]] = {
    **FORMATS,
    "whole": lambda value: str(int(value)) if format.known(value) else "",
    "text": lambda value: value if isinstance(value, str) else "",
    "when": format.when,
    "line": format.one_line,
    # A sentence in one line, with its commands, such as `parabench ab`, as code.
    "coded": lambda text: Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(format.one_line(text))))),
}
# Significant digits of an embedded number, one more than any figure or table shows.
DIGITS = 5


def render_page(template: str, session: Session, tabs: list[Tab], **content: Any) -> str:
    """Return the page of a session in `tabs`: `template` filled with the session's facts, and with `content`, which
    may replace facts."""
    known: dict[str, Any] = {"environment": facts.environment_rows(session), "machine": machine_section(session)}
    return fill(
        template,
        [section for tab in tabs for section in tab.sections],
        tabs=tabs,
        session=session,
        command=shlex.join(session.argv),
        skipped=skipped_cases(session),
        **(known | content),
    )


def answer_page(
    answer: Answer,
    sections: list[Section],
    *,
    title: str,
    kicker: str,
    question: str,
    trust: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    command: str = "",
    again: str = "Run it again",
    headlines: int | None = None,
    tone: str = "",
) -> str:
    """Return the page of an answer: its sentences and warnings, then `sections`, which have its figures and tables.

    Args:
        kicker: The line above the question: the suite, the session and its time.
        trust: Sentences about the launches behind the answer.
        labels: The label of each configuration by its id, for warnings.
        command: The command that repeats it, below the heading `again`.
        headlines: The number of sentences in large letters. The default is all.
        tone: The color of the answer: "good", "bad", "open" or none.
    """
    return fill(
        "page.html",
        [section for section in sections if section.panels or section.tables or section.pairs or section.empty],
        title=title,
        kicker=kicker,
        question=question,
        sentences=answer.sentences,
        trust=trust,
        findings=grouped(answer.warnings, labels or {}),
        command=command,
        again=again,
        headlines=len(answer.sentences) if headlines is None else headlines,
        tone=tone,
    )


def fill(template: str, sections: list[Section], data: Any = None, **content: Any) -> str:
    """Return a page: `template` filled with `content`, the figures of `sections`, and the `data` of its script."""
    panels = {
        f"{section.id}-{i}": rounded(panel.figure) for section in sections for i, panel in enumerate(section.panels)
    }
    scripts = [_script(bundle(lambda path: shipped(f"script/{path}")))]
    if panels:
        scripts.insert(0, _script(shipped("vendor/plotly-basic.min.js")))
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts]
    page = (
        _templates()
        .get_template(template)
        .render(
            csp=f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; "
            "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'",
            style=Markup("\n".join(shipped(f"style/{name}.css") for name in STYLES).replace("</", "<\\/")),
            scripts=[Markup(script) for script in scripts],
            data=script_json(data),
            figures=script_json(panels),
            sections=sections,
            **content,
        )
    )
    # Half characters, which a database's JSON can hold, cannot be written to a file.
    return page.encode("utf-8", "replace").decode("utf-8")


def script_json(data: object) -> Markup:
    """Return JSON for a script element, without characters that end it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _script(source: str) -> str:
    """Return JavaScript for an inline script; the policy has the hash of exactly this text."""
    safe = re.sub("</(script)", r"<\\/\1", source.replace("\r\n", "\n"), flags=re.IGNORECASE)
    return safe.replace("<!--", "<\\!--")


def skipped_cases(session: Session) -> list[tuple[str, str]]:
    """Return (labels, reason) of the cases that were not launched, one entry per reason."""
    kind = case_type(session.kind)
    reasons: dict[str, list[str]] = {}
    for entry in session.plan.get("skipped") or []:
        reasons.setdefault(str(entry["reason"]), []).append(kind.from_dict(entry["case"]).label)
    return [(format.listed(labels), reason) for reason, labels in reasons.items()]


def packed(table: pd.DataFrame) -> dict[str, Any]:
    """Return {"n": rows, column: list of values} as JSON, with NaN as None and numbers rounded.

    Columns of objects are not rounded, because they name a case and occur in commands.
    """
    found: dict[str, Any] = {"n": len(table)}
    for name, column in table.items():
        items = [format.cell(each) for each in column.tolist()]
        items = [each.item() if isinstance(each, np.generic) else each for each in items]
        found[str(name)] = rounded(items) if pd.api.types.is_numeric_dtype(column) else items
    return found


def rounded(value: Any) -> Any:
    """Return JSON with its numbers rounded to DIGITS digits, whole ones exact, and None if one is not finite."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        places = DIGITS - 1 - math.floor(math.log10(abs(value))) if value else 0
        short = round(value, max(places, 0))
        return int(short) if short.is_integer() else short
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return value


def declared(
    columns: Iterable[Column],
    table: pd.DataFrame,
    csv: Iterable[str],
    heads: Callable[[str], str] = str,
    initial: str = "",
) -> dict[str, Any]:
    """Return a table that the page's script fills from `packed(table)`.

    - `columns`: the columns with their cells.
    - `csv`: [head, column] pairs of its file; `heads` returns the head of a column by its name.
    - `initial`: the column of the initial order.
    """
    rows: list[dict[Any, Any]] = records(table)
    return {
        "columns": [
            {
                "name": one.value,
                "head": one.title,
                "format": one.format if one.format in (CASE, ERROR, TEXT) else "",
                "cells": [one.cell(row) for row in rows],
            }
            for one in columns
        ],
        "csv": [(heads(name), name) for name in csv],
        "initial": initial,
    }


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(shipped_folder("reports")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        optimized=False,  # each template is filled once, so folding its constants does not pay
        bytecode_cache=jinja2.FileSystemBytecodeCache(),
    )
    environment.filters.update(FILTERS)
    return environment


def shipped(name: str) -> str:
    """Return the text of a file below `reports/`."""
    return (shipped_folder("reports") / name).read_text(encoding="utf-8")


# A browser loads no module from `file://`, so the modules of `reports/script/` are joined to one inline script. Each
# becomes a function that returns its exports, after the modules that it imports.
_IMPORT = re.compile(r'^import \{((?:\s*[\w$]+\s*,)*\s*[\w$]*\s*)\} from "(\.[^"]*)";$', re.M)
_EXPORT = re.compile(r"^export (?=(?:const|function|async function|class) ([A-Za-z_$][\w$]*))", re.M)


def bundle(read: Callable[[str], str], entry: str = "start.js") -> str:
    """Return the module `entry` and its imports as one script, which runs as a separate task.

    `read` returns a module's text by its path. At the beginning of a line, modules have
    `import { name } from "./module.js";`, `export const name` or `export function name`. They cannot import each other.
    """
    parts: dict[str, str] = {}

    def add(path: str) -> None:
        def constants(found: re.Match[str]) -> str:
            imported = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[2]))
            if imported not in parts:
                add(imported)
            named = ", ".join(re.findall(r"[\w$]+", found[1]))
            return f'const {{ {named} }} = modules["{imported}"];'

        text = read(path)
        body = _EXPORT.sub("", _IMPORT.sub(constants, text))
        exports = ", ".join(sorted(_EXPORT.findall(text)))
        parts[path] = f'modules["{path}"] = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();\n'

    add(entry)
    return '"use strict";\nsetTimeout(() => {\nconst modules = {};\n' + "".join(parts.values()) + "});\n"
