"""One node's part in a launch: its ranks run, and what was seen of them. Where there is one node it is the whole."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parabench.collectives.nccl import nccl_environment
from parabench.files import launch_folder
from parabench.launch.context import LaunchContext
from parabench.launch.processes import ProcessOutcome, log_tail, run_processes
from parabench.launch.rank_env import RankEnv
from parabench.machine import accelerator
from parabench.machine.nvml import keep_nvml, used_devices
from parabench.plan.nccl_pins import launch_order
from parabench.probes.devices import Devices
from parabench.probes.hang import read_answer
from parabench.probes.host import Host
from parabench.probes.sampler import RankPids, Sampler
from parabench.probes.step_clock import told_counts
from parabench.store.record import AnyCase, DeviceSample, HostSample

Marks = npt.NDArray[np.float64]

# What faulthandler writes above each thread's stack.
STACK_HEAD = "(most recent call first)"

# The group's own timeout only backs up the deadline, which says more.
GROUP_GRACE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What one kind of launch does its own way.

    Each of `size` ranks calls `entry(job(venue))` and marks its way in memory that outlives it; `marks(folder, rank)`
    are those marks, NaN where it never came, and `where(n)` says in words what n of them mean. The first `moments`
    numbers of a mark (None: all) are readings of the clock, the others durations.
    """

    case: AnyCase
    size: int
    entry: Callable[[Any], None]
    job: Callable[[RankEnv], Any]
    marks: Callable[[Path, int], Marks]
    where: Callable[[int], str]
    moments: int | None = None


@dataclass(slots=True, kw_only=True)
class NodeResult:
    """What one node saw of a launch, by its own clock, on which the launch began there at `began_s`.

    `counts` is (warm-up steps, measured ones) where the ranks agreed on them themselves.
    `results` and `marks` are of its ranks, `first_rank` and those that follow. Of ranks that did not end well `tails`
    are the last lines they wrote, `stacked` those of them that could write down their stack, and `gone` those that had
    left without a word before another node had the others ended. `answers` is where ranks that hang said they stand, as
    `probes.hang` has it, nothing of one that did not answer.
    """

    node: int
    host: str
    first_rank: int
    began_s: float
    ended: ProcessOutcome
    results: list[dict[str, Any]]
    marks: list[Marks]
    tails: list[str]
    stacked: list[int]
    device_samples: list[DeviceSample]
    host_samples: list[HostSample]
    sampler: dict[str, Any]
    gone: list[int] = field(default_factory=list)
    counts: tuple[int, int] | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + len(self.results))

    def to_dict(self) -> dict[str, Any]:
        names = [name for name in self.__slots__ if name not in ("ended", "marks")]
        return {name: getattr(self, name) for name in names} | {
            "ended": asdict(self.ended),
            "marks": [each.tolist() for each in self.marks],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> NodeResult:
        return cls(
            **{name: values[name] for name in cls.__slots__ if name in values}
            | {
                "ended": ProcessOutcome(**values["ended"] | {"killed": tuple(values["ended"]["killed"])}),
                "marks": [np.array(each, dtype=np.float64) for each in values["marks"]],
                "counts": tuple(values["counts"]) if values.get("counts") else None,
                "device_samples": [DeviceSample(*row) for row in values["device_samples"]],
                "host_samples": [HostSample(*row) for row in values["host_samples"]],
            }
        )


def run_on_node(course: Course, deadline_s: float, team: LaunchContext | None = None) -> NodeResult:
    """Run this node's ranks of a launch in fresh processes. Raises Interrupted when the driver is asked to stop."""
    began = time.perf_counter()
    team = team or LaunchContext(ranks_per_node=course.size)
    ranks = range(team.first_rank, team.first_rank + team.ranks_per_node)
    case = course.case
    with ExitStack() as stack:
        folder = stack.enter_context(launch_folder())
        if case.device == accelerator.TYPE:
            keep_nvml()
        pids = RankPids(folder, ranks)
        # One process may drive several devices.
        driven = max(len(ranks), case.world_size // case.nodes)
        host, devices = Host(began, pids), Devices(began, pids, partial(used_devices, driven))
        sampler = stack.enter_context(Sampler(began, [host, devices] if case.device == accelerator.TYPE else [host]))
        venue = RankEnv(
            folder=folder,
            timeout_s=deadline_s + GROUP_GRACE_S,
            environment={**team.environment, **nccl_environment(case.algorithm), **launch_order(case)},
            meeting=team.meeting,
        )
        logs = folder / "logs"
        ended = run_processes(
            course.entry, (course.job(venue),), size=len(ranks), deadline_s=deadline_s, logs=logs, team=team
        )
        results = [_result(folder, rank) for rank in ranks]
        marks = [course.marks(folder, rank) for rank in ranks]
        counts = told_counts(folder, ranks)
        # Their logs are named by their number on this node.
        answers = [read_answer(folder, rank) for rank in ranks] if ended.hung else []
        tails = [] if ended.ok else [log_tail(logs, at) for at in range(len(ranks))]
        stacked = [] if ended.ok else [r for r in ranks if STACK_HEAD in log_tail(logs, r - ranks.start, lines=1000)]
    ids = pids.look()
    left = {rank for rank, pid in ids.items() if pid not in ended.killed}
    gone = [each["rank"] for each in results if not handed_over(each) and each["rank"] in left]
    return NodeResult(
        node=team.node,
        host=socket.gethostname(),
        first_rank=ranks.start,
        began_s=began,
        ended=ended,
        results=results,
        marks=marks,
        tails=tails,
        stacked=stacked,
        gone=gone if ended.told else [],
        counts=counts,
        answers=answers,
        device_samples=[sample._replace(node=team.node) for sample in devices.samples],
        host_samples=[sample._replace(node=team.node) for sample in host.samples],
        sampler=sampler.facts(),
    )


def handed_over(result: Mapping[str, Any]) -> bool:
    """Whether a rank left what it saw, or why it could not: of one that did not there is its number alone."""
    return result.keys() > {"rank"}


def _result(folder: Path, rank: int) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads((folder / f"rank{rank}.json").read_text())
    except FileNotFoundError:
        return {"rank": rank}
    return result
