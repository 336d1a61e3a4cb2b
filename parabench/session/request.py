"""Define `Request`, the options of a session, and make its plan for a machine."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self

from parabench.cluster.topology import ONE_MACHINE, LauncherFlags
from parabench.collectives import ON_ANY_BACKEND, TWO_LEVEL, canonical, is_backends, levels_of
from parabench.errors import UsageError, unknown
from parabench.machine import accelerator
from parabench.machine.machine import Machine
from parabench.plan.cohorts import cohorts
from parabench.plan.collective_case import OPS, REDUCING, CollectiveCase, parse_size
from parabench.plan.collective_protocol import LATENCY, ROUNDS, CollectiveProtocol
from parabench.plan.fields import option_fields, parse_field, typed
from parabench.plan.plan import C, P, Plan, Skipped, make_plan
from parabench.plan.protocol import BY_STEPS_OR_TIME, TURNS, Protocol
from parabench.plan.resolve import default_ranks_per_node, device_of, is_count, resolve_device
from parabench.plan.suite import CPU, GPUS, ONE_GPU, Sweep, load_suite, parse_axes
from parabench.plan.validate import check_algorithm, check_group, exceeds_machine, unpinned
from parabench.records import Record, declared
from parabench.store.record import MEASURED_ON_CPU, MIB, Finding
from parabench.strategies import entry_of
from parabench.workloads import WORKLOADS

# Labels are part of file names, addresses and HTML.
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_label(text: str) -> str:
    """Return `text` if it can name a session. Raises UsageError."""
    if not isinstance(text, str) or not _LABEL.fullmatch(text):
        raise UsageError(f"label {text!r}: use 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Generic[C, P]):
    """The plan of a request on a machine, with its suite, question and warnings.

    `file` is the suite's file, which must be equal on all nodes.
    """

    plan: Plan[C, P]
    suite: str
    question: str
    file: Path | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of a session. Only the label is checked, and raises UsageError.

    - `kind`: the kind of measurement, a key of `workloads.WORKLOADS`
    - `axes`, `options` and `seed` decide the measurement. They must be equal on all nodes, and a resumed session cannot
      change them. `options` has the given fields of the case and the protocol of the kind.
    - `part_of`: the suite, if it consists of several sessions
    """

    kind: str = "training"
    argv: list[str]
    out: Path
    suite: str | None = None
    axes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    label: str | None = None
    resume: bool = False
    links: bool = False
    until_decided: bool = False
    budget: float | None = None
    json_file: Path | None = None
    cluster: LauncherFlags = ONE_MACHINE
    part_of: str | None = None

    def __post_init__(self) -> None:
        if self.label is not None:
            check_label(self.label)

    @classmethod
    def of(cls, kind: str = "training", **asked: Any) -> Self:
        """Return a request from its fields and from options of its kind. Options that are None or False are unset."""
        options = {name: asked.pop(name, None) for each in _records(kind) for name in option_fields(each)}
        given = {name: value for name, value in options.items() if value is not None and value is not False}
        return cls(kind=kind, options=given, **asked)

    @property
    def prefix(self) -> str:
        """Return the prefix of printed lines."""
        return WORKLOADS[self.kind].prefix

    def given(self) -> dict[str, Any]:
        """Return {field: value} of the given fields that decide the measurement, as keywords for `of`."""
        given = {**({"axes": self.axes} if self.axes else {}), **self.options}
        return given | ({"seed": self.seed} if self.seed is not None else {})

    def words(self) -> list[str]:
        """Return the options that must be equal on all nodes, as command-line arguments."""
        words = [word for axis in self.axes for word in ("--set", axis)]
        words += [word for each in _records(self.kind) for word in typed(each, self.options)]
        return [*words, *(["--seed", str(self.seed)] if self.seed is not None else []), *["--resume"] * self.resume]

    def adding_s(self, plan: Plan[Any, Any]) -> float | None:
        """Return the time limit in seconds for repetitions that are added to the plan.

        It is infinite without a limit, and None if no repetitions are added. Raises UsageError.
        """
        race_s = plan.protocol.budget_s if plan.protocol.races else None
        if self.budget is not None and not self.until_decided and race_s is None:
            raise UsageError(
                "--budget is the time for racing; --launches disables racing, as do configurations that cannot share a "
                "launch; give --until-decided with it"
            )
        if self.budget is not None and not (self.budget > 0 and math.isfinite(self.budget)):
            raise UsageError(f"--budget is {self.budget:g}; give minutes, more than 0")
        if self.budget is not None:
            return 60 * self.budget
        return math.inf if self.until_decided else race_s

    def parts(self) -> tuple[Request, ...]:
        """Return the sessions of the request, in order. Raises UsageError."""
        suite = load_suite(self.suite) if self.suite is not None else None
        if self.kind != "training" or suite is None or not (suite.compute or suite.collectives):
            return (self,)
        common = replace(self, links=False, until_decided=False, budget=None, json_file=None, part_of=self.suite)
        parts: list[Request] = []
        if suite.compute:
            given = {name: value for name, value in self.options.items() if name not in _NOT_FOR_COMPUTE}
            parts.append(replace(common, kind="compute", options=given))
        if suite.collectives:
            devices = dict(each.split("=", 1) for each in self.axes if each.startswith(("device=", "threads=")))
            options = {**suite.collectives, **devices}
            parts.append(replace(common, kind="collectives", suite=None, axes=(), options=options))
        # The training runs use the ranks of this machine. The results for more ranks are predicted.
        here = tuple(each for each in self.axes if not (suite.compute and each.startswith("world_size=")))
        return (*parts, replace(self, axes=here, part_of=self.suite))

    def plan(self, machine: Machine) -> Planned[Any, Any] | None:
        """Return the plan for `machine`; None if a session is resumed with its stored plan. Raises UsageError."""
        if self.resume and self.suite is None and not self.given():
            return None
        return PLANNERS[self.kind](self, machine)

    def check_bare_resume(self) -> None:
        """Raise UsageError if the request has no suite, except if it resumes a session without changes."""
        if self.suite is not None:
            return
        if not self.resume:
            raise UsageError("no suite is given; name one that `parabench list` shows, or a path to a suite file")
        if self.given():
            raise UsageError(f"{self.words()[0]} cannot change a session that is resumed as it was planned; drop it")


