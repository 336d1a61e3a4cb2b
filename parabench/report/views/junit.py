"""A gate as JUnit XML, so that Jenkins, GitLab and others show each case as a test.

The elements and attributes are those of the xUnit plugin's junit-10.xsd, which Jenkins reads and GitLab reads a part
of. A test's time is the candidate's step time, so that a viewer's history of durations is the history of latencies;
where that is unknown the test has no time, which is not 0.
"""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

from parabench.analysis import format
from parabench.analysis.compare import gate
from parabench.analysis.compare.cases import REGRESSIONS, CaseResult, Outcome
from parabench.analysis.compare.gate import Comparison

# Nothing was judged of these, so they neither passed nor failed.
_SKIPPED = (Outcome.NOT_JUDGED, Outcome.NOT_OK, Outcome.ONLY_BASE, Outcome.ONLY_CANDIDATE)
# Characters that XML 1.0 does not allow (https://www.w3.org/TR/xml/#charsets), and characters that control a terminal:
# other controls, and Unicode's marks of direction.
_FORBIDDEN = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def render(of: Comparison) -> str:
    """Return the XML document. An inconclusive gate fails no test: its property `verdict` and its output say so."""
    outcomes = [row.outcome for row in of.rows]
    failures = str(sum(outcome in REGRESSIONS for outcome in outcomes))
    counts = {"tests": str(len(of.rows)), "failures": failures, "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": "parabench compare", **counts})
    candidate, skipped = of.origins[1], sum(outcome in _SKIPPED for outcome in outcomes)
    suite = _add(root, "testsuite", name=candidate.suite, **counts, skipped=skipped, timestamp=candidate.started_utc)
    properties = _add(suite, "properties")
    for name, value in _properties(of):
        _add(properties, "property", name=name, value=value)
    labels = Counter(row.label for row in of.rows)
    for row in of.rows:
        # GitLab keeps one of two tests with the same name.
        label = row.label if labels[row.label] == 1 else f"{row.label} ({row.case_id})"
        _test(_add(suite, "testcase", classname=candidate.suite, name=label), row, of)
    _add(suite, "system-out", gate.sentence(of), *(f"warning: {each.message} {each.advice}" for each in of.findings))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _properties(of: Comparison) -> list[tuple[str, object]]:
    return [
        ("verdict", of.verdict),
        ("tolerance", of.tolerance),
        ("alpha", of.alpha),
        ("upper", format.or_unknown(of.upper)),
        ("base", of.origins[0].at),
        ("candidate", of.origins[1].at),
        *((f"differs: {each.name}", f"{each.base} in base, {each.candidate} in candidate") for each in of.differences),
    ]


def _test(test: ElementTree.Element, row: CaseResult, of: Comparison) -> None:
    """Describe a configuration in its element."""
    line = gate.line(row)
    launches = f"launches: {gate.ids(row.base_launches)} of base, {gate.ids(row.candidate_launches)} of candidate"
    if row.candidate_step_time_s is not None:
        test.set("time", f"{row.candidate_step_time_s:.9f}")
    if row.outcome in REGRESSIONS:
        _add(test, "failure", line, launches, gate.command(of), type=row.outcome, message=line)
    elif row.outcome in _SKIPPED:
        _add(test, "skipped", message=line)
    unclear = row in of.not_ruled_out and row.outcome not in REGRESSIONS
    why = [f"inconclusive: slowdowns above {gate.tolerated(of)} are not ruled out"] * unclear
    _add(test, "system-out", line, launches, *why)


def _add(parent: ElementTree.Element, tag: str, *lines: str, **attributes: object) -> ElementTree.Element:
    """Add an element. Characters that XML does not allow, or that control a terminal, are replaced by a mark."""
    values = {name: _FORBIDDEN.sub("\ufffd", str(value)) for name, value in attributes.items()}
    element = ElementTree.SubElement(parent, tag, values)
    if lines:
        element.text = _FORBIDDEN.sub("\ufffd", "\n".join(lines))
    return element
