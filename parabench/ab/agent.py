"""Plan, launch and store the session of one variant of `parabench ab`, on request of the driver (`driver`)."""

from __future__ import annotations

import socket
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

import parabench
from parabench.analysis import format
from parabench.analysis.numbers import unique_labels
from parabench.cluster.connection import PROTOCOL, Connection, LaunchEvent, Message, Refused, Reply, answer, request
from parabench.errors import UsageError
from parabench.launch.spec import LaunchSpec
from parabench.launch.token import Pair, PartnerEnded
from parabench.machine import accelerator
from parabench.machine.host import memory_limit
from parabench.machine.machine import this_machine
from parabench.machine.nvml import free_memory, one_process_only
from parabench.plan.case import Case
from parabench.plan.cohorts import SEEN_SHARE, cohorts, launch_bytes, why_alone
from parabench.plan.plan import PlannedLaunch, Skipped
from parabench.plan.protocol import Protocol
from parabench.registry import import_from_here
from parabench.session.progress import Progress, outcome
from parabench.session.request import Planned, Request, plan_training
from parabench.session.resume import SessionState, begin_session, check_traces, load_state
from parabench.session.runner import Executor, Runner
from parabench.session.session import runner_of
from parabench.signals import STOPPED, Interrupted, die_with_parent, stop_signals
from parabench.store.database import SCHEMA_VERSION
from parabench.store.record import AnyCase, Launch, Status
from parabench.store.store import Store

# The default options if cases can be interleaved. With them, 99% of simulated gates detect a slowdown of 5% if launches
# differ by 1.5%. With 5 launches, 89% do (docs/explanation/certainty.md).
INTERLEAVED = {"launches": 8, "rounds": 60}

# The device memory of a rank for CUDA's context and NCCL's buffers, which torch's allocator does not count. This is an
# assumption, and was not measured on a GPU.
CONTEXT_BYTES = 1 << 30

# The code that starts a variant. With `-m`, every rank would import this module again.
COMMAND = "from parabench.ab.agent import main; main()"


