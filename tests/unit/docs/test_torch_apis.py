"""The private and recent torch APIs of torch_apis.md: the installed torch has them, and no other one is used."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from parabench.machine.versions import numbers_of
from paths import ROOT

TABLE = Path(__file__).with_name("torch_apis.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`[^|]+`) \| ([\d.]+)(, CUDA builds)? \|", TABLE, re.MULTILINE)
APIS = [
    pytest.param(name, since, id=name)
    for names, since, of_cuda in ROWS
    for name in re.findall(r"`([\w.]+)`", names)
    if not of_cuda or torch.backends.cuda.is_built()
]

# Private names of Python, of click, of transformers, and of torch on the CPU alone.
OTHERS = {
    "_replace", "_fields", "_exit", "_forkserver", "_describe_range", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward", "_model_mapping",
}  # fmt: skip


def has(name: str) -> bool:
    """Return whether torch has an attribute, or a class sets it, or takes it as a parameter."""
    parts = name.split(".")
    at: Any = None
    for place in range(1, len(parts)):
        try:
            at = importlib.import_module(".".join(parts[:place]))
        except ModuleNotFoundError:
            break
    place = len(at.__name__.split("."))
    for part in parts[place:-1]:
        at = getattr(at, part)
    last = parts[-1]
    if hasattr(at, last):
        return True
    if not inspect.isclass(at):
        return False
    if re.search(rf"\b{last}\b", at.__init__.__doc__ or ""):  # the signature of a class in C++
        return True
    try:
        known = last in inspect.signature(at.__init__).parameters
        return known or re.search(rf"\bself\.{last}\b", inspect.getsource(at)) is not None
    except (TypeError, ValueError, OSError):  # a class in C++
        return False


@pytest.mark.parametrize(("name", "since"), APIS)
def test_installed_torch_has_each_documented_api(name: str, since: str) -> None:
    if (numbers_of(torch.__version__) or ()) < (numbers_of(since) or ()):
        pytest.skip(f"torch has it since {since}")
    assert has(name), f"torch {torch.__version__} has no {name}"


def private_uses() -> Iterator[tuple[str, str]]:
    """Yield each private attribute that the sources read and do not define, with its file."""
    trees = {path: ast.parse(path.read_text()) for folder in ("parabench", "benchmarks/gpu")
             for path in sorted((ROOT / folder).rglob("*.py"))}  # fmt: skip
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    own = set(OTHERS)
    for _, node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    for path, node in nodes:
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr) and node.attr not in own:
            yield node.attr, str(Path(path).relative_to(ROOT))


def test_each_private_torch_api_is_documented() -> None:
    documented = {part for names, *_ in ROWS for part in re.findall(r"\w+", names)}
    used = dict(private_uses())
    assert len(used) > 20
    assert {name: path for name, path in used.items() if name not in documented} == {}
