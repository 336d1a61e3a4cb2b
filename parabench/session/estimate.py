"""What a session would launch, and for how long: as its store knows, else by arithmetic. Free of torch."""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parabench.analysis.text import format as words
from parabench.machine.machine import Machine
from parabench.machine.peaks import DEVICES, peak_of
from parabench.models.lookup import entry_of_model
from parabench.plan.case import Case
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.plan import stored_protocol, unknown_fields
from parabench.plan.protocol import Protocol
from parabench.serve.text import duration
from parabench.session.resume import Opened
from parabench.session.runner import EXPLAINING, SURE_FLOPS, reference_protocol, training_operations, turns_left
from parabench.store.record import EXPLAIN_BLOCK, REFERENCE_BLOCK, Status
from parabench.store.store import load
from parabench.workloads import kind_of

# A launch on one node costs about so much beyond its steps (benchmarks/launch_cost.py); on several it costs more.
LAUNCH_S = 0.1

# {(case id, whether NCCL only told what it chooses): seconds of a launch}.
Known = Mapping[tuple[str, bool], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """The cases that are still to be launched, each as often as it will be, and those of launches that never count."""

    counted: list[Case]
    references: list[Case]
    explaining: list[Case]

    @classmethod
    def of(cls, opened: Opened[Case, Protocol]) -> Launches:
        """As `session.Session` makes them where every launch ends well."""
        counted = [turn.case for turn in turns_left(opened.plan, opened.done)]
        cases = list(dict.fromkeys(counted))
        references = {single.id: single for single in (case.reference() for case in cases)}
        return cls(
            counted=counted,
            references=[single for name, single in references.items() if name not in opened.references],
            explaining=[
                case
                for case in cases
                if case.backend == "nccl" and case.world_size > 1 and (case.id, EXPLAIN_BLOCK) not in opened.done
            ],
        )

    def __len__(self) -> int:
        return len(self.counted) + len(self.references) + len(self.explaining)


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


def expected(launches: Launches, protocol: Protocol, machine: Machine, known: Known, store: Path) -> Iterator[str]:
    """How long it takes, in words, and how that is known; `store` is where what is `known` was found."""
    each = [(case, False, protocol.after if protocol.by_time else protocol.all_steps) for case in launches.counted]
    each += [(case, False, reference_protocol(protocol).all_steps) for case in launches.references]
    each += [(case, True, EXPLAINING.all_steps) for case in launches.explaining]
    seconds = [known.get((case.id, explains)) for case, explains, _ in each]
    seen = [value for value in seconds if value is not None]
    if seen:
        yield taken(seen, store)
    guessed = [(case, steps) for (case, _, steps), value in zip(each, seconds, strict=True) if value is None]
    if not guessed:
        return
    timed = sum(value is None for value in seconds[: len(launches.counted)])
    if protocol.by_time and timed:
        said = f"warm-up and measured steps that go by time, of {words.count(timed, 'launch')}"
        yield f"{said}: {duration(timed * protocol.seconds)} or more"
    least: dict[str, float] = defaultdict(float)
    unknown: dict[str, None] = {}
    for case, steps in guessed:
        parameters = entry_of_model(case).parameters
        if not parameters:
            unknown[case.model] = None
            continue
        rate, said = _rate(case, machine)
        least[said] += training_operations(parameters, case, steps) / (rate * case.world_size)
    for said, value in least.items():
        if value:
            yield said.format(duration(value))
    if unknown:
        yield f"unknown for {words.joined(unknown)}: its parameters are not counted before it is built"
    compiling = "torch.compile, " if any(case.compile for case, _ in guessed) else ""
    yield f"on top of it {compiling}communication, and {start(len(guessed))}"


def taken(seconds: Sequence[float], store: Path) -> str:
    """What launches took that a store knows."""
    return f"{duration(sum(seconds))} for {words.count(len(seconds), 'launch')}, as they took in {store}"


def start(launches: int) -> str:
    """What so many launches cost beyond what they are for."""
    return f"the start of {words.count(launches, 'launch')}: {duration(launches * LAUNCH_S, 1)} or more"


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
