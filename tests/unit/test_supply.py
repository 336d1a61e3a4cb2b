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


@pytest.mark.slow  # two wheels, each built in an environment of its own
def test_two_checkouts_of_a_commit_give_the_same_wheel():
    import subprocess

    done = subprocess.run([ROOT / ".ci/reproducible"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "two checkouts give the same bytes" in done.stdout
