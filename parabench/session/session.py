"""`parabench run`: from a request to a store and a report. What is wrong with a request is said before any launch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from parabench.cluster.entrance import dismiss, led, place_in
from parabench.cluster.topology import ONE_MACHINE, LauncherFlags, topology_of
from parabench.collectives import ALGORITHMS
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.machine.machine import Machine, this_machine
from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.plan.plan import TrainingPlan, make_plan
from parabench.plan.protocol import BY_STEPS_OR_TIME, Protocol
from parabench.plan.resolve import resolve_device
from parabench.plan.suite import CPU, GPUS, ONE_GPU, Suite, load_suite, parse_axis
from parabench.session.links import measure_links
from parabench.session.progress import outcome, say
from parabench.session.resume import (  # fmt: skip
    REPORT_NAME,
    Opened,
    begin_session,
    check_nodes_of,
    check_traces,
    resume,
    resume_command,
    store_in,
)
from parabench.session.runner import Executor, Progress, Session, executor_of
from parabench.session.stopping import Until
from parabench.session.walking import concluding, walk_session
from parabench.signals import STOPPED
from parabench.store.record import TRACES, Finding, Launch, check_label
from parabench.store.store import STORE_NAME, Store, load
from parabench.strategies import STRATEGIES

if TYPE_CHECKING:  # it brings torch
    from parabench.cluster.coordinator import Coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asked for, unchecked. None leaves a value to the suite."""

    suite: str | None
    argv: list[str]
    out: Path
    axes: tuple[str, ...] = ()
    launches: int | None = None
    steps: int | None = None
    warmup: int | None = None
    warmup_seconds: float | None = None
    measure_seconds: float | None = None
    instrumented: int | None = None
    deadline: float | None = None
    seed: int | None = None
    label: str | None = None
    resume: bool = False
    profile: bool = False
    memory_snapshot: bool = False
    until_decided: bool = False
    budget: float | None = None
    links: bool = False
    cluster: LauncherFlags = ONE_MACHINE

    def measured(self) -> list[str]:
        """The options that decide what is measured, as they are typed: on several nodes all must have them alike."""
        given: dict[str, float | None] = {"--launches": self.launches, "--steps": self.steps}
        given |= {"--warmup": self.warmup}
        given |= {"--warmup-seconds": self.warmup_seconds, "--measure-seconds": self.measure_seconds}
        given |= {"--instrumented": self.instrumented, "--deadline": self.deadline, "--seed": self.seed}
        words = [word for text in self.axes for word in ("--set", text)]
        words += [word for name, value in given.items() if value is not None for word in (name, f"{value:g}")]
        flags = {"--resume": self.resume, "--profile": self.profile, "--memory-snapshot": self.memory_snapshot}
        return words + [name for name, on in flags.items() if on]


TrainingOpened = Opened[Case, Protocol]


def run_suite(request: Request, console: Console, launch: Executor | None = None) -> int:
    """Run the request and return the exit code; `launch` stands in for real processes in tests.

    Raises UsageError before anything is launched or recorded.
    """
    until = Until.asked(request.until_decided, request.budget)
    machine = this_machine()
    site = topology_of(request.cluster, os.environ, machine)
    if site is not None:
        machine = replace(machine, nodes=site.nodes, ranks_per_node=site.ranks_per_node)
    if request.label is not None:
        check_label(request.label)
    path = request.out / STORE_NAME
    if request.suite is None:
        check_bare_resume(request)
    suite = load_suite(request.suite) if request.suite is not None else None
    plan = plan_request(request, suite, machine) if suite is not None else None
    file = suite.path if suite else None
    crew = place_in(site, request.measured(), file, machine, request.out, partial(say, console))
    if isinstance(crew, int):
        return crew
    go = partial(lead, request, suite, plan, machine, crew, until, console, launch)
    code, session_id = led(crew, go, partial(say, console))
    if code == STOPPED:
        return code
    return concluding(code, request.out, partial(conclude, path, session_id, console), partial(say, console))


def lead(
    request: Request,
    suite: Suite | None,
    plan: TrainingPlan | None,
    machine: Machine,
    crew: Coordinator | None,
    until: Until | None,
    console: Console,
    launch: Executor | None,
) -> tuple[int, int]:
    """Run the request here, where the store is kept, with the `crew` of other nodes: the exit code, and the session."""
    path = request.out / STORE_NAME
    if request.resume and not os.path.isfile(path):
        raise UsageError(f"{path} does not exist, so it holds no session to resume; run without --resume")
    if plan is not None:
        check_traces(request.out, plan.protocol)
    with store_in(request.out) as store:
        opened: TrainingOpened | None = None
        if request.resume:
            opened = resume(store, plan, label=request.label)
            check_nodes_of(opened.plan, machine)
            check_traces(request.out, opened.plan.protocol)
        if crew is not None:
            crew.assemble(own_code(opened.plan if opened else plan))
        if opened is None:
            assert suite is not None
            assert plan is not None
            opened = begin(store, request, suite, plan, machine, nodes=crew.environments() if crew else ())
            for finding in snapshotless(request, suite, plan):
                say(console, finding.message)
        links = partial(measure_links, store, opened, machine, partial(say, console))
        code = run_session(store, opened, console, launch, until, crew, first=links if request.links else None)
    dismiss(crew, code)
    return code, opened.session_id


def own_code(plan: TrainingPlan | None) -> list[str]:
    """What of the plan's strategies, algorithms and models is the user's own."""
    from parabench.cluster.fingerprint import own_names

    return own_names(plan.cases if plan else (), {"strategy": STRATEGIES, "algorithm": ALGORITHMS, "model": MODELS})


