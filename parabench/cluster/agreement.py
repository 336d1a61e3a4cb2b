"""Check that all nodes of a session have the same software, suite, options and custom code, and read the secret."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import stat
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from parabench import __version__
from parabench.collectives import ALGORITHMS
from parabench.errors import UsageError
from parabench.launch.processes import SECRET
from parabench.machine.versions import installed
from parabench.models import MODELS
from parabench.registry import Entry, find
from parabench.strategies import STRATEGIES

# The axes whose values may also name custom code, with their built-in values.
TABLES: dict[str, Mapping[str, Entry]] = {"strategy": STRATEGIES, "algorithm": ALGORITHMS, "model": MODELS}
# The number of letters of a fingerprint that are shown.
SHOWN = 12
ABSENT = "is not here"

# The variable SECRET may hold the secret, and this variable the path of its file. The command line may not hold the
# secret, because every user of a machine can read it.
SECRET_FILE = f"{SECRET}_FILE"
# 128 bits.
LEAST_BYTES = 16


def facts_of(options: Sequence[str], suite: Path | None, **more: str) -> dict[str, str | None]:
    """Return {name: value} of this node's software, the suite's file, the `options` as typed, and `more`.

    parabench's version has a fingerprint of its source, because two checkouts may have the same version.
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
        **more,
        **({f"suite file {suite.name}": _fingerprint(suite)} if suite else {}),
        "options": shlex.join(options) or None,
    }


def user_code(cases: Iterable[Any]) -> list[str]:
    """Return the names of the custom strategies, algorithms and models of the cases, as `package.module:name`."""
    named = dict.fromkeys((axis, getattr(case, axis, None)) for case in cases for axis in TABLES)
    own = [(axis, name) for axis, name in named if name and ":" in name and not name.startswith("nccl:")]
    return [name for axis, name in own if find(TABLES[axis], axis, name) is None]


def code_facts(names: Iterable[str]) -> dict[str, str]:
    """Return {name: fingerprint of its file} for names of custom code, as `package.module:name`."""
    found = {}
    for name in names:
        try:
            spec = importlib.util.find_spec(name.partition(":")[0])
            found[name] = _fingerprint(Path(spec.origin)) if spec and spec.origin else ABSENT
        except (ImportError, OSError, ValueError):
            found[name] = ABSENT
    return found


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:SHOWN]


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the differences of a node from node 0 as text: "torch 2.11.0, and node 0 has 2.13.0"."""
    names = [name for name in dict.fromkeys([*mine, *theirs]) if mine.get(name) != theirs.get(name)]
    return [f"{name} {theirs.get(name) or 'none'}, and node 0 has {mine.get(name) or 'none'}" for name in names]


def read_secret(path: str | None, environ: MutableMapping[str, str] = os.environ) -> bytes | None:
    """Return the secret from the file `path`, the variable SECRET or the file in SECRET_FILE; `None` without one.

    SECRET is removed from the environment, so that later processes do not have it. White space, which editors add, is
    removed from the secret. Raises UsageError.
    """
    value, path = environ.pop(SECRET, None), path or environ.get(SECRET_FILE)
    if value is not None and path is not None:
        raise UsageError(f"a secret is given twice, in {SECRET} and as the file {path}; give it once")
    if value is None and path is None:
        return None
    content = _private(Path(path)) if path is not None else str(value).encode(errors="surrogateescape")
    key = content.strip()
    if len(key) < LEAST_BYTES:
        found = f"has {len(key)} bytes, and {LEAST_BYTES} are the least" if key else "is empty"
        remedy = "make one with: (umask 077; openssl rand -hex 32 > FILE)"
        raise UsageError(f"the secret in {path or SECRET} {found}; {remedy}")
    return key


def _private(path: Path) -> bytes:
    """Return the content of a file. Raises UsageError if users other than the owner can read it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (os.geteuid(), 0):
                raise UsageError(f"{path} belongs to another user, who can read the secret; create another file")
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                mode = stat.S_IMODE(status.st_mode)
                raise UsageError(f"{path} can be read or changed by others (mode {mode:04o}); chmod 600 it")
            return file.read()
    except OSError as error:
        raise UsageError(f"the secret in {path} cannot be read: {error.strerror or error}") from error
