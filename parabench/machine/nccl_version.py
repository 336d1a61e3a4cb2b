"""The NCCL that the ranks of this machine will load, as far as it is known before one of them has. Free of torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parabench.machine import versions

# From this version on several ranks may share a GPU, when this variable is set ("Environment variables" of NCCL 2.30).
SHARED_GPU_SINCE = (2, 30)
SHARED_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"


@dataclass(frozen=True, slots=True)
class Nccl:
    """`version` is None where it is unknown; `shares_gpu` says that its user lets several ranks share a GPU."""

    version: tuple[int, ...] | None = None
    shares_gpu: bool = False

    @property
    def may_share(self) -> bool:
        """Whether several ranks may share a GPU, as far as is known before they try."""
        return self.shares_gpu and (self.version is None or self.version >= SHARED_GPU_SINCE)

    def __str__(self) -> str:
        return "NCCL of unknown version" if self.version is None else f"NCCL {'.'.join(map(str, self.version))}"


def this_nccl(environ: Mapping[str, str] = os.environ) -> Nccl:
    """What wheels and environment tell."""
    return Nccl(_version(environ), environ.get(SHARED_GPU, "") not in ("", "0"))


def _version(environ: Mapping[str, str]) -> tuple[int, ...] | None:
    """The wheel's; None where there is none, or the loader may find another library before it."""
    folders = [Path(each) for each in environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    if "nccl" in environ.get("LD_PRELOAD", "") or any((each / "libnccl.so.2").exists() for each in folders):
        return None
    found = next((version for wheel in versions.WHEELS["nccl"] if (version := versions.version(wheel))), None)
    numbers = [part for part in (found or "").split(".")[:3] if part.isdigit()]
    return tuple(map(int, numbers)) or None