def check_bare_resume(request: Request) -> None:
    """Without a suite only a stored plan can be followed: raise UsageError when there is none, or more is asked."""
    if not request.resume:
        raise UsageError("no suite is given; name one that `parabench list` shows, or a path to a suite file")
    given = {"--set": request.axes or None, "--deadline": request.deadline}
    given |= {"--seed": request.seed}
    given |= {"--launches": request.launches, "--steps": request.steps, "--warmup": request.warmup}
    given |= {"--warmup-seconds": request.warmup_seconds, "--measure-seconds": request.measure_seconds}
    given |= {"--instrumented": request.instrumented}
    given |= {"--profile": request.profile or None, "--memory-snapshot": request.memory_snapshot or None}
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} cannot change a session that is resumed as it was planned; drop it")


def plan_request(request: Request, suite: Suite, machine: Machine) -> TrainingPlan:
    """The plan that the request makes of the suite. Raises UsageError."""
    overrides: dict[str, tuple[Any, ...]] = {}
    for text in request.axes:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text!r}: give AXIS=VALUE, as in --set world_size=2")
        if name in overrides:
            raise UsageError(f"axis {name!r} is given twice; give all its values at once: --set {name}=A,B")
        overrides[name] = parse_axis(name, values)
    suite = suite.on(kind_of(machine, overrides))
    protocol = protocol_of(request, suite.protocol)
    plan = make_plan(suite, overrides, protocol, machine, request.seed or 0)
    if any(case.device == accelerator.TYPE for case in plan.cases):
        return replace(plan, protocol=protocol.resolved(accelerator.TYPE))
    # Without a CUDA device there is nothing to remember: `snapshotless` says so, and no step is taken for it.
    return replace(plan, protocol=replace(protocol, memory_snapshot=False).resolved("cpu"))


def kind_of(machine: Machine, overrides: Mapping[str, tuple[Any, ...]]) -> str:
    """Which of a suite's machines this one is, for the devices that were asked for."""
    devices = {resolve_device(each, "auto", machine)["device"] for each in overrides.get("device", ("auto",))}
    if accelerator.TYPE not in devices:
        return CPU
    return GPUS if machine.ranks(accelerator.TYPE) * machine.nodes > 1 else ONE_GPU


def protocol_of(request: Request, suites: Protocol) -> Protocol:
    """The suite's protocol with what the request asks for instead. Raises UsageError for steps and seconds at once."""
    given: dict[str, Any] = {
        "launches": request.launches,
        "steps": request.steps,
        "warmup": request.warmup,
        "warmup_s": request.warmup_seconds,
        "measure_s": request.measure_seconds,
        "instrumented": request.instrumented,
        "deadline_s": request.deadline,
        "profile": request.profile or None,
        "memory_snapshot": request.memory_snapshot or None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    # Who asks for seconds does not want the suite's steps, and the reverse.
    other = dict(chain(BY_STEPS_OR_TIME.items(), ((timed, name) for name, timed in BY_STEPS_OR_TIME.items())))
    freed = {other[name]: None for name in given if name in other}
    return replace(suites, **freed | given)


def snapshotless(request: Request, suite: Suite, plan: TrainingPlan) -> Iterator[Finding]:
    """The finding that a memory snapshot was asked for and there is none."""
    if (request.memory_snapshot or suite.protocol.memory_snapshot) and not plan.protocol.memory_snapshot:
        yield Finding(
            "no_memory_snapshot",
            "No memory snapshot is written: torch keeps a history of its allocator on CUDA only, and every case runs "
            "on the CPU.",
            "Run on a CUDA device for one; on the CPU see each part's resident set in the instrumented steps.",
        )


def begin(
    store: Store,
    request: Request,
    suite: Suite,
    plan: TrainingPlan,
    machine: Machine,
    interleaved: dict[str, str] | None = None,
    nodes: Sequence[Mapping[str, Any]] = (),
    about: Mapping[str, Any] | None = None,
) -> TrainingOpened:
    """A new session of a suite; `interleaved` as `Store.begin_session` takes it, `nodes` and `about` as
    `begin_session`."""
    opened = begin_session(
        store,
        plan,
        machine,
        label=request.label,
        suite=suite.name,
        question=suite.question,
        argv=request.argv,
        interleaved=interleaved,
        nodes=nodes,
        about=about,
    )
    for finding in snapshotless(request, suite, plan):
        store.add_finding(opened.session_id, finding)
    return opened


def run_session(
    store: Store,
    opened: TrainingOpened,
    console: Console,
    launch: Executor | None,
    until: Until | None = None,
    crew: Coordinator | None = None,
    first: Callable[[Executor], None] | None = None,
) -> int:
    """Launch what is left of a session of trainings, and what `until` adds; returns the exit code. `first` is done
    before the first launch, if there is one."""

    def walk(keep: Callable[[Launch], None], progress: Progress) -> Session:
        here = launch or executor_of(crew)
        if first is not None:
            first(here)
        return Session(
            plan=opened.plan,
            launch=here,
            keep=crew.keeping(keep, outcome) if crew else keep,
            progress=progress,
            done=opened.done,
            references=dict(opened.references),
            traces=store.path.parent / TRACES,
        )

    options = (*(until.options if until else ()), *(crew.site.words if crew else ()), *(["--links"] if first else []))
    return walk_session(
        store, opened, console, walk, until=until, go_on=resume_command(store.path, "training", *options)
    )


def conclude(path: Path, session_id: int, console: Console) -> None:
    """Write the report, and say the verdict and where the report is."""
    from parabench.analysis.text.progress import verdict
    from parabench.report.build import write_report

    results = load(path)
    report = write_report(results, path.with_name(REPORT_NAME), str(session_id))
    for line in verdict(results, str(session_id)):
        say(console, line)
    say(console, f"store:  {path}")
    say(console, f"report: {report}")
