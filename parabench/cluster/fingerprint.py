"""What must be equal on all nodes before anything is launched: software, suite, options, and code of one's own."""

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

# Where an axis' names are looked up that may also be a user's own.
TABLES: dict[str, Mapping[str, Entry]] = {"strategy": STRATEGIES, "algorithm": ALGORITHMS, "model": MODELS}

SHOWN = 12

ABSENT = "is not here"


def facts_of(options: Sequence[str], suite: Path | None, **more: str) -> dict[str, str | None]:
    """{what: how it is here} of everything that must be equal on all nodes: the software, the file of the `suite`, the
    `options` that decide what is measured, as they are typed, and `more`."""
    file = {f"suite file {suite.name}": of_file(suite)} if suite else {}
    return {**software(), **more, **file, "options": shlex.join(options) or None}


def software() -> dict[str, str | None]:
    """{what: version} of this node. parabench's has the fingerprint of its source: two checkouts may claim to be one
    version."""
    versions, _ = installed()
    return {
        "parabench": f"{__version__} (source {_source()})",
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": versions["torch"],
        "CUDA": versions["cuda"],
        "NCCL": versions["nccl"],
    }


def of_file(path: Path) -> str:
    """The fingerprint of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:SHOWN]


def of_own(names: Iterable[str]) -> dict[str, str]:
    """{name: fingerprint} of the files that a user's own `package.module:name` come from."""
    return {name: _own(name) for name in names}


def user_code(cases: Iterable[Any]) -> list[str]:
    """What of the cases' strategies, algorithms and models is a user's own."""
    named = dict.fromkeys((axis, getattr(case, axis, None)) for case in cases for axis in TABLES)
    return [name for axis, name in named if name and ":" in name and name not in TABLES[axis] and _is_own(axis, name)]


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What differs, in words: "torch 2.11.0, and node 0 has 2.13.0"."""
    said = []
    for name in dict.fromkeys([*mine, *theirs]):
        ours, other = mine.get(name), theirs.get(name)
        if ours != other:
            said.append(f"{name} {_shown(other)}, and node 0 has {_shown(ours)}")
    return said


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _source() -> str:
    """The fingerprint of parabench's own source."""
    root = Path(__file__).parent.parent
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        whole.update(str(path.relative_to(root)).encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()[:SHOWN]


def _own(name: str) -> str:
    try:
        spec = importlib.util.find_spec(name.partition(":")[0])
        return of_file(Path(spec.origin)) if spec and spec.origin else ABSENT
    except (ImportError, OSError, ValueError):
        return ABSENT


def _is_own(kind: str, name: str) -> bool:
    # NCCL's own algorithms have a colon too.
    return not name.startswith("nccl:") and find({}, kind, name) is None
