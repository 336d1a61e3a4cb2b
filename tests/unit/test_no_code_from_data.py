"""No call in the source executes data: none evaluates code, starts a shell, or unpickles.

EXCEPTIONS lists the exceptions with their reasons. tests/process/test_nothing_unpickled.py tests the messages of torch
between ranks.
"""

import ast
from collections.abc import Iterator

from paths import ROOT

FOLDERS = ("parabench", "suites", "reports", "benchmarks", "docs", "examples")

# Modules that execute data, or read it as code.
MODULES = {
    "_pickle", "cloudpickle", "code", "dill", "imp", "jsonpickle", "joblib", "marshal", "pickle", "runpy", "shelve",
    "xmlrpc", "yaml",
}  # fmt: skip
BUILTINS = {"eval", "exec", "compile", "__import__"}
# Functions and methods by their last name: imports of code, shells, c10d's collectives of objects, and the channels of
# multiprocessing, which pickle objects.
CALLS = {
    "exec_module", "execfile", "getoutput", "getstatusoutput", "import_module", "load_module", "mktemp", "popen",
    "read_pickle", "run_module", "run_path", "spec_from_file_location", "system", "unsafe_load",
    "all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list", "scatter_object_list",
    "send_object_list", "Client", "JoinableQueue", "Listener", "Manager", "Pipe", "Pool", "Queue", "SimpleQueue",
}  # fmt: skip
# Objects on which these names are allowed: queues of threads pass objects without pickling.
HARMLESS = {"SimpleQueue": {"queue"}, "Queue": {"queue"}, "system": {"times", "platform"}}
# `name.load(...)` and `name.loads(...)` of these unpickle.
LOADERS = MODULES | {"torch", "jit", "hub", "export", "np", "numpy"}
HOOKS = {"__reduce__", "__reduce_ex__", "__setstate__", "__getstate__"}

# {file: {finding: reason}}
EXCEPTIONS = {
    "parabench/imports/flight_recorder.py": {
        "pickle": "dumps of the flight recorder; `find_class` and `persistent_load` raise, which "
        "tests/unit/imports/test_flight_recorder.py tests",
    },
    "parabench/registry.py": {
        "import_module": "a strategy, algorithm, model or data source that the user names; databases name none",
    },
    "parabench/cli.py": {"import_module": "one of our own commands, by a name in our own list"},
    "parabench/__init__.py": {"import_module": "one of our own modules, by a name in our own list"},
    "parabench/launch/preload.py": {"import_module": "the modules of our own tables"},
    "parabench/plan/suite.py": {
        "runpy": "a suite is a Python file that the user names, as pytest runs a test",
        "run_path": "a suite is a Python file that the user names, as pytest runs a test",
    },
    "parabench/probes/ddp.py": {"__reduce__": "a hook on a user's model, which the user may copy; it pickles nothing"},
    "benchmarks/gpu/machine.py": {"SimpleQueue": "answers of the benchmark's own child processes"},
}


def findings(source: str) -> Iterator[tuple[str, int]]:
    """Yield the forbidden names in a source with their lines."""
    tree = ast.parse(source)
    # A name with an assigned value, such as a field called `compile`, is not the built-in.
    own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name, node.lineno) for each in node.names if each.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")[0]
            if module in MODULES and not node.level:
                yield module, node.lineno
            # With another name, a call would not be detected.
            yield from ((each.name, node.lineno) for each in node.names if each.name in CALLS and module != "queue")
        elif isinstance(node, ast.FunctionDef) and node.name in HOOKS:
            yield node.name, node.lineno
        elif isinstance(node, ast.Name) and node.id in BUILTINS - own:
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            base = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", None)
            called = node.attr in CALLS and base not in HARMLESS.get(node.attr, set())
            if called or (node.attr in ("load", "loads") and base in LOADERS) or base in ("builtins", "__builtins__"):
                yield node.attr, node.lineno
        elif isinstance(node, ast.keyword):
            off = isinstance(node.value, ast.Constant) and not node.value.value
            if (node.arg in ("shell", "allow_pickle") and not off) or (node.arg == "weights_only" and off):
                yield f"{node.arg}=", node.value.lineno


def test_no_call_executes_data() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 200
    seen: dict[str, set[str]] = {}
    wrong = []
    for path in paths:
        name = str(path.relative_to(ROOT))
        for what, line in findings(path.read_text()):
            seen.setdefault(name, set()).add(what)
            if what not in EXCEPTIONS.get(name, {}):
                wrong.append(f"{name}:{line}: {what}")
    assert wrong == []
    assert seen == {name: set(excepted) for name, excepted in EXCEPTIONS.items()}, "an exception that is not needed"
