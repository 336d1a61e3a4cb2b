"""The report: one HTML page that opens from disk with no network, holding verdict, figures, tables and doubts."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from parabench import figures
from parabench.analysis import words
from parabench.analysis.best import Verdict, verdict
from parabench.analysis.checks import check_launches
from parabench.analysis.frames import Session, case_table, launch_table, ranked, same_work, select_session
from parabench.analysis.scaling import scaling
from parabench.case import Case
from parabench.errors import UsageError
from parabench.record import REFERENCE_BLOCK, Finding, Status
from parabench.store import Results


@dataclass(frozen=True)
class Section:
    """A part of the page with figures; without any, `empty` says why there are none."""

    id: str
    title: str
    caption: str
    panels: list[figures.Panel]
    empty: str


def write_report(results: Results, out: Path, session: str | None = None) -> Path:
    """Write the report of a session (default: the newest) to the file `out`, whole or not at all; returns `out`.

    Raises UsageError for no such session, or when `out` cannot be written.
    """
    page = render(results, session)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(page)
            Path(name).chmod(0o644)  # mkstemp's 0600 would keep a web server or a colleague out
            Path(name).replace(out)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}; give another file") from error
    return out


def render(results: Results, session: str | None = None) -> str:
    """The page as text."""
    chosen = select_session(results, session)
    launches = launch_table(results, chosen)
    cases = case_table(launches)
    answers = verdict(launches)
    sections = figure_sections(cases)
    panels = {
        f"{section.id}-{i}": json.loads(panel.figure.to_json())
        for section in sections
        for i, panel in enumerate(section.panels)
    }
    scripts = [_script(get_plotlyjs()), _script(_asset("report.js"))] if panels else [_script(_asset("report.js"))]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts]
    own = launches[launches["block"] != REFERENCE_BLOCK]
    return _environment().get_template("report.html").render(
        csp=f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'",
        style=Markup(_asset("report.css").replace("</", "<\\/")),  # noqa: S704 - our own file
        scripts=[Markup(script) for script in scripts],
        figures=script_json(panels),
        session=chosen,
        environment=environment_rows(chosen),
        command=shlex.join(chosen.argv),
        verdict=answers,
        trust=_trust(own, answers),
        sections=sections,
        cases=case_rows(cases, answers),
        skipped=skipped_rows(chosen),
        statistics=sorted(set(cases["statistic"])),
        findings=finding_rows(results, chosen, launches, cases),
        launches=launches.to_dict("records"),
        failed=launches[launches["status"] != Status.OK].to_dict("records"),
    )


def figure_sections(cases: pd.DataFrame) -> list[Section]:
    """The figures, in the order in which a reader asks."""
    works = same_work(cases)

    def each(draw: Callable[[pd.DataFrame], list[figures.Panel]]) -> list[figures.Panel]:
        drawn = [(work, panel) for work, group in works for panel in draw(group)]
        if len(works) < 2:
            return [panel for _, panel in drawn]
        return [
            figures.Panel(" · ".join(filter(None, (panel.title, _work(work)))), panel.figure, panel.height)
            for work, panel in drawn
        ]

    nothing = "" if cases["latency_s"].notna().any() else "No launch ended well, so there is nothing to draw."
    return [
        Section(
            "bucket",
            "Step latency against bucket size",
            "Lower is better. Bars reach from the fastest to the slowest launch; the axis does not begin at zero. "
            "“default” is PyTorch's own bucket setting.",
            each(figures.latency_by_bucket),
            nothing or "No strategy was measured with more than one bucket size.",
        ),
        Section(
            "heat",
            "Algorithm and bucket size together",
            "Step latency in ms; bright is fast.",
            each(figures.heat_map),
            nothing or "This needs at least two algorithms and two bucket sizes of one strategy and world size.",
        ),
        Section(
            "scaling",
            "More ranks",
            "The work of a step stays the same at every world size (strong scaling). Efficiency is throughput over that "
            "of one rank times the ranks; where one rank was not measured, the smallest world size is the base. "
            "Each curve shows its best bucket size.",
            each(lambda group: figures.scaling_panels(scaling(group))),
            nothing or "Only one world size was measured, so nothing can be said about scaling.",
        ),
        Section(
            "parts",
            "Where a step's time goes",
            "Medians over steps of the slowest rank, then over launches; a median, also where latency is ranked by another "
            f"number. Backward includes the communication that it waits for.{_at_most(cases)}",
            each(figures.step_parts),
            nothing or "The parts of a step were not recorded.",
        ),
        Section(
            "memory",
            "Peak memory",
            f"The largest of all ranks and launches.{_at_most(cases)}",
            each(figures.peak_memory),
            nothing or "Peak memory was not recorded: unknown, not zero.",
        ),
    ]


def case_rows(cases: pd.DataFrame, answers: Verdict) -> list[dict[str, Any]]:
    """The table of cases: texts, the numbers to sort them by, and each one's place in the verdict."""
    place = {}
    for answer in answers.answers:
        if answer.best is not None:
            place[answer.best.case_id] = "fastest" if answer.decided else ""
            place.update({candidate.case_id: "as fast" for candidate in answer.equals if answer.decided})
    return [row | {"place": place.get(row["case_id"], "")} for row in cases.to_dict("records")]


