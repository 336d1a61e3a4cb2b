"""The import rules: imports go down ORDER, measuring and reading packages are separate, and reading needs no torch."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

import parabench

ROOT = Path(parabench.__file__).parent

# A module imports only from its package and from the packages above it in this list; a module of the root counts as
# a package. Packages on one line do not import each other. A name with a dot is a module with a separate place. Probes,
# for example, import `strategies.base` but no strategy. `tables` are the modules with the tables of extensions, which
# import no torch.
ORDER = (
    "errors",
    "registry machine.accelerator records",
    "files signals private metrics json_text",
    "store",
    "tables",
    "cases",
    "collectives models",
    "data",
    "machine",
    "plan",
    "strategies.base strategies.snippet",
    "probes analysis",
    "report",
    "strategies serve exporters imports notebook",
    "launch",
    "workloads",
    "cluster",
    "session",
    "ab watching",
    "commands",
    "cli pytest_plugin",
    "launch.preload __main__",
)
TABLES = {"collectives", "collectives.nccl", "data", "models", "strategies"}
# The definitions of a measurement, which most packages use. The rest of `plan` makes lists of launches from them.
CASES = {
    "plan.case", "plan.collective_case", "plan.collective_protocol", "plan.fields", "plan.links", "plan.protocol",
    "plan.schedule", "workloads",
}  # fmt: skip
APART = {word for layer in ORDER for word in layer.split() if "." in word}

# Measuring and reading packages do not import each other. Only `session` and packages below it in ORDER import both.
MEASURING = {
    "strategies", "strategies.base", "models", "collectives", "data", "probes", "launch", "workloads", "cluster",
}  # fmt: skip
READING = {"analysis", "report", "serve", "exporters", "notebook"}


def names() -> dict[str, Path]:
    """Return {module name below the package: path}."""
    paths = {path.relative_to(ROOT).with_suffix("").parts: path for path in ROOT.rglob("*.py")}
    return {".".join(parts).removesuffix("__init__").rstrip("."): path for parts, path in paths.items()}


def room(module: str) -> str:
    if module in TABLES:
        return "tables"
    if module in CASES:
        return "cases"
    return next((name for name in APART if f"{module}.".startswith(f"{name}.")), module.split(".")[0])


def imports(path: Path, known: Collection[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            each = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name.removeprefix("parabench.") in known else node.module or "" for name in each}
    return {name.removeprefix("parabench.") for name in found if name.startswith("parabench.")}


def arrows() -> Iterator[tuple[str, str]]:
    """Yield (importing module, imported module), including imports for types and imports in functions."""
    known = names()
    for module, path in known.items():
        if module:  # not the package itself
            yield from ((module, each) for each in imports(path, known))


def run_code(code: str) -> None:
    """Run Python code in a new process, which must succeed. `make measure` imports this module without fixtures."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_package_is_shipped() -> None:
    shipped = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {".".join(path.parent.relative_to(ROOT.parent).parts) for path in ROOT.rglob("__init__.py")}
    assert there <= set(shipped)


def test_imports_go_down_the_order_of_rooms() -> None:
    level = {name: at for at, layer in enumerate(ORDER) for name in layer.split()}
    assert {room(module) for module in names() if module} == set(level), "a room without a place in ORDER, or no room"
    up = {(a, b) for a, b in arrows() if room(a) != room(b) and level[room(b)] >= level[room(a)]}
    assert up == set()


def test_measuring_and_reading_do_not_meet() -> None:
    for module, imported in arrows():
        pair = {room(module), room(imported)}
        assert not (pair & MEASURING and pair & READING), (module, imported)


def test_reading_commands_import_neither_torch_nor_plotly() -> None:
    commands = ["--help", "list", *(f"{name} --help" for name in ("run", "collectives", "best", "serve", "doctor"))]
    commands += ["run quick --dry-run --nnodes 4 --nproc-per-node 8"]
    code = (
        "import sys\nfrom parabench.cli import main\n"
        f"for command in {commands}:\n"
        "    try:\n        main(command.split())\n"
        "    except SystemExit as end:\n        assert not end.code, (command, end.code)\n"
        "    assert not {'torch', 'plotly'} & {*sys.modules}, command\n"
        "    assert 'pandas' not in sys.modules or '--dry-run' in command, command"
    )
    run_code(code)


def test_reading_modules_import_neither_torch_nor_plotly() -> None:
    # A variant of `ab` (ab.agent) identifies itself, and refuses others, before it imports torch.
    modules = (
        "analysis.ranking.best", "report.build", "serve", "report.trace", "imports.into_store", "report.views.recorded",
        "analysis.compare.gate", "store.store", "notebook", "session.session", "session.dry_run", "ab.agent",
    )  # fmt: skip
    code = (
        "import importlib, sys\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(f'parabench.{module}')\n"
        "    assert not {'torch', 'plotly'} & {*sys.modules}, module\n"
        # scipy takes 0.2 s to import, and answers about one session do not need it.
        "    assert 'scipy' not in sys.modules or module not in ('analysis.ranking.best', 'report.build')"
    )
    run_code(code)


def test_launch_cost_benchmark_imports_no_pandas() -> None:
    # Every rank imports the driver's main module again, so the benchmark would measure this import as well.
    run_code("import benchmarks.launch_cost, sys; assert 'pandas' not in sys.modules")
