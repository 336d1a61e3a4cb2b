"""Make a page: one HTML file from a template, figures and data.

It needs no network, its data is escaped, and only parabench's scripts run. The files are in `reports/`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import posixpath
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup, escape

from parabench.analysis import format
from parabench.analysis.numbers import case_type
from parabench.analysis.session import Session
from parabench.files import shipped_folder
from parabench.report.spec import Section

STYLES = ("page", "live", "table", "detail")
# Significant digits of an embedded number, one more than any figure or table shows.
DIGITS = 5


def fill(template: str, sections: Iterable[Section], data: Any = None, **content: Any) -> str:
    """Return the HTML of `template` with `content`, the figures of `sections`, and the `data` of the page's script."""
    sections = list(sections)
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


def kicker(session: Session) -> str:
    """Return the line above the question: the suite, the session and its time."""
    return " · ".join(filter(None, ("parabench", session.suite, session.label, format.when(session.started_utc))))


def skipped_cases(session: Session) -> list[tuple[str, str]]:
    """Return (labels, reason) of the cases that were not launched, one entry per reason."""
    kind = case_type(session.kind)
    reasons: dict[str, list[str]] = {}
    for entry in session.plan.get("skipped") or []:
        reasons.setdefault(str(entry["reason"]), []).append(kind.from_dict(entry["case"]).label)
    return [(format.listed(labels), reason) for reason, labels in reasons.items()]


def rounded(value: Any) -> Any:
    """Return JSON data with floats of DIGITS digits. Their integer part is exact. Non-finite floats become None."""
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


def script_json(data: object) -> Markup:
    """Return data as JSON for a script element. Characters that could end the element are escaped."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _script(source: str) -> str:
    """Return JavaScript that cannot end an inline script element. The page's policy has the hash of this text."""
    safe = re.sub("</(script)", r"<\\/\1", source.replace("\r\n", "\n"), flags=re.IGNORECASE)
    return safe.replace("<!--", "<\\!--")


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
    # A sentence in one line, with its commands, such as `parabench ab`, as code.
    environment.filters["coded"] = lambda text: Markup(
        re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(format.one_line(text))))
    )
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
