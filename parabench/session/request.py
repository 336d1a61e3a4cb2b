"""What a user asks of a session, unchecked: which options there are, which of them decide what is measured, and what
they plan on a machine."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self

from parabench.cluster.topology import ONE_MACHINE, LauncherFlags
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.machine.machine import Machine
from parabench.plan.cohorts import cohorts
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.collectives import collective_protocol, plan_collectives
from parabench.plan.fields import option_fields
from parabench.plan.plan import C, P, Plan, make_plan
from parabench.plan.protocol import BY_STEPS_OR_TIME, TURNS, ComputeProtocol, Protocol
from parabench.plan.resolve import device_of, is_count
from parabench.plan.suite import CPU, GPUS, ONE_GPU, Suite, Sweep, load_suite, parse_axes
from parabench.records import Record
from parabench.session.stopping import AdaptiveStopping
from parabench.store.record import MEASURED_ON_CPU, Finding
from parabench.strategies import entry_of

# Labels are part of file names, addresses and HTML.
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
QUESTION = "Which algorithm moves data fastest here, at which size?"


def check_label(text: str) -> str:
    """Return `text` if it can name a session. Raises UsageError."""
    if not isinstance(text, str) or not _LABEL.fullmatch(text):
        raise UsageError(f"label {text!r}: use 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Generic[C, P]):
    """What a request comes to on a machine: the plan, and what is recorded with it. `file` is the suite's, which all
    nodes must have alike."""

    plan: Plan[C, P]
    suite: str
    question: str
    file: Path | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What every session is asked for. Raises UsageError for a label that is none.

    `kind` is a key of workloads.WORKLOADS; what is said of a session begins with `prefix`, the results apart. `options`
    are the given ones of the fields that `planned` declare: with the seed they decide what is measured, so all nodes
    must have them alike, and a session that is resumed cannot change them. `part_of` is the suite of which the session
    is one of several.
    """

    kind: ClassVar[str]
    planned: ClassVar[tuple[type[Record], ...]]
    prefix: ClassVar[str] = ""

    argv: list[str]
    out: Path
    axes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    label: str | None = None
    resume: bool = False
    links: bool = False
    json_file: Path | None = None
    cluster: LauncherFlags = ONE_MACHINE
    part_of: str | None = None

    def __post_init__(self) -> None:
        if self.label is not None:
            check_label(self.label)

    @classmethod
    def of(cls, **asked: Any) -> Self:
        """A request by the names of its fields, and of those of the plan; None and False are not given."""
        options = {name: asked.pop(name, None) for each in cls.planned for name in option_fields(each)}
        given = {name: value for name, value in options.items() if value is not None and value is not False}
        return cls(options=given, **asked)

    def given(self) -> dict[str, Any]:
        """{field: value} of what was asked for and decides what is measured, as `of` takes it."""
        given = {**({"axes": self.axes} if self.axes else {}), **self.options}
        return given | ({"seed": self.seed} if self.seed is not None else {})

    def option_of(self, name: str) -> str:
        """How a field is typed."""
        declared = {field: each.field.option for kind in self.planned for field, each in option_fields(kind).items()}
        return {"axes": "--set", **declared}.get(name, f"--{name}")

    def words(self) -> list[str]:
        """What was given as it is typed, with whether it is resumed: on several nodes all must have it alike."""
        given = self.given() | ({"resume": True} if self.resume else {})
        return [word for name, value in given.items() for word in _typed(self.option_of(name), value)]

    def fields_of(self, kind: type[Record]) -> dict[str, Any]:
        """{field: value} of what was asked for and is a field of `kind`."""
        return {name: value for name, value in self.options.items() if name in option_fields(kind)}

    def stopping(self, plan: Plan[Any, Any]) -> AdaptiveStopping | None:
        """What adds blocks to those of the plan. Raises UsageError."""
        return None

    def parts(self) -> tuple[Request, ...]:
        """The sessions that it takes, in their order. Raises UsageError."""
        return (self,)

    def plan(self, machine: Machine) -> Planned[Any, Any] | None:
        """What is planned on `machine`; None where the stored plan is followed, whatever that is. Raises UsageError."""
        raise NotImplementedError


