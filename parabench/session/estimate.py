"""What a session would launch, and for how long: as its store knows, else by arithmetic. Free of torch."""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parabench.analysis.text import format as words
from parabench.machine.machine import Machine
from parabench.machine.peaks import DEVICES, peak_of
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.plan import stored_protocol, unknown_fields
from parabench.plan.protocol import Protocol
from parabench.plan.validate import entry_of_model
from parabench.serve.text import duration
from parabench.session.runner import SURE_BYTES_PER_S, SURE_FLOPS, training_operations
from parabench.store.record import EXPLAIN_BLOCK, REFERENCE_BLOCK, Status
from parabench.store.results import load
from parabench.workloads import kind_of

# A launch on one node costs about so much beyond its steps (benchmarks/launch_cost.py); on several it costs more.
LAUNCH_S = 0.1

# (case, block, protocol) of a launch to come.
ExpectedLaunch = tuple[Any, int, Any]

# {(case id, whether NCCL only told what it chooses): seconds of a launch}.
Known = Mapping[tuple[str, bool], float]


def known_seconds(store: Path, protocol: Protocol | CollectiveProtocol) -> Known:
    """The median seconds of a case's launches in a store, of its sessions that took as many steps or calls a launch;
    none where there is no store. Raises UsageError for one that cannot be read."""
    if not os.path.isfile(store):
        return {}
    results = load(store)
    alike = []
    for number, text in zip(results.session["id"], results.session["plan"], strict=True):
        plan = json.loads(text) or {}
        kind = plan.get("kind", "training")
        if kind != kind_of(protocol) or "protocol" not in plan:
            continue
        # What a newer version did with fields that are not known here may have taken any time.
        if unknown_fields(type(protocol), plan["protocol"]):
            continue
        if _amount(stored_protocol(kind, plan["protocol"])) == _amount(protocol):
            alike.append(number)
    launch = results.launch
    launch = launch[launch["session_id"].isin(alike) & launch["status"].isin([Status.OK, Status.WRONG])]
    if isinstance(protocol, Protocol) and protocol.by_time:
        launch = launch[launch["block"] != REFERENCE_BLOCK]  # it takes other steps than the same case where it counts
    took: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for case_id, block, wall_s in zip(launch["case_id"], launch["block"], launch["wall_s"], strict=True):
        took[case_id, block == EXPLAIN_BLOCK].append(wall_s)
    return {key: statistics.median(seconds) for key, seconds in took.items()}


def _amount(protocol: Protocol | CollectiveProtocol) -> tuple[object, ...]:
    """What of a protocol decides how long a launch takes."""
    if isinstance(protocol, Protocol):
        return protocol.all_steps, protocol.warmup_s, protocol.measure_s
    return protocol.timing, protocol.warmup, protocol.iterations, protocol.batches, protocol.measure_s


def expected(launches: Sequence[ExpectedLaunch], machine: Machine, known: Known, store: Path) -> list[str]:
    """How long it takes, in words, and how that is known; `store` is where what is `known` was found."""
    seconds = [known.get((case.id, block == EXPLAIN_BLOCK)) for case, block, _ in launches]
    seen = [value for value in seconds if value is not None]
    guessed = [each for each, value in zip(launches, seconds, strict=True) if value is None]
    lines = []
    if seen:
        lines.append(f"{duration(sum(seen))} for {words.count(len(seen), 'launch')}, as they took in {store}")
    if guessed:
        more = f"the start of {words.count(len(guessed), 'launch')}: {duration(len(guessed) * LAUNCH_S, 1)} or more"
        guess = _collectives if isinstance(guessed[0][0], CollectiveCase) else _training
        lines += [*guess(guessed, machine), more]
        lines[-2:] = [f"on top of it {lines[-2]}, and {lines[-1]}"]
    return lines


def _collectives(launches: Sequence[ExpectedLaunch], machine: Machine) -> Iterator[str]:
    """What calls must take; last, what comes on top of it."""
    seconds = sum(protocol.expected_s(case, SURE_BYTES_PER_S) for case, _, protocol in launches)
    yield f"calls: {duration(seconds)} at most, at {SURE_BYTES_PER_S / 1e6:g} MB/s (any link surely carries that)"
    yield "what a link carries more than once"


def _training(launches: Sequence[ExpectedLaunch], machine: Machine) -> Iterator[str]:
    """What time and arithmetic must take; last, what comes on top of it."""
    timed = [protocol.seconds for _, _, protocol in launches if protocol.by_time]
    if timed:
        said = f"warm-up and measured steps that go by time, of {words.count(len(timed), 'launch')}"
        yield f"{said}: {duration(sum(timed))} or more"
    least: dict[str, float] = defaultdict(float)
    unknown: dict[str, None] = {}
    for case, _, protocol in launches:
        parameters = entry_of_model(case).parameters
        if not parameters:
            unknown[case.model] = None
            continue
        rate, said = _rate(case, machine)
        steps = protocol.after if protocol.by_time else protocol.all_steps
        least[said] += training_operations(parameters, case, steps) / (rate * case.world_size)
    for said, value in least.items():
        if value:
            yield said.format(duration(value))
    if unknown:
        yield f"unknown for {words.joined(unknown)}: its parameters are not counted before it is built"
    yield "torch.compile, communication" if any(case.compile for case, _, _ in launches) else "communication"


def _rate(case: Case, machine: Machine) -> tuple[float, str]:
    """Operations a second of one rank, which a core surely reaches and a device never exceeds; and how to say what time
    follows."""
    if case.device == "cpu":
        sure = f"{SURE_FLOPS / 1e9:g} GFLOP/s"
        return SURE_FLOPS, f"arithmetic: {{}}, where each rank computes {sure} (a core surely does) and none waits"
    name = machine.gpus[0].name if machine.gpus else ""
    peak, _ = peak_of(name, case.arithmetic.matmul)
    of = name
    if peak is None:
        peak, of = max(
            (device.peak.get(case.arithmetic.matmul, 0.0), "the fastest device known here") for device in DEVICES
        )
    return (
        peak,
        f"arithmetic: {{}} at least, at the {case.arithmetic.matmul} peak of {of}, {peak / 1e12:g} TFLOP/s a rank",
    )
