"""Run suites under pytest with pytest-benchmark: `pytest suites/ --benchmark-json=out.json`.

A suite is a Python file that imports from parabench and declares CASES. `suite_file` collects and measures it. Every
pytest run in the environment loads this module, so it imports nothing else of parabench before there is a suite.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from parabench.records import Declared

# The statements of a suite, in this order, each at the start of a line.
_SUITE = re.compile(r"^from parabench import\b.*?^CASES\s*[:=]", re.MULTILINE | re.DOTALL)
# The content of strings over several lines is not a statement.
_TEXT = re.compile(r"('''|\"\"\").*?\1", re.DOTALL)

# The help of --rounds under pytest, where configurations are not raced by default.
ROUNDS = "interleaved rounds of the configurations that share a launch (default: 0: each has its own launches)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `parabench run`."""
    group = parser.getgroup("parabench", "distributed training suites")
    group.addoption(
        "--parabench-out", default="parabench-results", metavar="DIR", help="for results.db and report.html"
    )
    for each in launch_options().values():
        more: dict[str, Any] = {"action": "store_true", "default": None}
        if each.type is not bool:
            more = {"type": each.type, "metavar": each.field.metavar or each.type.__name__.upper()}
        text = ROUNDS if each.field.option == "--rounds" else each.field.help
        group.addoption(option_of(each), help=text.replace("%", "%%"), **more)
    group.addoption("--parabench-set", action="append", default=[], metavar="AXIS=V1,V2", help="values for an axis")


def launch_options() -> dict[str, Declared]:
    """Return the options of `parabench run` that apply under pytest, by field. Traces and racing are left out."""
    from parabench.plan.fields import option_fields
    from parabench.plan.protocol import Protocol

    return {name: each for name, each in option_fields(Protocol).items() if not each.field.role or name == "rounds"}


def option_of(each: Declared) -> str:
    """Return the name of an option under pytest, such as `--parabench-steps`."""
    return f"--parabench-{each.field.option.removeprefix('--')}"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect suite files. Ordinary test modules are left to pytest."""
    if any(fnmatch(file_path.name, pattern) for pattern in parent.config.getini("python_files")):
        return None
    if file_path.suffix != ".py":
        return None
    if not _SUITE.search(_TEXT.sub("", file_path.read_text(encoding="utf-8", errors="replace"))):
        return None
    from parabench.pytest_plugin.suite_file import SuiteFile

    collector: pytest.Collector = SuiteFile.from_parent(parent, path=file_path)
    return collector
