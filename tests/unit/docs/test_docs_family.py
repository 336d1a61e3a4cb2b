"""The tables of the documents that people read say what the source does, and name what they lack."""

import re
import tomllib

import jsonschema
import pytest

from docs.site.schemas import KEYS, SCHEMAS, schema
from parabench.machine.machine import Machine
from parabench.plan.case import DEFAULTS
from parabench.plan.resolve import defaults_on
from parabench.plan.suite import AXES, BATCH_PER_RANK, parse_axis
from parabench.report.build import TABS
from parabench.strategies import STRATEGIES
from paths import DOCS, ROOT


def test_page_of_strategies_has_the_rows_of_the_table():
    rows = re.findall(r"^\| (`\w+` \|.*) \|$", (ROOT / "docs/reference/strategies.md").read_text(), re.MULTILINE)
    told = {row.partition("`")[2].partition("`")[0]: row.split(" | ") for row in rows}
    for name, entry in STRATEGIES.items():
        memory = entry.memory.text if entry.memory else "unknown"
        written = ("", "", "communication", "bytes a rank sends a step", "")
        communication, sent = told.get(name, written)[2:4]
        row = [f"`{name}`", entry.splits, communication, sent, memory]
        assert told.get(name) == row, f"docs/reference/strategies.md: write the row | {' | '.join(row)} |"
    assert list(told) == list(STRATEGIES)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_describes_exactly_its_keys(name: str) -> None:
    defs = {table: {*each["properties"]} for table, each in schema(name)["$defs"].items()}
    described = tomllib.loads(KEYS.read_text())
    unused = {table: {*keys} - defs[table] for table, keys in described[name].items()}
    assert not any(unused.values()), "docs/site/keys.toml describes other columns than the tables have"
    jsonschema.Draft202012Validator.check_schema(schema(name))


def test_docs_mention_every_option():
    told = "".join(path.read_text() for path in (ROOT / "README.md", *DOCS.rglob("*.md")))
    helps = "".join(path.read_text() for path in (ROOT / "tests/golden").glob("help-*.txt"))
    options = re.findall(r"^  (?:(-\w), )?(--[a-z-]+)", helps, re.MULTILINE)
    lacking = {long for short, long in options if not re.search(rf"(?<![\w-])({short or long}|{long})\b", told)}
    assert not lacking, f"docs/: tell of {sorted(lacking)} on the page that they belong to"


def test_the_page_of_axes_names_every_axis_and_its_default():
    defaults = {}
    for line in (ROOT / "docs/reference/axes.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            defaults[cells[0].strip("`")] = cells[1]
    lacking = [f"| `{name}` | {DEFAULTS[name]} | what it is |" for name in AXES if name not in defaults]
    assert not lacking, f"docs/reference/axes.md: write the rows {lacking}"
    assert set(defaults) == set(AXES), "docs/reference/axes.md has rows of axes that are gone"
    for name, both in defaults.items():
        said, _, on_cuda = both.partition("; on CUDA ")
        cuda = defaults_on("cuda", Machine(cores=2)).get(name)
        if name == "global_batch":
            assert on_cuda == "[by device](#defaults-by-device)"
        else:
            assert on_cuda.strip("`") == ("" if cuda is None else str(cuda))
        if name == BATCH_PER_RANK:
            assert said == ""
        elif said.startswith("`"):  # a text, or the name that None has on the command line
            assert parse_axis(name, said.split("`")[1]) == (DEFAULTS[name],)
        else:
            assert parse_axis(name, said) == (DEFAULTS[name],)


def test_the_page_of_the_report_tells_how_to_read_each_tab() -> None:
    told = re.findall(r"^\| ([\w ]+) \| .*\? \| .* \|$", (DOCS / "how-to/report.md").read_text(), re.MULTILINE)
    assert told == [title for title, _ in TABS.values()], "docs/how-to/report.md: give each tab its row"
