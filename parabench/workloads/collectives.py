"""One rank of the collectives microbenchmark: check against exact values, time every call, check again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from parabench.collectives import is_backends, join
from parabench.collectives.algorithm import make
from parabench.collectives.wire import PIECE_BYTES
from parabench.launch.rank import device_of, die_with_driver, hand_over, join_group, loaded_nccl
from parabench.launch.rank_env import RankEnv
from parabench.plan.collective_case import ROOT, CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.workloads.exact import Truth, count_wrong
from parabench.workloads.timing import MARKS, Bench

# c10d's reductions by our names.
_REDOPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

# torch 2.11 and older know these two by another name only.
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True, slots=True)
class BenchJob:
    """What the driver sends to every rank that times a collective."""

    case: CollectiveCase
    protocol: CollectiveProtocol
    venue: RankEnv


@dataclass(frozen=True, slots=True)
class Buffers:
    """One size and form: what the rank puts in, what comes out, the call, and what both must hold.

    In place `into` is the same memory as `out`, or a part of it. `mine` is what `into` holds before a call,
    `expected` what `out` holds after, but for a `relative_error`.
    """

    into: Tensor
    out: Tensor
    mine: Tensor
    expected: Tensor
    call: Callable[[], object]
    relative_error: float = 0.0

    def wrong(self) -> int:
        """Call once and count the elements that are not as they must be."""
        self.out.fill_(-1)
        self.into.copy_(self.mine)
        self.call()
        return count_wrong(self.out, self.expected, self.relative_error)


def run(job: BenchJob) -> None:
    """The entry of a rank that times a collective."""
    die_with_driver()
    hand_over(job, measure)


def measure(job: BenchJob, rank: int) -> dict[str, Any]:
    """Join the group, time every size and form, leave the group.

    Returns `wrong`, [[bytes, in place, elements]] of what was checked, and facts.
    """
    torch.set_num_threads(job.case.threads)
    device = device_of(job.case)
    clock = join_group(job, rank)
    marks = np.memmap(marks_path(job.venue.folder, rank), dtype=np.float64, mode="w+", shape=(_calls(job), MARKS))
    marks[:] = np.nan
    result = time_all(job, rank, device, marks)
    gc.collect()
    join.leave()
    return result | clock


def time_all(job: BenchJob, rank: int, device: torch.device, marks: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Every size and form in turn; `marks` gets a row for each slot of the schedule."""
    case, at, wrong = job.case, 0, []
    bench = Bench(job.protocol, case.backend, device, rank)
    for size, in_place in case.turns():
        here = buffers(case, size, in_place, rank, device)
        found = here.wrong()
        rows = marks[at : at + len(job.protocol.slots(case, size, in_place))]
        # From call to call a reduction in place goes on with its own result, as in nccl-tests: the values grow, and
        # the time does not depend on them.
        bench.time(here.call, rows)
        at += len(rows)
        # The worse of the two checks: what is wrong always is not counted twice.
        wrong.append([size, in_place, max(found, here.wrong())])
        del here
    facts: dict[str, Any] = {"algorithm": _ran(case), "piece_bytes": PIECE_BYTES, "collectives": join.calls()}
    facts |= loaded_nccl(case)
    return {"wrong": wrong, "facts": facts}


def _ran(case: CollectiveCase) -> str:
    """The algorithm that really ran; a user's own by the case's spelling of it, whatever it calls itself."""
    ran: str = join.calls().get(case.op, {}).get("algorithm", case.algorithm)
    if is_backends(case.algorithm):
        return ran
    own = make(case.algorithm, case.ranks_per_node)
    left_out = case.op == "broadcast" and own.broadcast is None
    return case.algorithm if ran == own.name and not left_out else ran


def buffers(case: CollectiveCase, size: int, in_place: bool, rank: int, device: torch.device) -> Buffers:
    """The buffers of one size and form on this rank, and the call between them."""
    n = case.world_size
    truth = Truth(case, device)
    whole = truth.empty(case.count(size) * (1 if case.op in ("all_reduce", "broadcast") else n))
    part = slice(rank * case.count(size), (rank + 1) * case.count(size))
    op, off = _REDOPS.get(case.redop), case.relative_error()
    if case.op == "all_reduce":
        expected = truth.reduced(whole)
        return Buffers(whole, whole, truth.of(rank, whole), expected, lambda: dist.all_reduce(whole, op=op), off)
    if case.op == "broadcast":
        sent = truth.of(ROOT, whole)
        mine = sent if rank == ROOT else torch.zeros_like(whole)
        return Buffers(whole, whole, mine, sent, lambda: dist.broadcast(whole, src=ROOT))
    if case.op == "reduce_scatter":
        out = whole[part] if in_place else truth.empty(case.count(size))
        expected = truth.reduced(whole)[part]
        return Buffers(whole, out, truth.of(rank, whole), expected, lambda: _reduce_scatter(out, whole, op=op), off)
    into = whole[part] if in_place else truth.empty(case.count(size))
    mine = truth.of(rank, whole)[part].clone()
    return Buffers(into, whole, mine, truth.gathered(whole), lambda: _all_gather(whole, into))


def marks_path(folder: Path, rank: int) -> Path:
    """Where a rank's marks lie."""
    return folder / f"marks{rank}.f64"


def _calls(job: BenchJob) -> int:
    return len(job.protocol.schedule(job.case))
