"""A gate as JUnit XML, so that Jenkins, GitLab and others show each case as a test.

The elements and attributes are those of the xUnit plugin's junit-10.xsd, which Jenkins reads and GitLab reads a part
of. A test's time is the candidate's step time, so that a viewer's history of durations is the history of latencies;
where that is unknown the test has no time, which is not 0.
"""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

from parabench.analysis.compare import gate
from parabench.analysis.compare.cases import REGRESSIONS, CaseResult, Outcome
from parabench.analysis.compare.gate import Comparison
from parabench.analysis.text import format

# Nothing was judged of these, so they neither passed nor failed.
_SKIPPED = (Outcome.NOT_JUDGED, Outcome.NOT_OK, Outcome.ONLY_BASE, Outcome.ONLY_CANDIDATE)
# What XML 1.0 has no way to say (https://www.w3.org/TR/xml/#charsets), and what a terminal or a log would act on: the
# other controls, and Unicode's marks of direction.
_FORBIDDEN = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def render(of: Comparison) -> str:
    """The XML document. An inconclusive gate fails no test: its property `verdict` and its output say so."""
    outcomes = [row.outcome for row in of.rows]
    counts = {
        "tests": str(len(of.rows)),
        "failures": str(sum(outcome in REGRESSIONS for outcome in outcomes)),
        "errors": "0",
    }
    root = ElementTree.Element("testsuites", {"name": "parabench compare", **counts})
    name = _clean(of.origins[1].suite)
    skipped = str(sum(outcome in _SKIPPED for outcome in outcomes))
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, **counts, "skipped": skipped})
    suite.set("timestamp", _clean(of.origins[1].started_utc))
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _properties(of):
        ElementTree.SubElement(properties, "property", {"name": key, "value": _clean(value)})
    labels = Counter(row.label for row in of.rows)
    for row in of.rows:
        # Of two tests with one name GitLab keeps one.
        label = row.label if labels[row.label] == 1 else f"{row.label} ({row.case_id})"
        _test(suite, name, label, row, of)
    said = [gate.sentence(of), *(f"warning: {each.message} {each.advice}" for each in of.findings)]
    ElementTree.SubElement(suite, "system-out").text = _clean("\n".join(said))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _properties(of: Comparison) -> list[tuple[str, str]]:
    upper = format.UNKNOWN if of.upper is None else repr(of.upper)
    return [
        ("verdict", str(of.verdict)),
        ("tolerance", repr(of.tolerance)),
        ("alpha", repr(of.alpha)),
        ("upper", upper),
        ("base", of.origins[0].at),
        ("candidate", of.origins[1].at),
        *((f"differs: {_clean(each.name)}", f"{each.base} in base, {each.candidate} in candidate")
          for each in of.differences),
    ]  # fmt: skip


def _test(suite: ElementTree.Element, classname: str, label: str, row: CaseResult, of: Comparison) -> None:
    test = ElementTree.SubElement(suite, "testcase", {"classname": classname, "name": _clean(label)})
    if row.candidate_step_time_s is not None:
        test.set("time", f"{row.candidate_step_time_s:.9f}")
    if row.outcome in REGRESSIONS:
        failure = ElementTree.SubElement(test, "failure", {"type": str(row.outcome), "message": _clean(gate.line(row))})
        failure.text = _clean(f"{gate.line(row)}\n{_launches(row)}\n{gate.command(of)}")
    elif row.outcome in _SKIPPED:
        ElementTree.SubElement(test, "skipped", {"message": _clean(gate.line(row))})
    said = [gate.line(row), _launches(row)]
    if row in of.not_ruled_out and row.outcome not in REGRESSIONS:
        said.append(f"inconclusive: slowdowns above {gate.tolerated(of)} are not ruled out")
    ElementTree.SubElement(test, "system-out").text = _clean("\n".join(said))


def _launches(row: CaseResult) -> str:
    base, candidate = (gate.ids(each) for each in (row.base_launches, row.candidate_launches))
    return f"launches: {base} of base, {candidate} of candidate"


def _clean(text: str) -> str:
    """`text` with a mark where XML has no way to say a character, or a terminal would act on it."""
    return _FORBIDDEN.sub("\ufffd", text)
