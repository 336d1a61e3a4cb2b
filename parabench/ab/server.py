"""One side of `parabench ab`: a driver of its own, which launches when it is told to.

It is asked in JSON, one question at a time, and answers each; before that it tells which launches begin and end.
`driver.py` decides whose turn it is; `remote.py` is the other end of the connection.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import parabench
from parabench.ab.memory import device_need, host_need
from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.launch.token import Pair, PartnerEnded
from parabench.machine import accelerator
from parabench.machine.machine import this_machine
from parabench.machine.sharing import one_process_only
from parabench.plan.case import Case
from parabench.plan.cohorts import cohorts, why_alone
from parabench.plan.plan import PlannedLaunch, Skipped, TrainingPlan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import load_suite
from parabench.registry import import_from_here
from parabench.session.base_runner import Executor
from parabench.session.progress import Progress, outcome
from parabench.session.request import Planned, TrainingRequest, plan_training
from parabench.session.resume import SessionState, begin_session, check_traces, load_state
from parabench.session.runner import TrainingRunner
from parabench.session.session import runner_of
from parabench.signals import STOPPED, Interrupted, die_with_parent, stop_signals
from parabench.store.record import AnyCase, Launch, Status
from parabench.store.schema import SCHEMA_VERSION
from parabench.store.store import Store

# Another number when what is said between the two ends changes: sides may be of several versions.
PROTOCOL = 5

# What is measured where nobody says and cases can take turns. As many rounds in 5 launches find a slowdown of 5 % in
# 89 % of simulated gates where launches differ by 1.5 %, in 8 in 99 %: a t-test of 5 has few degrees of freedom
# (docs/explanation/certainty.md).
IN_TURNS = {"launches": 8, "rounds": 60}

# How the other end starts a side. Not `-m`: every rank would import that module again.
COMMAND = "from parabench.ab.server import main; main()"

Tell = Callable[[dict[str, Any]], None]


class Told(Progress):
    """Tells the other end how launches go on, as a session's progress. `deadline_s` is that of a case's launch."""

    def __init__(self, tell: Tell, deadline_s: Callable[[Case], float]) -> None:
        self._tell, self._deadline_s = tell, deadline_s

    def launching(self, case: AnyCase, block: int) -> None:
        assert isinstance(case, Case)
        deadline_s = self._deadline_s(case)
        self._tell({"tells": "starting", "label": case.label, "block": block, "deadline_s": deadline_s})

    def launched(self, launch: Launch) -> None:
        ok = launch.status is Status.OK
        said = {"label": launch.case.label, "block": launch.block, "how": outcome(launch), "ok": ok}
        self._tell({"tells": "ended", **said})


class Side:
    """What a side does when it is asked, a method for each question. `launch` stands in for real processes in tests."""

    _request: TrainingRequest
    _state: SessionState[Case, Protocol]
    _turns: dict[tuple[str, int], PlannedLaunch[Case]]
    _runner: TrainingRunner | None = None
    # What `take_turns` saw.
    _shared: Launch

    def __init__(self, tell: Tell, launch: Executor | None = None) -> None:
        self._tell, self._launch = tell, launch
        self._planned: Planned[Case, Protocol] | None = None
        self._store: Store | None = None

    def answer(self, asked: str, values: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question, {"refused": why} when it cannot be done."""
        try:
            return getattr(self, asked)(**values) or {}
        except (UsageError, OSError, sqlite3.Error) as error:
            return {"refused": " ".join(str(error).split())}

    def hello(self) -> dict[str, Any]:
        """Who is there: what it speaks and writes, the folders of the package and of this module, which are one unless
        something mixes two trees, and that it knows launches that take turns with the other side's."""
        return {
            "protocol": PROTOCOL,
            "schema": SCHEMA_VERSION,
            "version": parabench.__version__,
            "package": str(Path(str(parabench.__file__)).resolve().parent),
            "module": str(Path(__file__).resolve().parent.parent),
            "turns": True,
        }

    def plan(self, turns: bool = False, **request: Any) -> dict[str, Any]:
        """Plan what these fields of a `Request` ask for: {"cases": {id: label}, "skipped": {id: reason}, "protocol":
        its fields, "seed"}. Labels are told apart by fields that differ. With `turns` launches take turns with the
        other side's where cases can and nobody asks for something else."""
        asked = TrainingRequest.of(
            **request | {"argv": [], "out": Path(request["out"]), "axes": tuple(request.get("axes", ()))}
        )
        assert asked.suite is not None
        suite, machine = load_suite(asked.suite), this_machine()
        if asked.options.get("rounds"):
            asked = replace(asked, options={**IN_TURNS, **asked.options})
        planned = plan_training(asked, suite, machine, turns="rounds" in asked.options)
        if turns and "rounds" not in asked.options and len(alone_of(planned.plan.cases)) < len(planned.plan.cases):
            asked = replace(asked, options={**IN_TURNS, **asked.options})
            planned = plan_training(asked, suite, machine, turns=True)
        self._request, self._planned = asked, planned
        plan = planned.plan
        check_traces(asked.out, plan.protocol)
        return {
            "cases": labels(plan.cases),
            "skipped": {each.case.id: each.reason for each in plan.skipped},
            "protocol": plan.protocol.to_dict(),
            "seed": plan.seed,
        }

    def share(self, cases: list[str], aside: dict[str, str]) -> dict[str, Any]:
        """Plan these cases alone, in this order; those `aside`, with their reasons, are skipped. The turns that this
        makes: {"turns": [[case id, block]]}."""
        assert self._planned is not None
        plan = self._planned.plan
        known: dict[str, Case] = {case.id: case for case in plan.cases}
        skipped = tuple(Skipped(known[each], reason) for each, reason in aside.items())
        plan = plan.replace(cases=tuple(known[each] for each in cases), skipped=plan.skipped + skipped)
        self._planned = replace(self._planned, plan=plan)
        return {"turns": turns_of(plan)}

    def begin(self, store: str, label: str, argv: list[str], interleaved: dict[str, str]) -> dict[str, Any]:
        """Begin a session of what is shared."""
        assert self._planned is not None
        self._store = Store.open_or_create(Path(store))
        named = replace(self._request, label=label, argv=argv)
        return self._open(begin_session(self._store, named, self._planned, this_machine(), interleaved=interleaved))

    def resume(self, store: str, run: str, side: str, instead: str) -> dict[str, Any]:
        """Continue a session as it was planned; when something is shared now, it must have been planned for that, else
        the command to use `instead` is told."""
        self._store = Store.open_or_create(Path(store))
        plan = self._planned.plan if self._planned else None
        return self._open(load_state(self._store, self._store.sides(run)[side], plan, instead))

    def start(self) -> None:
        assert self._store is not None
        self._turns = {(each.case.id, each.block): each for each in self._state.plan.launches()}
        runner = runner_of(self._store, self._state, self._launch)
        assert isinstance(runner, TrainingRunner)
        runner.progress = Told(self._tell, runner.deadline_s)
        self._runner = runner

    def explain(self) -> dict[str, Any]:
        """Let NCCL tell what it chooses for each case, in launches that do not count: {"left_out": {case id: why}} of
        those that it refuses to be pinned to."""
        assert self._runner is not None
        for case in self._runner.plan.cases:
            self._runner.run_nccl_probe(case)
        return {"left_out": left_out(self._runner.plan)}

    def leave_out(self, cases: dict[str, str]) -> dict[str, Any]:
        """Take out of the plan what one of the sides cannot launch, {case id: why}, and was not taken out before; the
        turns that are left: {"turns": [[case id, block]]}."""
        assert self._store is not None
        plan = self._runner.plan if self._runner else self._state.plan
        for case in plan.cases:
            if case.id in cases:
                plan = plan.without(case, cases[case.id])
        self._store.replan(self._state.session_id, plan.to_dict())
        self._state = replace(self._state, plan=plan)
        if self._runner:
            self._runner.plan = plan
        return {"turns": turns_of(plan)}

    def prepare(self, case: str) -> None:
        """Launch the single-device reference of a case, where it is not known yet."""
        assert self._runner is not None
        self._runner.run_reference(next(each for each in self._runner.plan.cases if each.id == case))

    def take(self, case: str, block: int) -> dict[str, Any]:
        """Launch a case by itself: {"failed": ids of the cases of which a launch has}."""
        assert self._runner is not None
        self._runner.run_launch(self._turns[case, block])
        return self._failed()

    def turns_need(self, cases: list[str], block: int) -> dict[str, Any]:
        """What a launch needs that these cases share: {"deadline_s", "own": how many steps of a turn count, of each
        case}, and of memory what `memory.host_need` or `memory.device_need` tells."""
        assert self._runner is not None
        of = self._cases(cases, block)
        spec = self._runner.turns_spec(of, block)
        on_cuda = spec.device == accelerator.TYPE
        memory = device_need(of, self._runner.held()) if on_cuda else host_need(of, self._runner.peaks)
        return {"deadline_s": spec.deadline_s, "own": list(spec.protocol.own), **memory}

    def take_turns(
        self, cases: list[str], block: int, pair: dict[str, str], deadline_s: float, own: list[int] | None = None
    ) -> dict[str, Any]:
        """Make a launch that these cases share, and that takes turns with one of the other side's, but do not keep it:
        {"status", "ended": whether it failed because the other one has ended}. `own` is what `turns_need` tells, where
        both sides had to agree on it."""
        assert self._runner is not None
        of = self._cases(cases, block)
        label = f"{format.count(len(cases), 'case')} in turns" if len(cases) > 1 else of[0].label
        self._tell({"tells": "starting", "label": label, "block": block, "deadline_s": deadline_s})
        spec = replace(self._runner.turns_spec(of, block), pair=Pair(**pair), deadline_s=deadline_s)
        if own is not None:
            spec = replace(spec, protocol=spec.protocol.replace(own=tuple(own)))
        self._shared = launch = self._runner.launch(spec)
        failure = launch.failure.message if launch.failure else ""
        return {"status": launch.status, "ended": failure.startswith(PartnerEnded.__name__)}

    def keep_turns(self, block: int) -> dict[str, Any]:
        """Keep what the launch of `take_turns` tells: {"kept": ids of cases, "failed": as `take` tells}."""
        assert self._runner is not None
        planned = {each.case: each for each in self._turns.values() if each.block == block}
        kept = self._runner.keep_turns(self._shared, planned)
        return {"kept": [case.id for case in kept], **self._failed()}

    def finish(self) -> None:
        assert self._store is not None
        self._store.finish_session(self._state.session_id)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _cases(self, ids: list[str], block: int) -> tuple[Case, ...]:
        return tuple(self._turns[each, block].case for each in ids)

    def _failed(self) -> dict[str, list[str]]:
        assert self._runner is not None
        return {"failed": sorted(self._runner.failed)}

    def _open(self, state: SessionState[Case, Protocol]) -> dict[str, Any]:
        """What there is to do: {"session": its id, "seed", "blocks", "rounds" in which cases take turns, "cohorts":
        ids of those that share launches, "alone": {case id: why} of others, "turns": [[case id, block]], "done": the
        same, "left_out": {case id: why} of what launches have shown not to run here}."""
        self._state, plan = state, state.plan
        # Those of the other side are there at the same time.
        half = {device: memory and memory // 2 for device, memory in this_machine().room.items()}
        together = cohorts(plan.cases, half)
        return {
            "session": state.session_id,
            "seed": plan.seed,
            "blocks": plan.blocks,
            "rounds": plan.protocol.rounds,
            "cohorts": [[case.id for case in cohort] for cohort in together],
            "alone": alone_of(plan.cases),
            "turns": turns_of(plan),
            "done": sorted(state.done),
            "left_out": left_out(plan),
        }


def alone_of(cases: Sequence[Case]) -> dict[str, str]:
    """{case id: why} of the cases whose launches are whole ones that alternate with the other side's."""
    found = {case.id: why for case in cases if (why := why_alone(case))}
    on_cuda = [case.id for case in cases if case.device == accelerator.TYPE]
    if on_cuda and one_process_only():
        found = dict.fromkeys(on_cuda, "a device lets one process compute at a time (compute mode exclusive)") | found
    return found


def left_out(plan: TrainingPlan) -> dict[str, str]:
    """{case id: why} of the cases that were launched and cannot run here."""
    return {each.case.id: each.reason for each in plan.skipped if each.tried}


def turns_of(plan: TrainingPlan) -> list[tuple[str, int]]:
    """(case id, block) of each launch to come, in order."""
    return [(each.case.id, each.block) for each in plan.launches()]


def labels(cases: Sequence[Case]) -> dict[str, str]:
    """Each case's label, with fields that differ where several have the same."""
    if len({case.label for case in cases}) == len(cases):
        return {case.id: case.label for case in cases}
    from parabench.analysis.tables import unique_labels

    return unique_labels({case.id: case for case in cases})


def main() -> None:
    """Answer what is asked through the connection whose descriptor is the second argument, until it ends. The process
    does not outlive the one at the other end, whose id is the first."""
    die_with_parent(int(sys.argv[1]))
    if len(sys.argv) < 3:
        sys.exit(f"this parabench speaks protocol {PROTOCOL} of ab, and the one that asks an older one")
    connection = Connection(int(sys.argv[2]))
    os.set_inheritable(connection.fileno(), False)
    find_code()
    try:
        with stop_signals():
            serve(connection)
    except Interrupted:
        sys.exit(STOPPED)


def serve(connection: Connection[bytes, bytes]) -> None:
    """Answer each question as it comes."""

    def say(values: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(values).encode())

    with closing(Side(say)) as side, suppress(EOFError, ConnectionError):
        while True:
            values = json.loads(connection.recv_bytes())
            say({"answer": side.answer(values.pop("ask"), values)})


def find_code() -> None:
    """A user's own model is found where this process stands; and in a source tree, which need not be installed, suites
    stand beside the package."""
    import_from_here()
    tree = Path(parabench.__path__[0]).parent
    if (tree / "pyproject.toml").is_file():
        parabench.__path__.append(str(tree))
