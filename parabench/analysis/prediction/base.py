"""Read the measurements that predictions need: compute-only runs, times of collectives, and training runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parabench import json_text
from parabench.analysis.launch_number import QUANTILE
from parabench.analysis.numbers import case_of, numbers
from parabench.analysis.prediction.links import Row, measured_rows
from parabench.analysis.prediction.program import Program, program_of
from parabench.analysis.session import Session, data_of, select_sessions
from parabench.analysis.stats.quantiles import Numbers
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.plan.case import DEFAULTS, Case
from parabench.store.record import CALL
from parabench.store.results import Results
from parabench.strategies import entry_of

# Fields that change neither the computing of a rank nor the operations that it calls.
_TRAVELS = ("algorithm", "nodes", "world_size")

# If a strategy was measured with several values of such a field, the user must choose a value.
MEASURED_APART = ("device", "model", "seq_len", "precision", "threads", "compile")

NEEDED = "measure what predictions need: parabench run calibration --out FOLDER"


@dataclass(frozen=True, slots=True)
class Computed:
    """The result of compute-only runs of `case`: the ranks of one node computed together and did not communicate.

    `jitter` has all steps, relative to the step time of their launch. `peak_bytes` is the highest peak of a rank.
    """

    case: Case
    program: Program
    jitter: Numbers = field(default_factory=lambda: np.empty(0))
    peak_bytes: float | None = None

    @property
    def per_node(self) -> int:
        """The number of ranks that computed at the same time."""
        return self.case.world_size // self.case.nodes

    def slowest(self, ranks: int) -> float:
        """Return the compute time of the slowest of `ranks`, relative to the slowest rank that was measured.

        For n independent ranks, the probability that all steps take at most x is the n-th power of the probability for
        one rank.
        """
        if not len(self.jitter):
            return 1.0
        q = QUANTILE[self.case.device]
        late, known = (float(np.quantile(self.jitter, q ** (1 / n))) for n in (ranks, self.per_node))
        return max(1.0, late / known)


@dataclass(frozen=True)
class Base:
    """The measurements for predictions. `rows` are collectives, `measured` are step times of training runs in seconds.

    A node can run `room` ranks, by its devices or cores, None if unknown. `device_bytes` is the memory of the smallest
    device, if any.
    """

    computed: tuple[Computed, ...]
    rows: tuple[Row, ...]
    measured: Mapping[Case, float]
    room: int | None = None
    device_bytes: float | None = None
    backend: str = "gloo"

    @property
    def per_node(self) -> int:
        """The number of ranks on a full node."""
        return max(self.room or 1, *(each.per_node for each in self.computed))


def work_of(case: Case) -> tuple[Any, ...]:
    """Return a key that is equal for cases whose ranks do the same computing and call the same operations.

    The batch counts per rank. With tensor parallelism, the work of a rank also depends on the world size.
    """
    entry = entry_of(case.strategy)
    plain: dict[str, Any] = {name: DEFAULTS[name] for name in _TRAVELS}
    plain["global_batch"] = case.global_batch // case.data_ranks
    if entry.takes_caps:
        plain["bucket_mib"] = None
    # With one micro-batch, no_sync has no effect.
    plain["no_sync"] = case.no_sync or case.grad_accumulation == 1
    # The size of the groups within which strategies such as hsdp shard. By default, these are the ranks of a node.
    shared = case.ranks_per_node or case.world_size // case.nodes if "ranks_per_node" in entry.axes else None
    plain["ranks_per_node"] = None
    split = case.world_size if case.data_ranks == 1 else 1
    return (split, shared, *(case.cells() | plain).values())


def base_of(stores: Sequence[Results]) -> Base:
    """Return the measurements in several databases. If one was repeated, the last database and session count.

    Raises UsageError if no database has a compute-only run.
    """
    computed: dict[Case, Computed] = {}
    measured: dict[Case, float] = {}
    rows: dict[tuple[Any, ...], Row] = {}
    machine: dict[str, Any] = {}
    for results in stores:
        for session in sessions_of(results, "compute"):
            computed |= {one.case: one for one in computed_of(results, session)}
            machine = session.environment
        rows |= {row[:-1]: row for row in measured_rows(results, sessions_of(results, "collectives"))}
        measured |= training_step_times(results)
    if not computed:
        there = " and ".join(str(each.path) for each in stores)
        raise UsageError(f"{there} has no compute-only launches; {NEEDED}")
    case = next(iter(computed))
    gpus = [float(each.get("memory_bytes") or math.inf) for each in machine.get("gpus") or []]
    cores = machine.get("cores")
    return Base(
        tuple(computed.values()),
        tuple(rows.values()),
        measured,
        len(gpus) if case.device == accelerator.TYPE else cores // case.threads if cores else None,
        min(gpus, default=None),
        case.backend,
    )


def sessions_of(results: Results, kind: str) -> list[Session]:
    """Return the sessions of a kind (`Session.kind`), oldest first, without variants of `parabench ab`."""
    return [each for each in select_sessions(results, results.of_kind(kind)) if not each.interleaved]


def training_step_times(results: Results) -> dict[Case, float]:
    """Return the step time in seconds of each case that training runs of a database measured; the newest counts."""
    seen = [data_of(results, session) for session in sessions_of(results, "training")]
    return {of.planned[case]: step_s for of in seen for case, step_s in of.step_times.items() if case in of.planned}


def computed_of(results: Results, session: Session) -> list[Computed]:
    """Return the result of each case of a session of compute-only runs."""
    table = numbers(results, session)
    steps = results.of([session.id]).read("sample", "metric = 'step_s' AND phase = 'measure'", ("launch_id", "value"))
    found = []
    for _, launches in table[table["counted"]].groupby("case", sort=False):
        facts = [json_text.parsed(text) for text in launches["facts"]]
        last = next((each for each in reversed(facts) if each.get("program")), None)
        if last is None:
            continue
        case = case_of(launches["case_json"].iloc[0]).replace(device=launches["device"].iloc[0])
        events = last["program"][0]["events"]
        program = program_of(events, case.world_size, last.get("gradients") or ())
        # The program was recorded with probes. Its compute times are scaled to a step without probes, minus the calls.
        in_calls = sum(event[-1] for event in events if event[0] == CALL)
        program = program.scaled(math.exp(float(np.log(launches["step_s"]).mean())) / (program.work_s + in_calls))
        launch_steps = steps.merge(launches[["launch_id", "step_s"]], on="launch_id")
        jitter = (launch_steps["value"] / launch_steps["step_s"]).to_numpy(dtype=float)
        peak = float(launches["peak_memory_bytes"].max())
        found.append(Computed(case, program, jitter, peak if peak > 0 else None))
    return found
