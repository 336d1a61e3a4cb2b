"""What parabench brings with it: licences, known vulnerabilities, and whether each dependency earns its place."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement

from benchmarks import supply
from paths import ROOT

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_what_is_needed_to_run_is_known_with_what_that_needs():
    names = {of.name.lower() for of in supply.needed()}
    assert {Requirement(need).name for need in DECLARED["dependencies"]} <= names
    assert {"markupsafe", "narwhals", "sympy"} <= names
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


@pytest.mark.slow  # two wheels, each built in an environment of its own
def test_two_checkouts_of_a_commit_give_the_same_wheel():
    import subprocess

    done = subprocess.run([ROOT / ".ci/reproducible"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "two checkouts give the same bytes" in done.stdout
