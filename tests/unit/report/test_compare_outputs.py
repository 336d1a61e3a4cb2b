"""What `parabench compare` writes: JSON by its schema, JUnit, Markdown and a page, of a gate."""

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from xml.etree import ElementTree

import pandas as pd
import pytest
from click.testing import CliRunner
from markupsafe import escape

import fake_results as fake
from fake_results import OOM
from parabench.analysis import format as words
from parabench.analysis.compare import gate
from parabench.analysis.compare.comparison import Outcome
from parabench.analysis.compare.gate import Verdict, ids, the_verdict
from parabench.analysis.compare.sides import side_of
from parabench.cli import main
from parabench.report.views import junit as compare_junit
from parabench.report.views.comparison import gate_view
from parabench.store.record import Failure, Status
from schema_helpers import EVIL, check

CASES = [fake.case(bucket_mib=b) for b in (1.0, 4.0, 25.0)]


def side(tmp_path, name, launches, **more):
    return side_of(fake.write(tmp_path / f"{name}.db", launches, label=name, **more))


def compare(base, candidate):
    """A gate of sessions that do not differ by themselves."""
    return gate.compare(base, candidate, allowance=0.0)


def truth(case):
    return 0.04


def steady(factor=1.0, noise=0.001, seed=1, cases=CASES, repetitions=4):
    return fake.sweep(cases, lambda c: truth(c) * factor, noise=noise, seed=seed, repetitions=repetitions)


@pytest.fixture(scope="module")
def gates(tmp_path_factory):
    """Return a gate for every verdict, and one with every outcome."""
    folder = tmp_path_factory.mktemp("gates")
    base = side(folder, "base", steady())
    found = {
        Verdict.NO_REGRESSION: compare(base, side(folder, "same", steady(seed=2))),
        Verdict.REGRESSION: compare(base, side(folder, "slow", steady(1.1, seed=3))),
        Verdict.INCONCLUSIVE: compare(base, side(folder, "noisy", steady(noise=0.05, seed=4))),
    }
    assert {verdict: the_verdict(of)["verdict"] for verdict, of in found.items()} == {each: each for each in Verdict}
    return found | {"all": compare(*everything(folder))}


def everything(folder):
    """Return two sides with every outcome and hostile texts."""
    broke, fixed, missing, added, few, bad, slow = (fake.case(bucket_mib=float(b)) for b in range(1, 8))
    evil = {"status": Status.CRASHED, "failure": Failure(EVIL, rank=1)}
    good = [fake.launch(broke, repetition=b) for b in range(3)]
    old = [*good, fake.launch(fixed, **OOM), *map(fake.launch, (missing, few)), fake.launch(bad, **OOM)]
    new = [*(fake.launch(broke, repetition=b, **evil) for b in range(3)), *map(fake.launch, (fixed, added, few))]
    old += fake.sweep([slow], truth, noise=0.001)
    new += [fake.launch(bad, **OOM), *fake.sweep([slow], lambda c: 0.05, noise=0.001, seed=1)]
    hostile = fake.ENVIRONMENT | {"env": {EVIL: "1", "OMP_NUM_THREADS": EVIL}}
    return (
        side(folder, "old", old, environment=fake.ENVIRONMENT | {"env": {EVIL: "2", "OMP_NUM_THREADS": "1"}}),
        side(folder, "new", new, environment=hostile, skipped=[(missing, EVIL)], argv=["parabench", EVIL]),
    )


@pytest.mark.parametrize("which", [*Verdict, "all"])
def test_json_is_what_the_schema_says(gates, which):
    tables = check(gates[which])["tables"]
    (row,) = tables["verdict"]
    assert row["exit_code"] == Verdict(row["verdict"]).exit_code == gate.exit_code(gates[which])
    rows = {row["outcome"] for row in tables["cases"]}
    if which == "all":
        assert rows == {"broke", "slower", "fixed", "not ok", "cannot be judged", "only in base", "only in candidate"}


# See https://github.com/jenkinsci/xunit-plugin's junit-10.xsd: attributes (needed, allowed) and children.
JUNIT = {
    "testsuites": ((), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        ("name", "tests", "failures", "errors"),
        {"time", "skipped", "timestamp", "hostname", "id", "package", "group", "file", "log", "url", "version"},
        {"properties", "testcase", "system-out", "system-err", "testsuite"},
    ),
    "properties": ((), set(), {"property"}),
    "property": (("name", "value"), set(), set()),
    "testcase": (("name",), {"time", "classname", "group"}, {"skipped", "failure", "system-out", "system-err"}),
    "failure": ((), {"type", "message"}, set()),
    "skipped": ((), {"type", "message"}, set()),
    "system-out": ((), set(), set()),
}


