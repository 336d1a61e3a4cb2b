"""Facts that must be equal on all nodes before the first launch: software, suite, options, and the user's own code."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parabench import __version__
from parabench.collectives import ALGORITHMS
from parabench.machine.versions import installed
from parabench.models import MODELS
from parabench.registry import Entry, find
from parabench.strategies import STRATEGIES

# The axes whose values may also name a user's own code, with the known values.
TABLES: dict[str, Mapping[str, Entry]] = {"strategy": STRATEGIES, "algorithm": ALGORITHMS, "model": MODELS}

SHOWN = 12

ABSENT = "is not here"


def facts_of(options: Sequence[str], suite: Path | None, **more: str) -> dict[str, str | None]:
    """Return {name: value} of this node's software, the suite's file, the `options` as typed, and `more`."""
    file = {f"suite file {suite.name}": of_file(suite)} if suite else {}
    return {**software(), **more, **file, "options": shlex.join(options) or None}


def software() -> dict[str, str | None]:
    """Return {name: version} of this node.

    parabench's has a fingerprint of its source, because two checkouts may claim to be one version.
    """
    versions, _ = installed()
    root, source = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        source.update(str(path.relative_to(root)).encode())
        source.update(path.read_bytes())
    return {
        "parabench": f"{__version__} (source {source.hexdigest()[:SHOWN]})",
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": versions["torch"],
        "CUDA": versions["cuda"],
        "NCCL": versions["nccl"],
    }


def of_file(path: Path) -> str:
    """Return the fingerprint of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:SHOWN]


def of_own(names: Iterable[str]) -> dict[str, str]:
    """Return {name: fingerprint} of the files that define a user's own `package.module:name`."""
    return {name: _own(name) for name in names}


def user_code(cases: Iterable[Any]) -> list[str]:
    """Return the strategies, algorithms and models of the cases that are a user's own."""
    named = dict.fromkeys((axis, getattr(case, axis, None)) for case in cases for axis in TABLES)
    own = [(axis, name) for axis, name in named if name and ":" in name and not name.startswith("nccl:")]
    return [name for axis, name in own if find(TABLES[axis], axis, name) is None]


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the differences in words: "torch 2.11.0, and node 0 has 2.13.0"."""
    names = [name for name in dict.fromkeys([*mine, *theirs]) if mine.get(name) != theirs.get(name)]
    return [f"{name} {theirs.get(name) or 'none'}, and node 0 has {mine.get(name) or 'none'}" for name in names]


def _own(name: str) -> str:
    try:
        spec = importlib.util.find_spec(name.partition(":")[0])
        return of_file(Path(spec.origin)) if spec and spec.origin else ABSENT
    except (ImportError, OSError, ValueError):
        return ABSENT