def skipped_rows(session: Session) -> list[tuple[str, str]]:
    """(label, reason) of every case that was not launched."""
    return [
        (Case.from_dict(entry["case"]).label, str(entry["reason"])) for entry in session.plan.get("skipped") or []
    ]


def finding_rows(
    results: Results, session: Session, launches: pd.DataFrame, cases: pd.DataFrame
) -> list[tuple[Finding, str]]:
    """Stored and computed findings, each with the label of what it concerns; equal ones once."""
    stored = results.finding[results.finding["session_id"] == session.id].to_dict("records")
    found = [
        Finding(
            code=row["code"],
            message=row["message"],
            advice=row["advice"],
            case_id=row["case_id"] if isinstance(row["case_id"], str) else None,
        )
        for row in stored
    ]
    labels = dict(zip(cases["case_id"], cases["label"], strict=True))
    every = dict.fromkeys([*found, *check_launches(launches, results.sample, session)])
    return [(finding, labels.get(finding.case_id or "", "")) for finding in every]


def environment_rows(session: Session) -> list[tuple[str, str]]:
    """(name, value) of what is known about the machine and the protocol."""
    known = dict(session.environment)
    rows = [
        ("suite", session.suite),
        ("seed", str(session.seed)),
        ("parabench", session.version),
        ("started", session.started_utc),
        ("finished", session.finished_utc or "not finished"),
    ]
    protocol = session.plan.get("protocol") or {}
    rows += [(name.replace("_", " "), _said(value)) for name, value in protocol.items()]
    gpus = known.pop("gpus", None) or []
    memory = known.pop("memory_bytes", None)
    nvml = known.pop("nvml", None) or {}
    for name in ("versions", "env", "container"):
        rows += [(f"{name} {key}".removeprefix("versions "), _said(v)) for key, v in (known.pop(name, None) or {}).items()]
    rows += [(name, _said(value)) for name, value in known.items()]
    rows.append(("memory", words.mebibytes(memory)))
    rows.append(("GPUs", "; ".join(f"{g.get('name')} ({words.mebibytes(g.get('memory_bytes'))})" for g in gpus) or "none"))
    if nvml.get("available") is not None:
        rows.append(("NVML", "available" if nvml["available"] else f"not available: {nvml.get('reason') or words.UNKNOWN}"))
    return rows


def script_json(data: object) -> Markup:
    """JSON that is safe inside a script element: no character that HTML or an old JavaScript parser would act on."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - escaped above


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
    )
    environment.filters |= {
        "ms": lambda s: words.digits(s * 1e3) if words.known(s) else "–",
        "percent": lambda v: words.percent(v) if words.known(v) else "–",
        "mib": lambda b: words.mebibytes(b).removesuffix(" MiB") if words.known(b) else "–",
        "tokens": lambda v: words.throughput(v).removesuffix(" tokens/s") if words.known(v) else "–",
        "seconds": lambda s: f"{words.digits(s)} s" if words.known(s) else "–",
        "key": lambda v: repr(float(v)) if words.known(v) else "",
        "text": lambda v: v if isinstance(v, str) else "",
        "whole": lambda v: str(int(v)) if words.known(v) else "",
        "buckets": _buckets,
    }
    return environment


def _trust(own: pd.DataFrame, answers: Verdict) -> dict[str, Any]:
    good = ranked(own)
    return {
        "launches": len(own),
        "good": len(good),
        "cases": own["case_id"].nunique(),
        "blocks": good["block"].nunique(),
        "half_width": max((a.half_width for a in answers.answers if a.half_width is not None), default=None),
        "steps": int(good["n_steps"].median()) if len(good) else 0,
    }


def _buckets(facts: object) -> str:
    sizes = json.loads(facts).get("bucket_bytes") if isinstance(facts, str) else None
    if not isinstance(sizes, list) or not sizes:
        return ""
    return f"{len(sizes)}, largest {words.mebibytes(max(sizes))}"


def _work(work: dict[str, Any]) -> str:
    return (
        f"{work['model']}, {work['data']}, batch {work['global_batch']} × {work['seq_len']}, "
        f"{work['dtype']}, {work['device']}"
    )


def _at_most(cases: pd.DataFrame) -> str:
    many = cases["latency_s"].notna().sum() > figures.MOST_BARS
    return f" The {figures.MOST_BARS} fastest cases are drawn; the table has all." if many else ""


def _said(value: object) -> str:
    if value is None:
        return words.UNKNOWN
    return value if isinstance(value, str) else json.dumps(value)
