"""Licenses of the dependencies, and reproducible wheels."""

import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement

from benchmarks import supply
from paths import ROOT

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_needed_has_indirect_dependencies_and_no_tools():
    names = {package.name.lower() for package in supply.needed()}
    assert {Requirement(need).name for need in DECLARED["dependencies"]} <= names
    assert {"markupsafe", "narwhals", "sympy"} <= names
    assert not names & {"ruff", "mypy", "tiktoken", "parabench"}


def test_license_of_each_needed_package_is_allowed():
    refused = {package.name: supply.licence(package) for package in supply.needed() if not supply.allowed(package)}
    assert refused == {}


@pytest.mark.slow  # builds two wheels
def test_two_checkouts_of_a_commit_build_the_same_wheel():
    done = subprocess.run([ROOT / ".ci/reproducible"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "two checkouts give the same bytes" in done.stdout
