"""The import rule: the measuring and the reading wing never meet, and reading needs no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import parabench

ROOT = Path(parabench.__file__).parent
EVERYONES = {
    "__init__", "averaging", "axes", "case", "collective_case", "collective_modes", "family", "record", "registry",
    "precision", "errors", "interrupt", "peaks", "whole_file", "scratch", "nccl_names", "lifeline", "protocol",
}  # fmt: skip
READING = {"store", "results", "digest", "schema", "analysis", "live", "pages", "report", "trace"}
MEASURING = {
    "collectives", "strategies", "models", "data", "probes", "trainer", "worker", "launcher", "rows", "ranks",
    "preload", "rank", "collective_launcher", "collective_options", "plan", "settle", "rules", "suite", "session",
    "verify", "machine", "hardware", "gpus", "provenance", "cluster", "part", "judgement", "together", "venue",
    "courses", "links", "spread", "nccl_pins", "nccl_version", "pace", "stuck", "defaults", "gpu_checks",
}  # fmt: skip
SEE_BOTH = {
    "cli",
    "commands",
    "run",
    "opened",
    "collectives_run",
    "pytest_gate",
    "pytest_plugin",
    "__main__",
    "doctor",
    "listing",
    "progress",
    "until",
    "walking",
    "linking",
    "ab",
    "ab_plan",
    "ab_verdict",
    "setting",
    "side",
    "side_process",
}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        found |= {room(name) for name in names if name.split(".")[0] == "parabench" and "." in name}
    return found


def modules() -> dict[str, set[str]]:
    rooms: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        relative = path.relative_to(ROOT)
        rooms.setdefault(relative.parts[0].removesuffix(".py"), set()).update(imports(path))
    return rooms


def test_every_package_is_shipped():
    shipped = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {".".join(path.parent.relative_to(ROOT.parent).parts) for path in ROOT.rglob("__init__.py")}
    assert there <= set(shipped)


def test_every_module_has_a_wing():
    assert set(modules()) == EVERYONES | READING | MEASURING | SEE_BOTH


def test_the_wings_never_import_each_other():
    for module, used in modules().items():
        # `preload` is no part of the flow: it names what the fork server imports.
        if module in READING:
            assert not used & (MEASURING | SEE_BOTH), module
        if module in MEASURING - {"preload"}:
            assert not used & (READING | SEE_BOTH), module
        if module in EVERYONES:
            assert used <= EVERYONES, module


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["list"],
        ["run", "--help"],
        ["collectives", "--help"],
        ["best", "--help"],
        ["serve", "--help"],
        ["doctor", "--help"],
    ],
)
def test_reading_commands_import_no_torch(command):
    code = (
        "import sys\nfrom parabench.cli import main\n"
        f"try:\n    main({command!r})\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules and 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    "module",
    [
        "parabench.report",
        "parabench.live.server",
        "parabench.trace",
        "parabench.analysis.gate.compare",
        "parabench.store",
        "parabench.run",
        "parabench.collectives_run",
    ],
)
def test_reading_modules_import_no_torch(module):
    subprocess.run([sys.executable, "-c", f"import sys, {module}; assert 'torch' not in sys.modules"], check=True)
