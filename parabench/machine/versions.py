"""Find the versions of packages, of the NCCL that ranks will load, and of the git repository. Nothing imports torch."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parabench.machine.host import facts

VERSIONS = ("torch", "triton", "numpy", "pandas", "scipy", "pytest-benchmark", "nvidia-ml-py")

# The wheels of NVIDIA's libraries, one for each major version of CUDA.
WHEELS = {name: (f"nvidia-{name}-cu13", f"nvidia-{name}-cu12") for name in ("nccl", "cudnn")}

# Since this version, several ranks may share a GPU if the variable is set ("Environment variables" of NCCL 2.30).
SHARED_GPU_SINCE = (2, 30)
SHARED_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"

# The limit for git in large repositories.
GIT_TIMEOUT_S = 5.0


def installed() -> tuple[dict[str, str | None], dict[str, str]]:
    """Return ({name: version}, {name: reason if unknown}) of packages and torch's libraries, without importing them."""
    known = {name: version(name) for name in VERSIONS}
    known["cuda"], why = torch_cuda()
    reasons = {"cuda": why} if why else {}
    if hip := torch_hip():
        known["hip"], why = hip, "this torch is built for ROCm, which includes it"
    for name in WHEELS:
        known[name] = _wheel(name)
        if known[name] is None:
            reasons[name] = why or "its wheel is not installed; torch may contain it, or use the system's"
    return known, reasons


def _wheel(name: str) -> str | None:
    """Return the version of the first installed wheel of an NVIDIA library."""
    return next((found for wheel in WHEELS[name] if (found := version(wheel))), None)


def version(name: str) -> str | None:
    """Return the installed version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers_of(version: str) -> tuple[int, ...] | None:
    """Return up to three numbers of a version, such as (2, 13) for 2.13.0+cpu; None without numbers."""
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) or None


def torch_cuda() -> tuple[str | None, str | None]:
    """Return (the CUDA version that torch was built with, None), or (None, the reason)."""
    found, reason = _built_with("cuda")
    return found, reason or (None if found else "this torch is built without CUDA")


def torch_hip() -> str | None:
    """Return the version of HIP, AMD's CUDA, that torch was built with; None for other builds."""
    return _built_with("hip")[0]


def _built_with(name: str) -> tuple[str | None, str | None]:
    """Read a variable from torch's `version.py` without an import. Return (its value, the reason if unknown)."""
    try:
        path = Path(str(importlib.metadata.distribution("torch").locate_file("torch/version.py")))
        tree = ast.parse(path.read_text())
    except (importlib.metadata.PackageNotFoundError, OSError, SyntaxError) as error:
        return None, f"torch's version.py cannot be read: {type(error).__name__}"
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            found = node.value.value if isinstance(node.value, ast.Constant) else None
            return (found, None) if isinstance(found, str) else (None, None)
    return None, "torch's version.py does not have it"


@dataclass(frozen=True, slots=True)
class Nccl:
    """The version of NCCL; None if unknown. `shares_gpu` is True if the user lets several ranks share a GPU."""

    version: tuple[int, ...] | None = None
    shares_gpu: bool = False

    @property
    def may_share(self) -> bool:
        """True if several ranks may share a GPU: if the user allows it, and the version supports it or is unknown."""
        return self.shares_gpu and (self.version is None or self.version >= SHARED_GPU_SINCE)

    def __str__(self) -> str:
        return "NCCL of unknown version" if self.version is None else f"NCCL {'.'.join(map(str, self.version))}"


def this_nccl(environ: Mapping[str, str] = os.environ) -> Nccl:
    """Return the NCCL that ranks will load, from the installed wheels and environment variables.

    The version is unknown without a wheel, or if the loader may find another library first.
    """
    folders = [Path(each) for each in environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    other = "nccl" in environ.get("LD_PRELOAD", "") or any((each / "libnccl.so.2").exists() for each in folders)
    found = None if other else _wheel("nccl")
    return Nccl(numbers_of(found or ""), environ.get(SHARED_GPU, "") not in ("", "0"))


def git(folder: Path) -> dict[str, Any]:
    """Return {"commit", "dirty", "reasons"} of the repository that contains `folder`."""
    commit = _git(folder, "rev-parse", "HEAD")
    changes = None if commit is None else _git(folder, "status", "--porcelain")
    return facts(
        {
            "commit": (commit, "git is not installed, or the working directory has no commit"),
            "dirty": (None if changes is None else bool(changes), "git did not report changes in time"),
        }
    )


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of a git command that does not lock, run hooks or prompt; None if it fails."""
    command = ["git", "-c", "core.fsmonitor=false", *words]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