class VariantAgent(Progress):
    """The session of one variant. `send` sends the progress of its launches to the driver.

    The driver calls the methods that are marked `@request`. `executor` replaces real processes in tests.
    """

    _request: Request
    _planned: Planned[Case, Protocol] | None = None
    _store: Store
    _state: SessionState[Case, Protocol]
    # The planned launches by case id and repetition, and the last launch.
    _launches: dict[tuple[str, int], PlannedLaunch[Case]]
    _runner: Runner
    _launched: tuple[LaunchSpec, Launch]

    def __init__(self, send: Callable[[LaunchEvent], None], executor: Executor | None = None) -> None:
        self._send, self._executor = send, executor

    def launching(self, cases: Sequence[AnyCase], repetition: int, rounds: int | None = None) -> None:
        label = f"{format.count(len(cases), 'configuration')} interleaved" if len(cases) > 1 else cases[0].label
        self._send(LaunchEvent(label, repetition))

    def launched(self, launch: Launch) -> None:
        ok = launch.status is Status.OK
        self._send(LaunchEvent(launch.case.label, launch.repetition, outcome(launch), ok))

    def reply_to(self, message: Message) -> Reply | Refused:
        """Return the reply to a request, or the error that it raised."""
        try:
            return answer(self, message)
        except (UsageError, OSError, sqlite3.Error) as error:
            return Refused(" ".join(str(error).split()))

    @request
    def identify(self) -> dict[str, Any]:
        """Return {"protocol", "schema", "version", "package"}: versions of this parabench, and its package's folder."""
        package = str(Path(__file__).resolve().parent.parent)
        return {
            "protocol": PROTOCOL, "schema": SCHEMA_VERSION, "version": parabench.__version__, "package": package
        }  # fmt: skip

    @request
    def plan(self, /, **fields: Any) -> dict[str, Any]:
        """Plan the session of a `Request` with these fields. By default, launches are interleaved if any case can be.

        Return {"cases": {id: label}, "skipped": {id: reason}, "protocol": {field: value}, "seed": number}.
        """
        wanted = Request.of(**fields | {"argv": [], "out": Path(fields["out"]), "axes": tuple(fields.get("axes", ()))})
        machine = this_machine()
        interleaved = replace(wanted, options={**INTERLEAVED, **wanted.options})
        wanted = interleaved if wanted.options.get("rounds") else wanted
        planned = plan_training(wanted, machine, turns="rounds" in wanted.options)
        if "rounds" not in wanted.options and len(not_interleaved(planned.plan.cases)) < len(planned.plan.cases):
            wanted, planned = interleaved, plan_training(interleaved, machine, turns=True)
        self._request, self._planned = wanted, planned
        plan = planned.plan
        check_traces(wanted.out, plan.protocol)
        return {
            "cases": unique_labels({case.id: case for case in plan.cases}),
            "skipped": {each.case.id: each.reason for each in plan.skipped},
            "protocol": plan.protocol.to_dict(),
            "seed": plan.seed,
        }

    @request
    def begin(
        self, *, cases: list[str], aside: dict[str, str], store: str, label: str, argv: list[str],
        interleaved: dict[str, str],
    ) -> dict[str, Any]:  # fmt: skip
        """Start a session of these planned cases, in this order. Skip the cases `aside`, {case id: reason}."""
        planned = self._common_plan(cases, aside)
        self._store = Store.open_or_create(Path(store))
        named = replace(self._request, label=label, argv=argv)
        return self._open(begin_session(self._store, named, planned, this_machine(), interleaved=interleaved))

    @request
    def resume(
        self, *, cases: list[str], aside: dict[str, str], store: str, run: str, side: str, instead: str
    ) -> dict[str, Any]:
        """Continue a session. If `cases` differ from the stored plan, the error suggests the command `instead`."""
        self._store = Store.open_or_create(Path(store))
        plan = self._common_plan(cases, aside).plan if cases else None
        return self._open(load_state(self._store, self._store.sides(run)[side], plan, instead))

    def _common_plan(self, cases: list[str], aside: dict[str, str]) -> Planned[Case, Protocol]:
        """Return the plan with only `cases`, which both variants can run. Skip the cases `aside`, {case id: reason}."""
        assert self._planned is not None
        plan = self._planned.plan
        known: dict[str, Case] = {case.id: case for case in plan.cases}
        skipped = tuple(Skipped(known[each], reason) for each, reason in aside.items())
        plan = plan.replace(cases=tuple(known[each] for each in cases), skipped=plan.skipped + skipped)
        return replace(self._planned, plan=plan)

    @request
    def start(self) -> None:
        """Prepare to launch."""
        self._launches = {(each.case.id, each.repetition): each for each in self._state.plan.launches()}
        self._runner = runner_of(self._store, self._state, self._executor)
        self._runner.progress = self

    @request
    def explain(self) -> dict[str, Any]:
        """Run launches that log NCCL's choices. Return {"left_out": {case id: reason}} of cases that NCCL refuses."""
        for case in self._runner.plan.cases:
            self._runner.run_nccl_probe(case)
        skipped = self._runner.plan.skipped
        return {"left_out": {each.case.id: each.reason for each in skipped if each.tried}}

    @request
    def leave_out(self, *, cases: dict[str, str]) -> None:
        """Remove cases that one variant cannot launch, {case id: reason}, from the plan."""
        for case in self._runner.plan.cases:
            if case.id in cases:
                self._runner.plan = self._runner.plan.without(case, cases[case.id])
        self._store.replan(self._state.session_id, self._runner.plan.to_dict())

    @request
    def prepare(self, *, case: str) -> None:
        """Launch the single-device reference of a case, if it is not known yet."""
        self._runner.run_reference(next(each for each in self._runner.plan.cases if each.id == case))

    @request
    def need(self, *, cases: list[str], repetition: int) -> dict[str, Any]:
        """Return {"deadline_s", "timed", "memory"} of an interleaved launch of these cases.

        "timed" has the measured steps per turn of each case. "memory" is {name: [needed bytes, free bytes]}, or the
        reason why it is unknown.
        """
        shared = self._cases(cases, repetition)
        spec = self._runner.spec_of(shared, repetition, shared=True)
        on_cuda = spec.device == accelerator.TYPE
        memory = device_need(shared, self._runner.held()) if on_cuda else host_need(shared, self._runner.peaks)
        return {"deadline_s": spec.deadline_s, "timed": list(spec.protocol.timed), "memory": memory}

    @request
    def launch(
        self, *, cases: list[str], repetition: int, pair: dict[str, str] | None = None, deadline_s: float = 0.0,
        timed: Sequence[int] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Run a launch without storing it. Return {"status", "ended": whether it only failed because the other did}.

        With a `pair`, all cases share an interleaved launch, with `timed` measured steps per turn.
        """
        run = self._cases(cases, repetition)
        self.launching(run, repetition)
        spec = self._runner.spec_of(run, repetition, shared=pair is not None)
        if pair is not None:
            protocol = spec.protocol.replace(timed=tuple(timed))
            spec = spec.replace(pair=Pair(**pair), deadline_s=deadline_s, protocol=protocol)
        self._launched = spec, self._runner.launch(spec)
        _, launched = self._launched
        failure = launched.failure.message if launched.failure else ""
        return {"status": launched.status, "ended": failure.startswith(PartnerEnded.__name__)}

    @request
    def keep(self, *, repetition: int) -> dict[str, Any]:
        """Store the last launch. Return {"kept": ids of its cases, "failed": ids of all cases that failed so far}."""
        planned = {each.case: each for each in self._launches.values() if each.repetition == repetition}
        spec, launched = self._launched
        kept = self._runner.keep_launch(launched, spec, planned)
        return {"kept": [case.id for case in kept], "failed": sorted(self._runner.failed)}

    @request
    def finish(self) -> None:
        """Mark the session as finished."""
        self._store.finish_session(self._state.session_id)

    def close(self) -> None:
        if hasattr(self, "_store"):
            self._store.close()

    def _cases(self, ids: list[str], repetition: int) -> tuple[Case, ...]:
        return tuple(self._launches[each, repetition].case for each in ids)

    def _open(self, state: SessionState[Case, Protocol]) -> dict[str, Any]:
        """Keep the state of the session, and return its plan.

        "cohorts" are lists of ids of cases that share launches, and "alone" is `not_interleaved`. "turns" and "done"
        are the planned and the finished launches, [[case id, repetition]].
        """
        self._state, plan = state, state.plan
        # The other variant needs its half.
        half = {device: memory and memory // 2 for device, memory in this_machine().room.items()}
        together = cohorts(plan.cases, half)
        return {
            "session": state.session_id,
            "seed": plan.seed,
            "repetitions": plan.repetitions,
            "rounds": plan.protocol.rounds,
            "cohorts": [[case.id for case in cohort] for cohort in together],
            "alone": not_interleaved(plan.cases),
            "turns": [(each.case.id, each.repetition) for each in plan.launches()],
            "done": sorted(state.done),
        }


def not_interleaved(cases: Sequence[Case]) -> dict[str, str]:
    """Return {case id: reason} of the cases that cannot be interleaved with the other variant."""
    found = {case.id: why for case in cases if (why := why_alone(case))}
    on_cuda = [case.id for case in cases if case.device == accelerator.TYPE]
    if on_cuda and one_process_only():
        found = dict.fromkeys(on_cuda, "a device lets one process compute at a time (compute mode exclusive)") | found
    return found


def host_need(cases: Sequence[Case], peaks: Mapping[str, Sequence[float]]) -> dict[str, list[float | None]]:
    """Return {"host memory": [needed bytes, free bytes]} of a CPU launch. `peaks` has bytes per rank, by case id."""
    own = psutil.Process().memory_info().rss  # about the memory of a rank before it builds anything
    needed = sum(max(0.0, peak - own) for case in cases for peak in peaks.get(case.id, ()))
    free = min(psutil.virtual_memory().available, memory_limit() or sys.maxsize)
    return {"host memory": [needed, free]}


def device_need(cases: Sequence[Case], held: Mapping[str, float]) -> dict[str, list[float | None]] | str:
    """Return {device: [needed bytes, free bytes]} of a launch, or the reason why it is unknown.

    `held` has the device memory of a rank in bytes, by case id. Free bytes are `None` if they are unknown.
    """
    unseen = next((case.label for case in cases if case.id not in held), None)
    if unseen is not None:
        return f"the device memory of the ranks of {unseen} is not known"
    size = max(case.world_size for case in cases)
    there = free_memory(size)
    if not there:
        return "NVML does not list the devices that the ranks use"
    needed = -(-size // len(there)) * (launch_bytes(cases, held) + CONTEXT_BYTES)
    return {
        f"device {each.number} ({each.address})": [needed, None if free is None else SEEN_SHARE * free]
        for each, free in there
    }


def main() -> None:
    """Answer requests on the socket with the descriptor argv[2], until it or the process argv[1] ends."""
    die_with_parent(int(sys.argv[1]))
    connected = socket.socket(fileno=int(sys.argv[2]))
    connected.set_inheritable(False)
    # Models in the working directory, and the suites of a checkout that is not installed, must be importable.
    import_from_here()
    tree = Path(parabench.__path__[0]).parent
    if (tree / "pyproject.toml").is_file():
        parabench.__path__.append(str(tree))
    try:
        with stop_signals():
            serve(Connection(connected))
    except Interrupted:
        sys.exit(STOPPED)


def serve(connection: Connection) -> None:
    """Answer requests until the driver closes the connection."""
    with closing(VariantAgent(connection.send)) as agent, suppress(EOFError, ConnectionError):
        while True:
            if (message := connection.receive()) is not None:
                connection.send(agent.reply_to(message))
