"""One HTML page from a template and figures: everything in the one file, escaped, and no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

from markupsafe import Markup

from parabench.analysis.environment import facts
from parabench.analysis.numbers import case_type
from parabench.analysis.session import Session
from parabench.analysis.text import format
from parabench.report.assets import Look
from parabench.report.figures.figures import Panel
from parabench.report.packing import rounded
from parabench.report.sections.environment import machine_section
from parabench.report.spec import Section, Tab


def render_page(
    template: str,
    session: Session,
    tabs: list[Tab],
    folder: Path | None = None,
    **content: Any,
) -> str:
    """Return the page of a session in `tabs`: `template` filled with the session's facts, and with `content`, which
    may replace facts."""
    known = {"environment": facts.environment_rows(session), "machine": machine_section(session)}
    return fill(
        template,
        [section for tab in tabs for section in tab.sections],
        folder,
        tabs=tabs,
        session=session,
        command=shlex.join(session.argv),
        skipped=_skipped(session),
        **(known | content),
    )


def fill(template: str, sections: list[Section], folder: Path | None = None, data: Any = None, **content: Any) -> str:
    """A page as text: `template` filled with `content`, with the figures of its `sections` and the `data` from which
    its script draws others. What a reader's own `folder` holds of templates, style and scripts stands for ours.

    Raises UsageError when a file of `folder` cannot be read or is no template.
    """
    panels = {f"{section.id}-{i}": _figure(panel) for section in sections for i, panel in enumerate(section.panels)}
    of_case: dict[str, list[dict[str, Any]]] = {}
    for section in sections:
        for panel in section.spare:
            head = {"title": f"{section.title}: {panel.title}", "height": f"{panel.height}px"}
            of_case.setdefault(panel.case, []).append(_figure(panel) | head)
    look = Look(folder)
    drawn = bool(panels) or any(section.draw for section in sections)
    scripts = [_script(text) for text in ([look.plotly()] if drawn else []) + [look.script()]]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts]
    return look.render(
        template,
        csp=f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'",
        style=Markup(look.style()),
        scripts=[Markup(script) for script in scripts],
        data=script_json(data),
        figures=script_json(panels | ({"of_case": of_case} if of_case else {})),
        sections=sections,
        **content,
    )


def _figure(panel: Panel) -> dict[str, Any]:
    figure: dict[str, Any] = rounded(panel.figure)
    return figure


def script_json(data: object) -> Markup:
    """JSON inside a script element: no character that HTML or an old JavaScript parser would act on."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _script(source: str) -> str:
    """JavaScript as an inline script may hold it; the policy's hash is of exactly this text."""
    safe = re.sub("</(script)", r"<\\/\1", source.replace("\r\n", "\n"), flags=re.IGNORECASE)
    return safe.replace("<!--", "<\\!--")


def _skipped(session: Session) -> list[tuple[str, str]]:
    """(labels, reason) of the cases that were not launched, those of one reason together."""
    kind = case_type(session.kind)
    reasons: dict[str, list[str]] = {}
    for entry in session.plan.get("skipped") or []:
        reasons.setdefault(str(entry["reason"]), []).append(kind.from_dict(entry["case"]).label)
    return [(format.listed(labels), reason) for reason, labels in reasons.items()]