def _records(kind: str) -> tuple[type[Record], ...]:
    """Return the two record classes with the options of a kind of measurement: of its cases and its protocol."""
    return WORKLOADS[kind].case_type, WORKLOADS[kind].protocol_type


# The options that compute-only launches lack. They share no launches, and their ranks cannot agree on a number of steps
# that fills a time, because each is alone.
_NOT_FOR_COMPUTE = {"launches", *BY_STEPS_OR_TIME.values()} | {
    name for name, each in option_fields(Protocol).items() if each.field.role == TURNS
}


def plan_training(request: Request, machine: Machine, turns: bool = False) -> Planned[Any, Protocol]:
    """Return the plan of the suite's training runs. With `turns`, cases may share launches. Raises UsageError."""
    request.check_bare_resume()
    overrides = parse_axes(request.axes)
    suite = load_suite(str(request.suite)).on(machine_kind(machine, overrides))
    protocol = protocol_of(request, suite.protocol)
    if not turns or (protocol.launches is not None and protocol.rounds is None):
        protocol = protocol.without_turns()
    plan = make_plan(suite, overrides, protocol, machine, request.seed or 0)
    if protocol.races and all(len(cohort) == 1 for cohort in cohorts(plan.cases)):
        protocol = protocol.without_turns()
    if protocol.aa_test and not protocol.takes_turns:
        raise UsageError(
            "--aa measures a configuration twice in a shared launch, and here no launch is shared; drop --launches, or "
            "give --rounds with it"
        )
    on_cuda = any(case.device == accelerator.TYPE for case in plan.cases)
    findings = [] if protocol.memory_snapshot <= on_cuda else [NO_MEMORY_SNAPSHOT]
    # The CPU has no history of allocations, so no step is taken for one.
    settled = protocol if on_cuda else protocol.replace(memory_snapshot=False)
    settled = settled.resolved(accelerator.TYPE if on_cuda else "cpu")
    if settled.takes_turns and not request.options.keys() & {*BY_STEPS_OR_TIME, *BY_STEPS_OR_TIME.values()}:
        settled = settled.briefly_alone()
    devices = overrides.get("device") or [
        device for sweep in suite.sweeps for device in sweep.axes.get("device", ("auto",))
    ]
    return Planned(
        plan=plan.replace(protocol=settled),
        suite=suite.name,
        question=suite.question,
        file=suite.path,
        findings=(*measured_on_cpu(devices, plan, machine), *findings),
    )


