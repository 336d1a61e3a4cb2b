"""Content of the site that is not in docs/: lists generated from code, and files that pages link to."""

import re

import click

from command_line import command_of
from docs.site import from_code, repository
from parabench.cli import COMMANDS
from parabench.metrics import METRICS
from parabench.plan.suite import AXES
from parabench.store.database import TABLES
from paths import DOCS


def test_every_place_has_its_list_and_every_list_its_place() -> None:
    asked = [name for page in DOCS.rglob("*.md") for name in from_code.PLACE.findall(page.read_text())]
    assert sorted(asked) == sorted([*from_code.PARTS, "run of this site"])


def test_every_option_of_every_command_is_listed_with_its_help() -> None:
    sections = dict(zip(COMMANDS, re.split(r"^### .*\n", from_code.options(), flags=re.MULTILINE)[1:], strict=True))
    for name, said in sections.items():
        command = command_of(name)
        assert command is not None
        for option in (each for each in command.params if isinstance(each, click.Option) and not each.hidden):
            assert f"`{option.opts[0]}" in said or f", {option.opts[0]}" in said, (name, option.opts)
            assert from_code.plain(option.help or "") in said, (name, option.opts)


def test_every_command_has_its_row() -> None:
    told = re.findall(r"^\| `(\w+)[^|]*` \|", (DOCS / "reference/commands.md").read_text(), re.MULTILINE)
    assert {*told} - {"pytest"} == {*COMMANDS}, "docs/reference/commands.md: give each command its row"


def test_every_column_and_metric_is_listed() -> None:
    sections = dict(zip(TABLES, from_code.columns().split("### ")[1:], strict=True))
    for name, columns in TABLES.items():
        listed = re.findall(r"^\| `(\w+)` \| (?:INTEGER|REAL|TEXT|BLOB) \|", sections[name], re.MULTILINE)
        assert listed == ["id"] * (name in ("session", "launch")) + [*columns]
    assert "| `traceback` | TEXT | yes |" in sections["launch"]
    assert re.findall(r"^\| `(\w+)`", from_code.metrics(), re.MULTILINE) == [*METRICS]


def test_every_axis_is_listed_with_what_it_takes() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", from_code.axes(), re.MULTILINE))
    assert list(told) == list(AXES)
    assert told["split"] == "`batch`, `sample`, `dimension` | all"
    assert told["threads"] == "a whole number from 1 to 1024 | all"
    assert (
        told["tp_size"]
        == "a whole number of 1 or more, or auto; `world_size` is a multiple of it | `tp_ddp`, `tp_fsdp`"
    )
    assert told["bucket_mib"].startswith("a number above 0 and at most 1048576, or default; several, joined by `+`")


def test_a_key_of_the_json_says_what_it_is() -> None:
    told = from_code.schemas()
    assert '| `verdict` | `"inconclusive"`, `"no regression"`, `"regression"` | The verdict.' in told
    assert "| `series` | array of [series](#history-series) |" in told
    assert "### series { #history-series }" in told
    assert "| `label` | string or null |" in told


def test_links_out_of_docs_lead_to_files_of_the_site() -> None:
    text = "[a.py](../../examples/own_model.py) [ci.md](ci.md#x) [c](../../README.md#limits) [d](https://e.org) [g](#h)"
    assert repository.relinked(text, "docs/how-to/ab.md") == (
        "[a.py](../repository/examples/own_model.py.md) [ci](ci.md#x) [c](../repository/README.md#limits) "
        "[d](https://e.org) [g](#h)"
    )
    back = repository.relinked("[a](docs/how-to/ci.md) [b](docs/pictures/report.png) [c](SECURITY.md)", "README.md")
    assert back == "[a](../how-to/ci.md) [b](../pictures/report.png) [c](SECURITY.md)"
