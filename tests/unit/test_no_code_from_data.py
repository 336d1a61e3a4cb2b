"""No call in the source executes data: none evaluates code, starts a shell, or unpickles.

EXCEPTIONS lists the exceptions with their reasons. tests/process/test_nothing_unpickled.py tests what torch does
between ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paths import ROOT

ROOMS = ("parabench", "suites", "reports", "benchmarks", "docs", "examples")

# What is imported for nothing but to read, or run, what somebody wrote as code.
MODULES = {
    "_pickle", "cloudpickle", "code", "dill", "imp", "jsonpickle", "joblib", "marshal", "pickle", "runpy", "shelve",
    "xmlrpc", "yaml",
}  # fmt: skip
# Built-in functions, by the bare name.
BUILTINS = {"eval", "exec", "compile", "__import__"}
# By the last name of a call, whatever it is called on.
CALLS = {
    "exec_module", "execfile", "getoutput", "getstatusoutput",
    "import_module", "load_module", "mktemp", "popen", "read_pickle", "run_module", "run_path",
    "spec_from_file_location", "system", "unsafe_load",
    # c10d's collectives of objects, which pickle.
    "all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list", "scatter_object_list",
    "send_object_list",
    # multiprocessing's channels of objects, which pickle.
    "JoinableQueue", "Manager", "Pool", "Queue", "SimpleQueue",
}  # fmt: skip
# The following names are allowed on other objects: queues of threads pass objects without pickling.
HARMLESS = {"SimpleQueue": {"queue"}, "Queue": {"queue"}, "system": {"times", "platform"}}
# `name.load(...)` of these.
LOADERS = {
    "torch", "jit", "hub", "export", "np", "numpy", "cloudpickle", "pickle", "joblib", "marshal", "yaml", "shelve",
}  # fmt: skip
HOOKS = {"__reduce__", "__reduce_ex__", "__setstate__", "__getstate__"}

# {file: {what was found: why it may be}}.
EXCEPTIONS = {
    "parabench/imports/flight_recorder.py": {
        "import pickle": "dumps of the flight recorder; `find_class` and `persistent_load` raise, which "
        "tests/unit/imports/test_flight_recorder.py holds",
    },
    "parabench/registry.py": {
        "import_module": "a strategy, algorithm, model or data source that the user names; reading a store loads none",
    },
    "parabench/cli.py": {"import_module": "one of our own commands, by a name of our own list"},
    "parabench/__init__.py": {"import_module": "one of our own modules, by a name of our own list"},
    "parabench/launch/preload.py": {"import_module": "the modules of our own tables, before any user is heard"},
    "parabench/plan/suite.py": {
        "import runpy": "a suite is a Python file that the user names, as pytest runs a test",
        "run_path": "a suite is a Python file that the user names, as pytest runs a test",
    },
    "parabench/probes/ddp.py": {
        "__reduce__": "of a hook on a user's model, which the user may copy or save: it puts nothing of ours in there",
    },
    "benchmarks/gpu/machine.py": {
        "SimpleQueue": "answers of its own child processes, over their own pipe, in a benchmark that is not installed",
    },
}


def found(source: str) -> Iterator[tuple[str, int]]:
    """What of the above a source has, with its line."""
    tree = ast.parse(source)
    # A field of a case is called `compile`. A name with an assigned value is not the built-in.
    own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((f"import {n.name}", node.lineno) for n in node.names if n.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")[0]
            if module in MODULES and not node.level:
                yield f"import {module}", node.lineno
            # Under another name a call would not be seen.
            yield from ((n.name, node.lineno) for n in node.names if n.name in CALLS and module != "queue")
        elif isinstance(node, ast.FunctionDef) and node.name in HOOKS:
            yield node.name, node.lineno
        elif isinstance(node, ast.Name) and node.id in BUILTINS and node.id not in own:
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            base = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", None)
            if node.attr in CALLS and base not in HARMLESS.get(node.attr, set()):
                yield node.attr, node.lineno
            if node.attr in ("load", "loads") and base in LOADERS:
                yield f"{base}.{node.attr}", node.lineno
            if base in ("builtins", "__builtins__") and node.attr in BUILTINS:
                yield node.attr, node.lineno
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                false = isinstance(keyword.value, ast.Constant) and not keyword.value.value
                if keyword.arg in ("shell", "allow_pickle") and not false:
                    yield f"{keyword.arg}=", node.lineno
                if keyword.arg == "weights_only" and false:
                    yield "weights_only=False", node.lineno


def sources() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py") if path.is_file()
    )


def test_no_call_makes_code_of_data() -> None:
    assert len(sources()) > 200
    seen: dict[str, set[str]] = {}
    wrong = []
    for name in sources():
        for what, line in found((ROOT / name).read_text()):
            seen.setdefault(name, set()).add(what)
            if what not in EXCEPTIONS.get(name, {}):
                wrong.append(f"{name}:{line}: {what}")
    assert wrong == []
    assert seen == {name: set(excepted) for name, excepted in EXCEPTIONS.items()}, "an exception that nothing needs"


def test_source_has_no_multiprocessing_connection() -> None:
    """Its `recv` unpickles. `wait` does not."""
    for name in sources():
        tree = ast.parse((ROOT / name).read_text())
        imported = {
            each.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("multiprocessing")
            for each in node.names
        }
        piped = any(isinstance(node, ast.Attribute) and node.attr == "Pipe" for node in ast.walk(tree))
        assert not piped, name
        assert not imported & {"Pipe", "Connection", "Client", "Listener"}, name
