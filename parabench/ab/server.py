"""One side of `parabench ab`: a driver of its own, which launches when it is told to.

It is asked in lines of JSON, one at a time, and answers each with one; before that it tells which launches begin and
end. `ab.py` decides whose turn it is; `side_process.py` is the other end of the line.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

import parabench
from parabench.errors import UsageError
from parabench.machine.machine import this_machine
from parabench.plan.case import Case
from parabench.plan.plan import PlannedLaunch, Skipped, TrainingPlan
from parabench.plan.suite import Suite, load_suite
from parabench.session.progress import outcome
from parabench.session.resume import check_traces, reopened
from parabench.session.runner import Executor, Session, executor_of
from parabench.session.session import Request, TrainingOpened, begin, plan_request
from parabench.signals import STOPPED, Interrupted, die_with_parent, stop_signals
from parabench.store.record import TRACES, AnyCase, Launch, Status
from parabench.store.schema import SCHEMA_VERSION
from parabench.store.store import Store

# Another number when what is said between the two ends changes: sides may be of several versions.
PROTOCOL = 3

# How the other end starts a side. Not `-m`: every rank would import that module again.
COMMAND = "from parabench.ab.server import main; main()"

Tell = Callable[[dict[str, Any]], None]


class Told:
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
    """What a side does when it is asked. `launch` stands in for real processes in tests."""

    def __init__(self, tell: Tell, launch: Executor | None = None) -> None:
        self._tell, self._launch = tell, launch
        self._planned: tuple[Request, Suite, TrainingPlan] | None = None
        self._shared: TrainingPlan | None = None
        self._session: Session | None = None
        self._store: Store | None = None
        self._opened: TrainingOpened | None = None
        self._turns: dict[tuple[str, int], PlannedLaunch[Case]] = {}

    def answer(self, asked: str, values: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question, {"refused": why} when it cannot be done."""
        known: dict[str, Callable[..., dict[str, Any] | None]] = {
            "hello": self.hello, "plan": self.plan, "share": self.share, "begin": self.begin, "resume": self.resume,
            "start": self.start, "explain": self.explain, "leave_out": self.leave_out, "prepare": self.prepare,
            "take": self.take, "finish": self.finish,
        }  # fmt: skip
        try:
            return known[asked](**values) or {}
        except (UsageError, OSError, sqlite3.Error) as error:
            return {"refused": " ".join(str(error).split())}

    def hello(self) -> dict[str, Any]:
        """Who is there: what it speaks and writes, and the folders of the package and of this module, which are one
        unless something mixes two trees."""
        return {
            "protocol": PROTOCOL,
            "schema": SCHEMA_VERSION,
            "version": parabench.__version__,
            "package": str(Path(str(parabench.__file__)).resolve().parent),
            "module": str(Path(__file__).resolve().parent),
        }

    def plan(self, **request: Any) -> dict[str, Any]:
        """Plan what these fields of a `Request` ask for: {"cases": {id: label}, "skipped": {id: reason}, "protocol":
        its fields, "seed"}. Labels are told apart by fields that differ."""
        asked = Request(**request | {"argv": [], "out": Path(request["out"]), "axes": tuple(request["axes"])})
        assert asked.suite is not None
        suite = load_suite(asked.suite)
        plan = plan_request(asked, suite, this_machine())
        check_traces(asked.out, plan.protocol)
        self._planned = asked, suite, plan
        return {
            "cases": labels(plan.cases),
            "skipped": {each.case.id: each.reason for each in plan.skipped},
            "protocol": asdict(plan.protocol),
            "seed": plan.seed,
        }

    def share(self, cases: list[str], aside: dict[str, str]) -> dict[str, Any]:
        """Plan these cases alone, in this order; those `aside`, with their reasons, are skipped. The turns that this
        makes: {"turns": [[case id, block]]}."""
        assert self._planned is not None
        plan = self._planned[-1]
        known: dict[str, Case] = {case.id: case for case in plan.cases}
        skipped = tuple(Skipped(known[each], reason) for each, reason in aside.items())
        self._shared = replace(plan, cases=tuple(known[each] for each in cases), skipped=plan.skipped + skipped)
        return {"turns": turns_of(self._shared)}

    def begin(self, store: str, label: str, argv: list[str], interleaved: dict[str, str]) -> dict[str, Any]:
        """Begin a session of what is shared."""
        assert self._planned is not None
        assert self._shared is not None
        request, suite, _ = self._planned
        self._store = Store.open_or_create(Path(store))
        named = replace(request, label=label, argv=argv)
        return self._open(begin(self._store, named, suite, self._shared, this_machine(), interleaved))

    def resume(self, store: str, run: str, side: str, instead: str) -> dict[str, Any]:
        """Continue a session as it was planned; when something is shared now, it must have been planned for that, else
        the command to use `instead` is told."""
        self._store = Store.open_or_create(Path(store))
        return self._open(reopened(self._store, self._store.sides(run)[side], self._shared, instead))

    def start(self) -> None:
        store, opened = self._store, self._opened
        assert store is not None
        assert opened is not None
        self._turns = {(turn.case.id, turn.block): turn for turn in opened.plan.turns()}

        def keep(launch: Launch) -> None:
            store.append(opened.session_id, launch)

        def deadline_s(case: Case) -> float:
            assert self._session is not None
            return self._session.deadline_s(case)

        self._session = Session(
            plan=opened.plan,
            launch=self._launch or executor_of(),
            keep=keep,
            progress=Told(self._tell, deadline_s),
            done=opened.done,
            references=dict(opened.references),
            traces=store.path.parent / TRACES,
            replan=lambda changed: store.replan(opened.session_id, changed.to_dict()),
        )

    def explain(self) -> dict[str, Any]:
        """Let NCCL tell what it chooses for each case, in launches that do not count: {"left_out": {case id: why}} of
        those that it refuses to be pinned to."""
        assert self._session is not None
        for case in self._session.plan.cases:
            self._session.explain(case)
        return {"left_out": left_out(self._session.plan)}

    def leave_out(self, cases: dict[str, str]) -> dict[str, Any]:
        """Take out of the plan what one of the sides cannot launch, {case id: why}, and was not taken out before; the
        turns that are left: {"turns": [[case id, block]]}."""
        assert self._opened is not None
        assert self._store is not None
        plan = self._session.plan if self._session else self._opened.plan
        for case in plan.cases:
            if case.id in cases:
                plan = plan.without(case, cases[case.id])
        self._store.replan(self._opened.session_id, plan.to_dict())
        self._opened = replace(self._opened, plan=plan)
        if self._session:
            self._session.plan = plan
        return {"turns": turns_of(plan)}

    def prepare(self, case: str) -> None:
        """Launch the single-device reference of a case, where it is not known yet."""
        assert self._session is not None
        self._session.prepare(next(each for each in self._session.plan.cases if each.id == case))

    def take(self, case: str, block: int) -> None:
        assert self._session is not None
        self._session.take(self._turns[case, block])

    def finish(self) -> None:
        assert self._store is not None
        assert self._opened is not None
        self._store.finish_session(self._opened.session_id)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _open(self, opened: TrainingOpened) -> dict[str, Any]:
        """What there is to do: {"session": its id, "seed", "blocks", "turns": [[case id, block]], "done": the same,
        "left_out": {case id: why} of what launches have shown not to run here}."""
        self._opened, plan = opened, opened.plan
        return {
            "session": opened.session_id,
            "seed": plan.seed,
            "blocks": plan.protocol.launches,
            "turns": turns_of(plan),
            "done": sorted(opened.done),
            "left_out": left_out(plan),
        }


