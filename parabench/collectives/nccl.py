"""NCCL's own algorithms: what they are called here, and the environment that pins NCCL to one of them."""

from __future__ import annotations

# NCCL's own algorithms by the names that NCCL_ALGO takes, and the operations that have them
# (NCCL's "Environment variables", NCCL_ALGO; the function:algorithm form needs NCCL 2.24).
NCCL_PREFIX = "nccl:"
_ALL_REDUCE, _EVERY = ("allreduce",), ("allreduce", "reducescatter", "allgather", "broadcast")
NCCL_ALGORITHMS: dict[str, tuple[str, ...]] = {
    "ring": _EVERY,
    "tree": _ALL_REDUCE,
    "collnetdirect": ("allreduce", "reducescatter", "allgather"),
    "collnetchain": _ALL_REDUCE,
    "nvls": ("allreduce", "reducescatter", "allgather"),
    "nvlstree": _ALL_REDUCE,
    "pat": ("reducescatter", "allgather"),
}


def is_nccls(name: str) -> bool:
    """Whether `name` is one of NCCL's own algorithms."""
    return name.startswith(NCCL_PREFIX) and name.removeprefix(NCCL_PREFIX) in NCCL_ALGORITHMS


def nccl_environment(name: str) -> dict[str, str]:
    """What pins NCCL to `name` in a rank's environment; operations that don't have it keep NCCL's choice.

    {} for every algorithm that is not NCCL's own.
    """
    if not is_nccls(name):
        return {}
    own = name.removeprefix(NCCL_PREFIX)
    return {"NCCL_ALGO": ";".join(f"{op}:{own}" for op in NCCL_ALGORITHMS[own])}