def _typed(name: str, value: Any) -> Iterator[str]:
    for each in value if isinstance(value, tuple) else (value,):
        yield name
        if each is not True:
            yield f"{each:g}" if isinstance(each, float) else str(each)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest(Request):
    """A session of trainings: the cases of a suite."""

    kind = "training"
    planned = (Protocol,)

    suite: str | None
    until_decided: bool = False
    budget: float | None = None

    def stopping(self, plan: Plan[Any, Any]) -> AdaptiveStopping | None:
        return AdaptiveStopping.asked(self.until_decided, self.budget, plan.protocol.budget_s if plan.races else None)

    def parts(self) -> tuple[Request, ...]:
        suite = load_suite(self.suite) if self.suite is not None else None
        if suite is None or not (suite.compute or suite.collectives):
            return (self,)
        common: dict[str, Any] = {name: getattr(self, name) for name in _OF_PARTS} | {"part_of": self.suite}
        parts: list[Request] = []
        if suite.compute:
            fields = self.fields_of(ComputeProtocol).items()
            given = {name: value for name, value in fields if name not in _OF_TRAININGS}
            parts.append(ComputeRequest(**common, suite=self.suite, axes=self.axes, options=given))
        if suite.collectives:
            devices = dict(each.split("=", 1) for each in self.axes if each.startswith(("device=", "threads=")))
            parts.append(CollectivesRequest(**common, options={**suite.collectives, **devices}))
        # Trainings have as many ranks as there are here; that of more is what is to be predicted.
        here = tuple(each for each in self.axes if not (suite.compute and each.startswith("world_size=")))
        return (*parts, replace(self, axes=here, part_of=self.suite))

    def plan(self, machine: Machine) -> Planned[Any, Any] | None:
        if self.suite is not None:
            return plan_training(self, load_suite(self.suite), machine, turns=True)
        self.check_bare_resume()
        return None

    def check_bare_resume(self) -> None:
        """Without a suite only a stored plan can be followed: raise UsageError when there is none, or more is asked."""
        if not self.resume:
            raise UsageError("no suite is given; name one that `parabench list` shows, or a path to a suite file")
        for name in self.given():
            raise UsageError(
                f"{self.option_of(name)} cannot change a session that is resumed as it was planned; drop it"
            )


# What the sessions of a suite have in common.
_OF_PARTS = ("argv", "out", "seed", "label", "resume", "cluster")

