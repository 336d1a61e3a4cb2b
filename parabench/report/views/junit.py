"""Write a gate as JUnit XML, so that Jenkins, GitLab and others show each case as a test.

The elements and attributes follow junit-10.xsd of the xUnit plugin. Jenkins reads all of it, GitLab a part. A test's
time is the candidate's step time, so a viewer's history of durations shows step times. If the step time is unknown, the
test has no time.
"""

from __future__ import annotations

import re
import shlex
from xml.etree import ElementTree

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.compare import gate
from parabench.analysis.compare.comparison import REGRESSIONS, Outcome
from parabench.store.results import records

# Cases with these outcomes have no verdict, so their tests neither pass nor fail.
_SKIPPED = (Outcome.NOT_JUDGED, Outcome.NOT_OK, Outcome.ONLY_BASE, Outcome.ONLY_CANDIDATE)
# Characters that XML 1.0 does not allow (https://www.w3.org/TR/xml/#charsets), and characters that control a terminal:
# other controls, and Unicode's marks of direction.
_FORBIDDEN = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def render(of: Answer) -> str:
    """Return the XML document. If the gate is inconclusive, no test fails; see the property `verdict`."""
    cases, verdict = of.tables["cases"], gate.the_verdict(of)
    base, candidate = records(of.tables["sides"])
    skipped = int(cases["outcome"].isin(_SKIPPED).sum())
    counts = {"tests": len(cases), "failures": int(cases["outcome"].isin(REGRESSIONS).sum()), "errors": 0}
    root = _add(None, "testsuites", name="parabench compare", **counts)
    more = {"skipped": skipped, "timestamp": candidate["started_utc"]}
    suite = _add(root, "testsuite", name=candidate["suite"], **counts, **more)
    properties = _add(suite, "properties")
    values = {name: verdict[name] for name in ("verdict", "tolerance", "alpha")}
    values |= {"upper": format.or_unknown(verdict["upper"]), "base": base["at"], "candidate": candidate["at"]}
    for each in records(of.tables["differences"]):
        values[f"differs: {each['name']}"] = f"{each['base']} in base, {each['candidate']} in candidate"
    for name, value in values.items():
        _add(properties, "property", name=name, value=value)
    again = shlex.join(["parabench", "compare", *of.tables["sides"]["at"], *gate.options(of)])
    unclear = gate.not_ruled_out(cases, verdict["tolerance"]) & ~cases["outcome"].isin(REGRESSIONS)
    for row, is_unclear in zip(records(cases), unclear, strict=True):
        test = _add(suite, "testcase", classname=candidate["suite"], name=row["label"])
        if not pd.isna(row["candidate_step_time_s"]):
            test.set("time", f"{row['candidate_step_time_s']:.9f}")
        line = gate.line(row)
        launches = [f"{gate.ids(row[f'{side}_launches'])} of {side}" for side in ("base", "candidate")]
        output = [line, f"launches: {', '.join(launches)}"]
        if row["outcome"] in REGRESSIONS:
            _add(test, "failure", *output, again, type=row["outcome"], message=line)
        elif row["outcome"] in _SKIPPED:
            _add(test, "skipped", message=line)
        if is_unclear:
            output.append(f"inconclusive: slowdowns above {gate.tolerated(verdict['tolerance'])} are not ruled out")
        _add(test, "system-out", *output)
    warnings = (f"warning: {each.message} {each.advice}" for each in of.warnings)
    _add(suite, "system-out", " ".join(of.sentences), *warnings)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _add(parent: ElementTree.Element | None, tag: str, *lines: str, **attributes: object) -> ElementTree.Element:
    """Add an element. Characters that XML does not allow, or that control a terminal, are replaced."""
    values = {name: _FORBIDDEN.sub("\ufffd", str(value)) for name, value in attributes.items()}
    element = ElementTree.Element(tag, values) if parent is None else ElementTree.SubElement(parent, tag, values)
    if lines:
        element.text = _FORBIDDEN.sub("\ufffd", "\n".join(lines))
    return element
