"""A checkout that is not installed, with the packages of a typical GPU machine and no others."""

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

from parabench.errors import PACKAGES
from paths import ROOT
from process_helpers import COMMANDS

# Their dependencies are added. plotly and the packages of the tests are missing.
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


def test_checkout_measures_and_answers_from_another_folder(checkout: Path, tmp_path: Path) -> None:
    """The checkout is on PYTHONPATH."""
    lines = ["list", "run tiny --out out", "best out", "history out --html history.html", "report out"]
    lines += ["collectives --dry-run"]
    words = json.dumps([line.split() for line in lines])
    done = python(checkout, "-c", COMMANDS, words, where=str(tmp_path), PYTHONPATH=str(checkout))
    output = done.stdout + done.stderr
    codes = [line for line in output.splitlines() if line.startswith("exit code")]
    assert codes == [f"exit code 0: {line.split()[0]}" for line in lines], output
    assert "Does a checkout measure?" in output  # the additional suite in the list
    assert "Does a checkout measure?" in (tmp_path / "out" / "report.html").read_text()


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