def left_out(plan: TrainingPlan) -> dict[str, str]:
    """{case id: why} of the cases that were launched and cannot run here."""
    return {each.case.id: each.reason for each in plan.skipped if each.tried}


def turns_of(plan: TrainingPlan) -> list[tuple[str, int]]:
    """(case id, block) of each launch to come, in order."""
    return [(turn.case.id, turn.block) for turn in plan.turns()]


def labels(cases: Sequence[Case]) -> dict[str, str]:
    """Each case's label, with fields that differ where several have the same."""
    if len({case.label for case in cases}) == len(cases):
        return {case.id: case.label for case in cases}
    from parabench.analysis.tables import unique_labels

    return unique_labels({case.id: case for case in cases})


def main() -> None:
    """Answer what comes on stdin until it ends, on what stdout was. The process does not outlive the one at the other
    end, whose id is the first argument."""
    die_with_parent(int(sys.argv[1]))
    # Neither a library that prints nor a process that is started here may speak on this line.
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    find_users_own()
    try:
        with stop_signals():
            serve(questions, answers)
    except Interrupted:
        sys.exit(STOPPED)


def serve(questions: Iterable[str], answers: TextIO) -> None:
    """Answer each question as it comes."""

    def say(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    with closing(Side(say)) as side:
        for line in questions:
            values = json.loads(line)
            say({"answer": side.answer(values.pop("ask"), values)})


def find_users_own() -> None:
    """A user's own model is found where this process stands; and in a source tree, which need not be installed, suites
    stand beside the package."""
    sys.path.append(os.getcwd())
    tree = Path(parabench.__path__[0]).parent
    if (tree / "pyproject.toml").is_file():
        parabench.__path__.append(str(tree))
