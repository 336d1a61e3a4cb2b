"""What parabench brings with it: licences, known vulnerabilities, and whether each dependency earns its place."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement

from benchmarks import supply
from paths import ROOT

# An import and a use, twice: what is used on one line alone is better written here.
FEWEST_LINES = 4
# What no module needs to import.
PLUGINS = {"pytest-benchmark": "suites take its fixture, which pytest finds by itself"}

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lines_with(module: str, text: str) -> set[int]:
    """The lines of a program that import a module or use what they import of it."""
    if not re.search(rf"^\s*(import|from) {module}\b", text, re.M):  # a hundredth of what it takes to parse it
        return set()
    found, names = set(), set()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        imported = []
        if isinstance(node, ast.Import):
            imported = [each for each in node.names if each.name.partition(".")[0] == module]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == module and not node.level:
            imported = node.names
        if imported:
            found.add(node.lineno)
            names |= {(each.asname or each.name).partition(".")[0] for each in imported}
    used = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names)
    return found | {node.lineno for node in used}


@cache
def modules_of(name: str) -> set[str]:
    """The modules that an installed package brings, by what its record lists."""
    files = distribution(name).files or []
    first = {file.parts[0] for file in files if file.suffix == ".py" and ".." not in file.parts}
    return {part.removesuffix(".py") for part in first}


@cache
def source() -> tuple[str, ...]:
    return tuple(path.read_text() for folder in ("parabench", "suites") for path in (ROOT / folder).rglob("*.py"))


def test_lines_that_use_a_module_are_its_imports_and_what_they_bring():
    text = "import numpy as np\nfrom scipy import stats\nx = np.zeros(3)\ny = np.ones(\n    np.pi)\nnumpy = 3\n"
    assert lines_with("numpy", text) == {1, 3, 4, 5}
    assert lines_with("scipy", text) == {2}
    assert lines_with("torch", text) == set()


@pytest.mark.parametrize("need", DECLARED["dependencies"])
def test_no_dependency_is_there_for_one_line(need):
    name = Requirement(need).name
    if name in PLUGINS:
        taken = [text for text in source() if re.search(r"\bbenchmark\b", text)]
        assert len(taken) > 1, PLUGINS[name]
        return
    lines = sum(len(lines_with(module, text)) for module in modules_of(name) for text in source())
    assert lines >= FEWEST_LINES, f"{need} is there for {lines} lines"


def test_what_is_needed_to_run_is_known_with_what_that_needs():
    names = {of.name.lower() for of in supply.needed()}
    assert {Requirement(need).name for need in DECLARED["dependencies"]} <= names
    assert {"markupsafe", "sympy"} <= names
    assert not names & {"ruff", "mypy", "tiktoken", "parabench"}


def test_the_licence_of_each_package_that_is_needed_is_allowed():
    refused = {of.name: supply.licence(of) for of in supply.needed() if not supply.allowed(supply.licence(of))}
    assert {name: told for name, told in refused.items() if not supply.argued(name)} == {}


@pytest.mark.parametrize(("expression", "allowed"), [
    ("MIT", True),
    ("mit", True),
    ("MIT AND BSD-3-Clause AND 0BSD", True),
    ("MIT OR GPL-3.0-only", True),
    ("MIT AND GPL-3.0-only", False),
    ("MIT AND GPL-3.0-only OR ISC", True),
    ("MIT AND (ISC OR BSD-3-Clause)", True),
    ("MIT AND (GPL-3.0-only OR ISC)", False),
    ("Apache-2.0 WITH LLVM-exception AND MIT", True),
    ("GPL-2.0-only WITH LLVM-exception", False),
    ("AGPL-3.0-or-later", False),
    ("LicenseRef-Proprietary", False),
    ("some words", False),
    ("", False),
])  # fmt: skip
def test_a_licence_is_allowed_by_what_its_expression_means(expression, allowed):
    assert supply.allowed(expression) is allowed


class Told:
    """A package by what its metadata says."""

    def __init__(self, **fields):
        self.metadata = self
        self.fields = {name.replace("_", "-"): value for name, value in fields.items()}

    def get_all(self, name):
        return self.fields.get(name)


def test_a_licence_is_told_by_an_expression_else_by_classifiers_else_by_words():
    osi = "License :: OSI Approved :: "
    assert supply.licence(Told(License_Expression=["MIT"], Classifier=[osi + "BSD License"])) == "MIT"
    both = Told(Classifier=["Typing :: Typed", osi + "BSD License", osi + "MIT License"], License=["x"])
    assert supply.licence(both) == "BSD-3-Clause AND MIT"
    assert supply.licence(Told(Classifier=["License :: OSI Approved"], License=["MIT License\n\nPermission"])) == "MIT"
    assert supply.licence(Told()) == ""


def test_what_pypi_told_nothing_of_is_not_called_checked(capsys):
    click = {"name": "click", "version": "8.5.1"}
    torch = {"name": "torch", "version": "2.13.0", "vulns": [{"id": "PYSEC-1"}]}
    unknown = click | {"skip_reason": "not found"}
    assert supply.report([unknown]) == 0
    assert capsys.readouterr().out == "vulnerabilities: NOT CHECKED: PyPI told nothing of any of 1 packages\n"
    assert supply.report([unknown, torch]) == 1
    said = capsys.readouterr().out
    assert "VULNERABLE  torch 2.13.0: PYSEC-1" in said
    assert "1 of 2 packages checked; NOT CHECKED: click" in said
    assert supply.report([click | {"vulns": []}]) == 0
    assert capsys.readouterr().out == "vulnerabilities: 0 packages with known ones, 1 of 1 packages checked\n"


def test_an_audit_without_an_answer_is_no_audit(tmp_path, capsys):
    program = tmp_path / "pip-audit"
    program.write_text("#!/bin/sh\necho no route to host >&2\nexit 1\n")
    program.chmod(0o755)
    assert supply.vulnerabilities(str(program)) == 0
    assert "NOT CHECKED: pip-audit gave no answer: no route to host" in capsys.readouterr().out


@pytest.mark.slow  # two wheels, each built in an environment of its own
def test_two_checkouts_of_a_commit_give_the_same_wheel():
    import subprocess

    done = subprocess.run([ROOT / ".ci/reproducible"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "two checkouts give the same bytes" in done.stdout
