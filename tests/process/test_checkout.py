"""A checkout that is not installed, with the packages of a typical GPU machine and no others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import fake_results as fake
from parabench.analysis.stats.change_point import FEWEST_SESSIONS
from parabench.errors import PACKAGES
from paths import ROOT
from process_helpers import COMMANDS

# With what they require. Not among them: plotly, and everything that only the tests need.
TYPICAL = (
    "torch", "numpy", "pandas", "scipy", "click", "rich", "jinja2", "psutil", "pytest-benchmark", "nvidia-ml-py",
    "msgspec",  # to be brought along (docs/how-to/gpu.md)
)  # fmt: skip

TINY = '''"""Does a checkout measure?"""
from parabench import Protocol, sweep
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=0)
CASES = sweep(strategy="ddp", world_size=2, global_batch=2, seq_len=8, data="synthetic")
'''


def required(names: tuple[str, ...]) -> set[str]:
    """Return the names of these distributions and of all that they require here."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        try:
            needs = [] if name in found else distribution(name).requires or []
        except PackageNotFoundError:  # torch's CPU build lacks the CUDA libraries
            continue
        found.add(name)
        parsed = map(Requirement, needs)
        left += [each.name for each in parsed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkout with an additional suite, and `python/`: a virtual environment that lacks parabench."""
    folder = tmp_path_factory.mktemp("machine")
    shutil.copytree(ROOT / "suites", folder / "suites")
    (folder / "suites" / "tiny.py").write_text(TINY)
    for name in ("parabench", "reports", "benchmarks", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    venv.create(folder / "python", symlinks=True)
    (packages,) = (folder / "python" / "lib").glob("python*/site-packages")
    for name in required(TYPICAL):
        files = distribution(name)
        for top in {path.parts[0] for path in files.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(files.locate_file(top))))
    return folder


def python(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the Python that lacks parabench, in the checkout, or elsewhere with the checkout on PYTHONPATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    where = Path(variables.pop("where", str(checkout)))
    command = [str(checkout / "python" / "bin" / "python"), *arguments]
    return subprocess.run(command, cwd=where, env=kept | variables, capture_output=True, text=True, check=False)


def commands(checkout: Path, *lines: str, **variables: str) -> str:
    """Run these commands of parabench one after the other, and return their output."""
    done = python(checkout, "-c", COMMANDS, json.dumps([line.split() for line in lines]), **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with enough sessions of a case for a change point."""
    path = tmp_path_factory.mktemp("nightly") / "results.db"
    for night in range(FEWEST_SESSIONS):
        fake.write(
            path,
            [fake.launch(fake.case(), 0.04, repetition=repetition) for repetition in range(3)],
            label=f"night-{night}",
        )
    return path


def test_checkout_answers_from_another_folder(checkout: Path, nightly: Path, tmp_path: Path) -> None:
    """The checkout is on PYTHONPATH."""
    page, report = tmp_path / "history.html", tmp_path / "report.html"
    output = commands(
        checkout,
        "list",
        "run quick --dry-run",
        f"history {nightly} --html {page}",
        f"report {nightly} -o {report}",
        f"best {nightly}",
        "collectives --dry-run",
        where=str(tmp_path),
        PYTHONPATH=str(checkout),
    )
    assert [line for line in output.splitlines() if line.startswith("exit code")] == [
        f"exit code 0: {name}" for name in ("list", "run", "history", "report", "best", "collectives")
    ], output
    assert "Does a checkout measure?" in output  # the additional suite
    assert "0 of 1 configuration changed, 1 did not" in output


def test_command_names_missing_package_and_remedy(checkout: Path) -> None:
    done = python(checkout, "-S", "-m", "parabench", "list")  # without site-packages
    line = "parabench: this command needs click, which is not installed: pip install click\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_packages_are_the_dependencies_of_parabench() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {Requirement(each).name for each in listed} == set(PACKAGES.values())


def test_plugin_entry_point_has_the_name_of_the_module() -> None:
    """Otherwise `-p parabench.pytest_plugin` would register the plugin of an installed copy twice."""
    plugins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert plugins == {"parabench.pytest_plugin": "parabench.pytest_plugin"}


def test_checkout_measures_and_reports(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = python(checkout, "-m", "parabench", "run", "tiny", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Does a checkout measure?" in (out / "report.html").read_text()