NO_MEMORY_SNAPSHOT = Finding(
    "no_memory_snapshot",
    "No memory snapshot is written: torch records allocations on CUDA only, and every configuration runs on the CPU.",
    "Run on a CUDA device for one; on the CPU see each part's resident set in the instrumented steps.",
)


def measured_on_cpu(devices: Collection[str], plan: Plan[Any, Any], machine: Machine) -> tuple[Finding, ...]:
    """Return a warning if the CPU is measured because no GPU can be used, and `devices` does not name the CPU."""
    if machine.cpu_reason is None or "auto" not in devices or all(case.device != "cpu" for case in plan.cases):
        return ()
    return (
        Finding(
            MEASURED_ON_CPU,
            f"Runs on the CPU: {machine.cpu_reason}.",
            "For a GPU, install its driver and a torch built for it. For the CPU, name it: device cpu.",
        ),
    )


def plan_compute(request: Request, machine: Machine) -> Planned[Any, Protocol]:
    """Return the plan of a suite's compute-only launches. Raises UsageError.

    Unless a sweep sets `nodes`, the ranks are divided among the fewest nodes like this machine. The launches measure
    the ranks of one node.
    """
    suite, overrides = load_suite(str(request.suite)), parse_axes(request.axes)
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
    return Planned(plan=plan.replace(kind="compute"), suite=suite.name, question=suite.question, file=suite.path)


def fewest_nodes(ranks: int, most: int) -> int:
    """Return the smallest number of nodes, of at most `most` ranks each, that divides `ranks` evenly."""
    return ranks // next(each for each in range(min(ranks, max(1, most)), 0, -1) if ranks % each == 0)


def machine_kind(machine: Machine, overrides: Mapping[str, tuple[Any, ...]]) -> str:
    """Return the element of `suite.MACHINES` that describes this machine with the requested devices."""
    devices = {device_of({"device": each}, machine) for each in overrides.get("device", ("auto",))}
    if accelerator.TYPE not in devices:
        return CPU
    return GPUS if machine.ranks(accelerator.TYPE) * machine.nodes > 1 else ONE_GPU


def protocol_of(request: Request, suites: Protocol) -> Protocol:
    """Return a suite's protocol with the requested changes. Raises UsageError for both steps and seconds."""
    # Seconds replace the suite's steps, and steps its seconds.
    other = BY_STEPS_OR_TIME | {timed: name for name, timed in BY_STEPS_OR_TIME.items()}
    freed = {other[name]: None for name in request.options if name in other}
    return suites.replace(**freed | dict(request.options))


# -- single collectives ------------------------------------------------------------------------------------------------

QUESTION = "Which algorithm moves data fastest here, at which size?"

# The largest size by backend, unless the user gives one. NVLink reaches its full rate from 512 MiB on; gloo copies CUDA
# tensors to host memory, so that the CPU's limit holds for them, too.
MOST = {"gloo": 64 * MIB, accelerator.BACKEND: 1024 * MIB}


