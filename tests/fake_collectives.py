"""Launches of collectives without processes: what a call "takes" is given."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from fake_results import ENVIRONMENT

from parabench.plan.collective_case import REDUCING, CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.plan import Plan, Skipped
from parabench.store.record import CollectiveSample, Finding, Launch, Status
from parabench.store.results import Results, load
from parabench.store.store import Store

PROTOCOL = CollectiveProtocol(mode="latency", launches=3, warmup=1, iterations=4)
THROUGHPUT = CollectiveProtocol(launches=3, warmup=1, iterations=8, batches=4)


def case(op: str = "all_reduce", algorithm: str = "native", **fields: Any) -> CollectiveCase:
    small = {"min_bytes": 1 << 16, "max_bytes": 1 << 22, "factor": 4, "device": "cpu", "backend": "gloo"}
    return CollectiveCase(
        **({"op": op, "algorithm": algorithm, "redop": "sum" if op in REDUCING else "none"} | small | fields)
    )


def calls(of: CollectiveCase, seconds: Callable[[int], float], **more: Any) -> list[CollectiveSample]:
    """All rows of a launch. The last rank is the slowest, by the given time; warm-up is ten times as long."""
    wrong, protocol = more.get("wrong", 0), more.get("protocol", PROTOCOL)
    return [
        CollectiveSample(
            rank, slot.iteration, seq, of.op, more.get("ran", of.algorithm), of.world_size, slot.bytes, 0.1 * seq,
            seconds(slot.bytes) * (10 if slot.phase == "warmup" else 1) * (1 if rank == of.world_size - 1 else 0.5),
            slot.phase, slot.in_place, wrong if rank == 0 else 0, calls=protocol.calls_in_a_batch(seconds(slot.bytes))
            if protocol.mode == "throughput" else 1,
        )
        for rank in range(of.world_size)
        for seq, slot in enumerate(protocol.schedule(of))
    ]  # fmt: skip


def launch(of: CollectiveCase, seconds: Callable[[int], float], *, block: int = 0, **more: Any) -> Launch:
    status = more.pop("status", Status.OK)
    failure = more.pop("failure", None)
    return Launch(
        case=of,
        status=status,
        started_utc="2026-01-01T00:00:00.000Z",
        wall_s=0.5,
        block=block,
        failure=failure,
        collectives=calls(of, seconds, **more) if status in (Status.OK, Status.WRONG) else [],
    )


def sweep(
    cases: Iterable[CollectiveCase],
    truth: Callable[[CollectiveCase, int], float],
    *,
    blocks: int = 3,
    noise: float = 0.0,
    protocol: CollectiveProtocol = PROTOCOL,
) -> list[Launch]:
    """Every case once per block; log-normal noise per launch and size, not per call."""
    random = np.random.default_rng(0)
    launches = []
    for block, one in itertools.product(range(blocks), list(cases)):
        factors = {size: float(np.exp(noise * random.standard_normal())) for size in one.sizes}
        launches.append(
            launch(one, lambda size, one=one, f=factors: truth(one, size) * f[size], block=block, protocol=protocol)
        )
    return launches


def write(
    path: Path,
    launches: Iterable[Launch],
    *,
    label: str | None = "fake",
    skipped: Iterable[tuple[CollectiveCase, str]] = (),
    findings: Iterable[Finding] = (),
    finished: bool = True,
    question: str = "Which algorithm moves data fastest here, at which size?",
    argv: list[str] | None = None,
    environment: dict[str, Any] | None = None,
    protocol: CollectiveProtocol = PROTOCOL,
) -> Results:
    """Append a session to the store at `path` and load it."""
    launches = list(launches)
    cases = {one.case.id: one.case for one in launches}
    plan: Plan[Any, Any] = Plan(
        cases=tuple(cases.values()),
        skipped=tuple(Skipped(one, reason) for one, reason in skipped),
        protocol=protocol,
        seed=1,
    )
    with Store.open_or_create(path) as store:
        session = store.begin_session(
            label=label,
            suite="collectives",
            argv=argv or ["parabench", "collectives"],
            seed=1,
            environment=ENVIRONMENT if environment is None else environment,
            question=question,
            plan=plan.to_dict(),
        )
        for one in launches:
            store.append(session, one)
        for finding in findings:
            store.add_finding(session, finding)
        if finished:
            store.finish_session(session)
    return load(path)