def junit(found):
    """The document, held against the structure."""
    root = ElementTree.fromstring(compare_junit.render(found).encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        needed, allowed, children = JUNIT[element.tag]
        assert set(needed) <= set(element.attrib) <= set(needed) | allowed, element.tag
        assert {child.tag for child in element} <= children, element.tag
    (suite,) = root
    cases = suite.findall("testcase")
    for tag, counted in (("failure", "failures"), ("skipped", "skipped")):
        assert suite.get(counted) == str(len(suite.findall(f"testcase/{tag}")))
    assert suite.get("tests") == str(len(cases)) == str(len(found.tables["cases"]))
    return suite


def test_junit_of_inconclusive_gate_has_no_failure(gates):
    suite = junit(gates[Verdict.INCONCLUSIVE])
    assert {p.get("name"): p.get("value") for p in suite.iter("property")}["verdict"] == "inconclusive"
    assert suite.find("system-out").text.startswith("Inconclusive: ")
    assert not suite.findall("testcase/failure")
    assert len(junit(gates[Verdict.REGRESSION]).findall("testcase/failure")) == 3
    assert "inconclusive: slowdowns above 2% are not ruled out" in suite.find("testcase/system-out").text


def test_junit_replaces_what_xml_cannot_say(gates):
    assert len(junit(gates["all"]).findall("testcase/skipped")) == 4
    written = compare_junit.render(gates["all"])
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", written)
    assert "\ufffd[31m" in written
    assert "<script" not in written


def test_markdown_escapes_hostile_text(gates):
    written = gate_view(gates["all"]).markdown()
    outside = re.sub(r"(`{3,})\n.*?\n\1\n", "", written, flags=re.DOTALL)
    assert "<script" not in outside
    assert set(re.findall("`[^`]*`", outside)) == {"`parabench ab`", "`code`"}
    assert "http://" not in outside
    assert "@all" not in outside
    assert not re.search(r"(?<!\\)\[x", outside)
    # All rows of a table have the same number of cells.
    for repetition in re.findall(r"(?:^\|.*\|\n)+", outside, flags=re.MULTILINE):
        assert len({line.count("|") for line in repetition.splitlines()}) == 1, repetition
    assert written.count("<details>") == written.count("</details>")


def test_markdown_tables_have_the_first_rows(gates):
    found = gates[Verdict.REGRESSION]
    first = found.tables["cases"].head(1)
    same = [first.assign(outcome=Outcome.SAME, label=f"case {i}") for i in range(150)]
    cases = pd.concat([first, *same], ignore_index=True)
    written = gate_view(replace(found, tables=found.tables | {"cases": cases})).markdown()
    assert written.index("| slower |") < written.index("| same |")
    assert len(re.findall(r"\| same \|", written)) == 100
    assert "\n50 more rows are left out.\n" in written
    assert written.rstrip().endswith("```")


def test_gate_page_has_verdict_rows_and_launches(gates):
    found = gates["all"]
    page = gate_view(found).html()
    assert "<script>alert" not in page
    assert all(str(escape(sentence)) in page for sentence in found.sentences)
    for row in found.tables["cases"].itertuples():
        assert page.count(str(escape(row.label))) >= 2
        assert ids(row.base_launches) in page
    assert "Warnings" in page
    assert f"parabench compare {found.tables['sides']['at'][0]}" in page


HOSTILE = "x\x1b[31m\nNo regression: forged\r\x07\t \u2028y \u202egnp\x9b"
SHOWN = "x\ufffd[31m No regression: forged \ufffd y \ufffdgnp\ufffd"


def test_printed_text_has_no_control_characters():
    assert words.one_line(HOSTILE) == SHOWN
    assert words.one_line("a" + " " * 200 + "b") == "a b"
    assert words.printable("a   b\nc") == "a   b c"
    assert words.aligned([["head", "n"], ["a\nb", "1"]]) == ["head  n", "a b   1"]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A store of another hand: its labels, errors and settings hold what no writer here would write."""
    path = tmp_path_factory.mktemp("foreign") / "evil.db"
    environment = fake.ENVIRONMENT | {"env": {"OMP_NUM_THREADS": HOSTILE}}
    broken = [fake.launch(CASES[0], repetition=b, status=Status.OOM, failure=Failure(HOSTILE)) for b in range(4)]
    fake.write(path, steady(), label="one")
    fake.write(path, broken + steady(cases=CASES[1:]), label="two", environment=environment)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE session SET label = ? || id", (HOSTILE,))
    return path


@pytest.mark.parametrize(
    "arguments", [("compare", "{}@1", "{}@2"), ("compare", "{}@none", "{}@2"), ("best", "{}"), ("history", "{}")]
)
def test_commands_print_lines_of_a_foreign_database(foreign, arguments):
    result = CliRunner().invoke(main, [word.format(foreign) for word in arguments])
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", result.output)
    assert not re.search("^No regression: forged", result.output, flags=re.MULTILINE)
    if arguments[0] == "compare":
        assert SHOWN in result.output