# How trainings take turns, and how often each is launched, is no matter of what each rank computes; and ranks that are
# alone cannot agree on how many steps fill a time.
_OF_TRAININGS = {"launches", *BY_STEPS_OR_TIME.values()} | {
    name for name, each in option_fields(Protocol).items() if each.field.role == TURNS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeRequest(Request):
    """A session of compute-only launches of a suite."""

    kind = "compute"
    planned = (ComputeProtocol,)

    suite: str | None

    def plan(self, machine: Machine) -> Planned[Any, Any] | None:
        assert self.suite is not None
        return plan_compute(self, load_suite(self.suite), machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesRequest(Request):
    """A session of single collective operations; as text where the command line has text."""

    kind = "collectives"
    planned = (CollectiveCase, CollectiveProtocol)
    prefix = "# "  # what reads nccl-tests' output passes over such lines

    def plan(self, machine: Machine) -> Planned[Any, Any] | None:
        if self.resume and not self.given():
            return None
        asked = self.fields_of(CollectiveCase)
        protocol = collective_protocol(**self.fields_of(CollectiveProtocol))
        plan = plan_collectives(asked, protocol, machine, self.seed or 0)
        findings = measured_on_cpu([asked.get("device", "auto")], plan, machine)
        return Planned(plan=plan, suite=self.kind, question=QUESTION, findings=findings)


def plan_training(
    request: TrainingRequest, suite: Suite, machine: Machine, turns: bool = False
) -> Planned[Any, Protocol]:
    """The plan that the request makes of the suite; with `turns` its cases may share launches. Raises UsageError."""
    overrides = parse_axes(request.axes)
    suite = suite.on(kind_of(machine, overrides))
    protocol = protocol_of(request, suite.protocol)
    if not turns or (protocol.launches is not None and protocol.rounds is None):
        protocol = protocol.without_turns()
    plan = make_plan(suite, overrides, protocol, machine, request.seed or 0)
    if protocol.races and all(len(cohort) == 1 for cohort in cohorts(plan.cases)):
        protocol = protocol.without_turns()
    if protocol.self_check and not protocol.takes_turns:
        raise UsageError(
            "--self-check measures a case twice in a launch that cases share, and here none do; drop --launches, or "
            "give --rounds with it"
        )
    own = [device for sweep in suite.sweeps for device in sweep.axes.get("device", ("auto",))]
    devices = overrides.get("device") or own
    on_cuda = any(case.device == accelerator.TYPE for case in plan.cases)
    # Without a CUDA device there is nothing to remember, and no step is taken for it.
    settled = (
        protocol.resolved(accelerator.TYPE) if on_cuda else protocol.replace(memory_snapshot=False).resolved("cpu")
    )
    if settled.takes_turns and not request.options.keys() & {*BY_STEPS_OR_TIME, *BY_STEPS_OR_TIME.values()}:
        settled = settled.briefly_alone()
    finding = Finding(
        "no_memory_snapshot",
        "No memory snapshot is written: torch keeps a history of its allocator on CUDA only, and every case runs "
        "on the CPU.",
        "Run on a CUDA device for one; on the CPU see each part's resident set in the instrumented steps.",
    )
    return Planned(
        plan=plan.replace(protocol=settled),
        suite=suite.name,
        question=suite.question,
        file=suite.path,
        findings=(
            *measured_on_cpu(devices, plan, machine),
            *([finding] if protocol.memory_snapshot and not on_cuda else ()),
        ),
    )


def measured_on_cpu(devices: Collection[str], plan: Plan[Any, Any], machine: Machine) -> tuple[Finding, ...]:
    """Warn if the CPU is measured because no GPU can be used. `devices` are the user's or the suite's choice."""
    if machine.cpu_reason is None or "auto" not in devices or all(case.device != "cpu" for case in plan.cases):
        return ()
    return (
        Finding(
            MEASURED_ON_CPU,
            f"Runs on the CPU: {machine.cpu_reason}.",
            "For a GPU, install its driver and a torch built for it. For the CPU, name it: device cpu.",
        ),
    )


def plan_compute(request: ComputeRequest, suite: Suite, machine: Machine) -> Planned[Any, Protocol]:
    """Return the plan of a suite's compute-only launches. Raises UsageError.

    If a sweep does not set `nodes`, ranks that exceed this machine's devices, or cores, are divided among the fewest
    nodes like it. The launches measure the ranks of one node.
    """
    overrides = parse_axes(request.axes)
    asked = overrides.pop("world_size", None)
    for size in asked or ():
        if not is_count(size):
            raise UsageError(f"world_size is {size!r}; it must be a whole number of 1 or more")
    device = device_of({"device": (overrides.get("device") or ("auto",))[0]}, machine)
    here = machine.ranks_per_node or (len(machine.gpus) if device == accelerator.TYPE else machine.cores)
    sweeps = tuple(
        Sweep({"nodes": (fewest_nodes(size, here),), **each.axes, "world_size": (size,)})
        for each in suite.compute
        for size in asked or each.axes.get("world_size", (1,))
    )
    for name in overrides.get("strategy") or (name for each in sweeps for name in each.axes.get("strategy", ())):
        if entry_of(name).ranks_differ:
            raise UsageError(f"{name} cannot be predicted, because its ranks do different things; drop it")
    # Only one node computes, whatever the number of nodes.
    others = replace(machine, nodes=max(max(each.axes["nodes"]) for each in sweeps), ranks_per_node=None)
    of_compute = replace(suite, sweeps=sweeps, others={})
    protocol = suite.compute_protocol.replace(**request.options).without_turns().resolved(device)
    plan = make_plan(of_compute, overrides, protocol, others, request.seed or 0, listed=asked is None)
    return Planned(plan=plan, suite=suite.name, question=suite.question, file=suite.path)


def fewest_nodes(ranks: int, most: int) -> int:
    """Return the smallest number of nodes, of at most `most` ranks each, that divides `ranks` evenly."""
    return ranks // next(each for each in range(min(ranks, max(1, most)), 0, -1) if ranks % each == 0)


def kind_of(machine: Machine, overrides: Mapping[str, tuple[Any, ...]]) -> str:
    """Which of a suite's machines this one is, for the devices that were asked for."""
    devices = {device_of({"device": each}, machine) for each in overrides.get("device", ("auto",))}
    if accelerator.TYPE not in devices:
        return CPU
    return GPUS if machine.ranks(accelerator.TYPE) * machine.nodes > 1 else ONE_GPU


def protocol_of(request: Request, suites: Protocol) -> Protocol:
    """The suite's protocol with what the request asks for instead. Raises UsageError for steps and seconds at once."""
    given = request.fields_of(Protocol)
    # Seconds replace the suite's steps, and steps its seconds.
    other = BY_STEPS_OR_TIME | {timed: name for name, timed in BY_STEPS_OR_TIME.items()}
    freed = {other[name]: None for name in given if name in other}
    return suites.replace(**freed | given)