def plan_collectives(request: Request, machine: Machine) -> Planned[CollectiveCase, CollectiveProtocol]:
    """Return the plan of `parabench collectives`: the cases with the requested fields.

    Raises UsageError for a case that is wrong or that this machine cannot run, and if no case is left.
    """
    asked = {name: value for name, value in request.options.items() if name in declared(CollectiveCase)}
    given = {name: value for name, value in request.options.items() if name not in asked}
    for name in given:
        if name not in declared(CollectiveProtocol):
            raise unknown("option of collectives", name, {**declared(CollectiveCase), **declared(CollectiveProtocol)})
    if given.get("mode") == LATENCY:
        for option in typed(CollectiveProtocol, {name: given.get(name) for name in ("batches", "measure_s")}):
            raise UsageError(f"{option} is for mode throughput, and mode latency times every call; leave it out")
    if {"iterations", "measure_s"} <= given.keys():
        raise UsageError("--iterations and --measure-seconds both set the number of timed calls; give one of them")
    protocol = CollectiveProtocol(**{"rounds": ROUNDS, **given})
    cases: dict[CollectiveCase, None] = {}
    skipped: dict[Skipped[CollectiveCase], None] = {}
    for case in _collective_cases(asked, protocol, machine):
        check_algorithm(case.algorithm, case.ranks_per_node)
        check_group(case)
        if (reason := exceeds_machine(case, machine)) is not None:
            raise UsageError(reason)
        if protocol.graph and not (case.backend == accelerator.BACKEND and is_backends(case.algorithm)):
            raise UsageError(
                f"--graph captures NCCL's own calls, and here {case.algorithm} runs over {case.backend}; leave --graph "
                "out, or use --algorithm native on CUDA devices"
            )
        if (reason := unpinned(case, machine.nccl)) is None:
            cases[case] = None
        else:
            skipped[Skipped(case, reason)] = None
    if not cases:
        raise UsageError(f"nothing to run; {next(iter(skipped)).reason}")
    plan: Plan[CollectiveCase, CollectiveProtocol] = Plan(
        cases=tuple(cases), skipped=tuple(skipped), protocol=protocol, seed=request.seed or 0
    )
    findings = measured_on_cpu([asked.get("device", "auto")], plan, machine)
    return Planned(plan=plan, suite=request.kind, question=QUESTION, findings=findings)


def _collective_cases(
    asked: Mapping[str, Any], protocol: CollectiveProtocol, machine: Machine
) -> Iterator[CollectiveCase]:
    """Yield the cases with the requested fields. `asked` has texts from the command line."""
    known = declared(CollectiveCase)
    fields = resolve_device(asked.get("device", "auto"), asked.get("backend", "auto"), machine)
    ops = parse_field(known["op"], asked["op"]) if "op" in asked else OPS
    if "world_size" in asked:
        sizes = [known["world_size"].checked(each) for each in parse_field(known["world_size"], asked["world_size"])]
    elif machine.ranks_per_node is not None:
        sizes = [machine.nodes * machine.ranks_per_node]
    else:
        sizes = [max(2, len(machine.gpus))] if fields["device"] == accelerator.TYPE else [2]
    ranks_per_node = known["ranks_per_node"].checked(asked.get("ranks_per_node"))
    fields |= {"max_bytes": MOST.get(fields["backend"], MOST["gloo"])}
    fields |= {name: parse_size(asked[name]) for name in ("min_bytes", "max_bytes") if name in asked}
    fields |= {name: asked[name] for name in ("factor", "dtype", "threads") if name in asked}
    for size, op in itertools.product(sizes, ops):
        nodes = machine.nodes_for(size)
        redop = asked.get("redop", "sum") if op in REDUCING else "none"
        if "algorithm" in asked:
            algorithms = list(dict.fromkeys(map(canonical, parse_field(known["algorithm"], asked["algorithm"]))))
        elif protocol.graph:
            algorithms = ["native"]
        else:  # all of parabench's; two_level only if there can be nodes
            several = ranks_per_node is not None or default_ranks_per_node(size) > 1
            algorithms = [name for name in ON_ANY_BACKEND if name != TWO_LEVEL or several]
        per_node = ranks_per_node or (size // nodes if machine.nodes > 1 else default_ranks_per_node(size))
        for algorithm in algorithms:
            case = CollectiveCase(op=op, algorithm=algorithm, world_size=size, nodes=nodes, redop=redop, **fields)
            yield case.replace(ranks_per_node=None if levels_of(algorithm) is None else per_node)


# The function that makes the plan of each kind of measurement.
PLANNERS: dict[str, Callable[[Request, Machine], Planned[Any, Any]]] = {
    "training": partial(plan_training, turns=True),
    "compute": plan_compute,
    "collectives": plan_collectives,
}
