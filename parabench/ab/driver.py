"""Measure two variants for `parabench ab` and `noise`, so that drift affects both.

Their launches run at the same time and are interleaved. Cases that cannot be interleaved are launched alternately.
"""

from __future__ import annotations

import os
import random
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby
from operator import itemgetter
from time import monotonic
from typing import Any
from uuid import uuid4

from rich.console import Console

from parabench.ab.agent import INTERLEAVED, VariantAgent, not_interleaved
from parabench.ab.variant import ROLE, Variant, VariantProcess, end, pass_token, read_variant, running
from parabench.analysis import format, noise
from parabench.analysis.answer import Answer
from parabench.analysis.compare import gate
from parabench.analysis.compare.comparison import ALPHA, TOLERANCE
from parabench.analysis.compare.sides import sides_of
from parabench.analysis.environment.diff import differences
from parabench.cluster.connection import LaunchEvent
from parabench.errors import UsageError
from parabench.files import launch_folder
from parabench.launch.token import Pair, Token
from parabench.machine import accelerator
from parabench.machine.machine import this_machine
from parabench.plan.fields import option_fields
from parabench.plan.protocol import Protocol
from parabench.plan.suite import shipped
from parabench.report import build
from parabench.session.progress import PlainProgress, logger, make_progress, warner
from parabench.session.request import Request, check_label, plan_training
from parabench.session.resume import (
    REPORT_NAME,
    ab_command,
    ab_sides,
    check_label_of,
    check_resumable,
    settings_of,
    store_in,
)
from parabench.signals import Interrupted, stop_signals
from parabench.store.record import FIRST_REPETITION, GB, Status
from parabench.store.results import load
from parabench.store.store import STORE_NAME, Store

# Returns whether the launches so far are enough, from the session ids of both variants.
Enough = Callable[[Sequence[int]], bool]
# The case id and repetition of a launch.
Key = tuple[str, int]

# The most pairs of launches of `noise`. They determine the standard deviation to within a sixth.
MOST_PAIRS = 60
# The turns of a variant in a launch of `noise`, of all cases together, and the fewest rounds: twenty cases on two
# cores make ten pairs in minutes. On an accelerator, turns are shorter, and launches start later.
TURNS, FEWEST_ROUNDS = {"cpu": 24, accelerator.TYPE: 80}, 4
NOISE = "noise"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbRequest:
    """The options of `parabench ab`, not yet checked.

    `a` and `b` describe the variants. `files` are the options of output files, as typed. `resume_command` is the
    command that resumes, if it is not `parabench ab --resume`.
    """

    a: str
    b: str
    run: Request
    tolerance: float = TOLERANCE
    alpha: float = ALPHA
    files: Sequence[str] = ()
    resume_command: str = ""

    def comparison_options(self) -> list[str]:
        """Return the options of the comparison that are not the default, as words. They are not in the database."""
        words = ["--tolerance", str(self.tolerance)] if self.tolerance != TOLERANCE else []
        return words + (["--alpha", str(self.alpha)] if self.alpha != ALPHA else [])


def measure(request: AbRequest, console: Console, enough: Enough = lambda sessions: False) -> PairedRun | None:
    """Measure both variants. End early if `enough` returns true after a repetition. Return `None` on a stop signal.

    Raises UsageError before anything is launched or recorded, and if the process of a variant ends early.
    """
    variants = [read_variant("a", request.a), read_variant("b", request.b)]
    if request.run.label is not None:
        check_label(f"{request.run.label}-a")
    if request.run.suite is None:
        request.run.check_bare_resume()
    if request.run.resume:
        check_resumable(request.run.out, "ab")
    pair = PairedRun(request, variants, console, enough)
    try:
        with stop_signals(), running(variants, pair.show_event) as sides:
            pair.run(sides)
    except Interrupted as stop:
        warner(console)(f"stopped by {stop}{pair.kept}")
        return None
    except UsageError as error:
        raise UsageError(f"{error}{pair.kept}") from error
    return pair


def run_ab(request: AbRequest, console: Console) -> Answer | None:
    """Measure and compare both variants, write the report of b, and print the answer. Return `None` if stopped."""
    pair = measure(request, console)
    if pair is None:
        return None
    path = request.run.out / STORE_NAME
    results = load(path)
    base, candidate = sides_of(results, pair.sessions)
    # The variants differ on purpose.
    changed = tuple(each.name for each in differences(base, candidate) if each.matters)
    outcome = gate.compare(base, candidate, request.tolerance, request.alpha, changed)
    report = build.write_report(results, path.with_name(REPORT_NAME), str(pair.sessions[1]))
    again = ["parabench", "compare", f"{path}@{base.session.name}", f"{path}@{candidate.session.name}"]
    again += request.comparison_options()
    again += chain.from_iterable(("--changed", name) for name in changed)
    for each in pair.variants:
        pair.log(f"{each.name}: {each.shown() or 'this checkout and environment'}")
    answer = logger(pair.console, answers=not request.files)
    for line in gate.lines(outcome):
        answer(line)
    for line in (f"store:  {path}", f"report: {report}", f"again:  {shlex.join(again)}"):
        pair.log(line)
    return outcome


def run_noise(run: Request, minutes: float, console: Console, files: Sequence[str] = ()) -> Answer | None:
    """Measure the same code as both variants, and predict the slowdowns that `ab` detects here. Print the answer.

    No pair of launches starts that would end after `minutes`. Returns `None` on a stop signal.
    """
    start, last, path = monotonic(), [monotonic()], run.out / STORE_NAME

    def enough(sessions: Sequence[int]) -> bool:
        now = monotonic()
        pair_s, last[0] = now - last[0], now
        return now + pair_s - start > 60 * minutes

    again = ["parabench", "noise", "--resume", "--minutes", f"{minutes:g}", *files, "--out", str(run.out)]
    request = AbRequest(a="", b="", run=noise_run(run), resume_command=shlex.join(again))
    pair = measure(request, console, enough)
    if pair is None:
        return None
    answer = noise.sensitivity(noise.pilot_of(*sides_of(load(path), pair.sessions)))
    for line in (*noise.lines(answer), f"store: {path}"):
        pair.log(line)
    return answer


def noise_run(run: Request) -> Request:
    """Return the run of `noise`, with its default label, launches and rounds. A resumed plan stays as it is."""
    if run.suite is None:
        return run
    run = replace(run, label=NOISE if run.label is None and not run.resume else run.label)
    wanted = replace(run, options={**INTERLEAVED, "launches": MOST_PAIRS, **run.options})
    if "rounds" in run.options:
        return wanted
    cases = plan_training(wanted, this_machine(), turns=True).plan.cases
    alone = not_interleaved(cases)
    interleaved = [case for case in cases if case.id not in alone]
    # With an even number, both variants have the first turn equally often.
    turns = TURNS[interleaved[0].device] // len(interleaved) if interleaved else 0
    rounds = max(FEWEST_ROUNDS, turns // 2 * 2) if interleaved else 0
    return replace(wanted, options={**wanted.options, "rounds": rounds})


class PairedRun:
    """The sessions of both variants. `run` plans them, or resumes them, and launches until they are finished."""

    _sides: list[VariantProcess]

    def __init__(self, request: AbRequest, variants: Sequence[Variant], console: Console, enough: Enough) -> None:
        self._request, self.variants, self.console, self.log = request, variants, console, logger(console)
        self._enough = enough
        self._progress: PlainProgress | None = None
        self.sessions: list[int] = []
        # The part of an error message with the command that resumes, and the id that both sessions share.
        self.kept, self._run = "", ""
        # The finished launches of each variant, and the ids of cases that are no longer interleaved.
        self._done: list[set[Key]] = []
        self._alone: set[str] = set()

    def show_event(self, side: str, event: LaunchEvent) -> None:
        """Show the start or end of a launch of a variant as progress."""
        label = f"{side}: {event.label}"
        if self._progress is None:
            return
        if event.outcome is None:
            self._progress.starting(label, event.repetition)
        else:
            self._progress.ended(label, event.repetition, event.outcome, event.ok)

    def run(self, sides: list[VariantProcess]) -> None:
        """Plan, launch and finish both sessions."""
        self._sides = sides
        for side in sides:
            side.identify()
        both, apart = ([], [{}, {}]) if self._request.run.suite is None else self._plan()
        common = [{"cases": both, "aside": aside} for aside in apart]
        # The store is closed after both variants have closed theirs: the last one leaves one file.
        with store_in(self._request.run.out) as store, ExitStack() as stack:
            stack.callback(end, sides)
            opened = self._resume(store, common) if self._request.run.resume else self._begin(store, common)
            self.sessions = [each["session"] for each in opened]
            command = self._request.resume_command or self._command(store, [each.shown() for each in self.variants])
            self.kept = f"; every finished launch is kept; resume with: {command}"
            self._launch_all(opened)
            for side in sides:
                side.call(VariantAgent.finish)

    def _plan(self) -> tuple[list[str], list[dict[str, str]]]:
        """Request a plan from both variants, and return their `common_cases`. Raises UsageError."""
        run = self._request.run
        # A suite file in the working directory is the same for both variants. Each variant resolves other names itself.
        mine = run.suite is not None and run.suite not in shipped() and os.path.isfile(run.suite)
        suite = os.path.abspath(str(run.suite)) if mine else run.suite
        for side in self._sides:
            side.send_request(VariantAgent.plan, **run.given() | {"out": os.path.abspath(run.out), "suite": suite})
        return common_cases([side.result() for side in self._sides], self.log)

    def _begin(self, store: Store, common: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Start both sessions, with a number in their labels if the database has sessions with these labels."""
        there, label = store.labels(), self._request.run.label or "ab"
        names = chain([label], (f"{label}-{number}" for number in range(2, len(there) + 3)))
        free = next(name for name in names if not {f"{name}-a", f"{name}-b"} & there)
        check_label(f"{free}-a")
        self._run = uuid4().hex
        return [
            side.call(
                VariantAgent.begin,
                **cases,
                store=os.path.abspath(store.path),
                label=f"{free}-{side.variant.name}",
                argv=recorded_command(self._request, self.variants),
                interleaved={"run": self._run, "side": side.variant.name, "setting": side.variant.recorded()},
            )
            for side, cases in zip(self._sides, common, strict=True)
        ]

    def _resume(self, store: Store, common: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Resume both sessions. Raises UsageError if there are none, or if they have other variants."""
        last = store.last_session()
        if last is None or not last.interleaved:
            raise UsageError(f"the last session in {store.path} is not a variant of an ab; start one without --resume")
        before, label = ab_sides(store, last), self._request.run.label
        command = self._command(store, settings_of(before))
        for side in self._sides:
            name, here = side.variant.name, side.variant.recorded()
            there = before[name].interleaved.get("setting")
            if there != here:
                raise UsageError(
                    f"the {ROLE[name]} was {there!r} and is now {here!r}; resume with the same variants, as in "
                    f"{command!r}, or start a new ab without --resume"
                )
            check_label_of(store, before[name], None if label is None else f"{label}-{name}")
        path, self._run = os.path.abspath(store.path), last.interleaved["run"]
        return [
            side.call(VariantAgent.resume, **cases, store=path, run=self._run, side=side.variant.name, instead=command)
            for side, cases in zip(self._sides, common, strict=True)
        ]

    def _command(self, store: Store, settings: Sequence[str]) -> str:
        """Return the `ab` command that resumes this session, with the `settings` of both variants."""
        return ab_command(store.path, settings, *self._request.comparison_options(), *self._request.files)

    def _launch_all(self, opened: list[dict[str, Any]]) -> None:
        """Run the launches that are not finished, repetition by repetition.

        `opened` are the answers of both variants to `begin` or `resume`.
        """
        self._done = [{(case, repetition) for case, repetition in each["done"]} for each in opened]
        turns, seed = [(case, repetition) for case, repetition in opened[0]["turns"]], opened[0]["seed"]
        order = launch_orders(turns, seed)
        left = [key for key in turns if any(key not in each for each in self._done)]
        launches = sum(key not in each for key in left for each in self._done)
        if any(self._done):
            self.log(f"resuming: {2 * len(turns) - launches} of {2 * len(turns)} launches are done")
        if launches < 2 * len(left):
            self.log("a pair is completed after a stop; drift since then counts as a difference of the variants")
        if not left:
            return
        for side in self._sides:
            side.send_request(VariantAgent.start)
        for side in self._sides:
            side.result()
        with make_progress(self.console, launches, opened[0]["repetitions"]) as self._progress:
            gone: dict[str, str] = {}
            for side in self._sides:
                gone |= side.call(VariantAgent.explain)["left_out"]
            for side in self._sides:
                side.call(VariantAgent.leave_out, cases=gone)
            for reason in gone.values():
                self.log(f"left out in both variants: {reason}")
            cohorts = self._cohorts(opened)
            kept = (key for key in left if key[0] not in gone)
            for repetition, keys in groupby(kept, itemgetter(1)):
                groups: dict[Any, list[str]] = {}
                for case, _ in keys:
                    # The first launch of a case is not interleaved: it measures memory and has the instruments.
                    group = cohorts.get(case, case) if repetition > FIRST_REPETITION else case
                    groups.setdefault(group, []).append(case)
                for group, cases in groups.items():
                    for case in cases:
                        for side in self._sides:
                            side.call(VariantAgent.prepare, case=case)
                    if group not in cases:
                        self._interleave(cases, repetition, f"{seed}, {repetition}")
                    for case in cases:
                        self._alternate(case, repetition, order[case, repetition])
                if repetition > FIRST_REPETITION and self._enough(self.sessions):
                    return

    def _cohorts(self, opened: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
        """Return {case id: index of its launch group in each variant} of the cases that are interleaved."""
        if not opened[0]["rounds"]:
            return {}
        alone = opened[0]["alone"] | opened[1]["alone"]
        for why, cases in Counter(alone.values()).items():
            self.log(f"whole launches alternate in {format.count(cases, 'configuration')}: {why}")
        places = [{case: at for at, cohort in enumerate(each["cohorts"]) for case in cohort} for each in opened]
        return {case: (places[0][case], places[1][case]) for case in places[0] if case not in alone}

    def _alternate(self, case: str, repetition: int, order: tuple[int, int]) -> None:
        """Launch a case in one variant and then in the other one, unless the launch is done."""
        for number in order:
            if (case, repetition) not in self._done[number]:
                self._sides[number].call(VariantAgent.launch, cases=[case], repetition=repetition)
                self._store_launch(number, repetition)

    def _interleave(self, cases: list[str], repetition: int, seed: str) -> None:
        """Run interleaved launches of both variants, until each of these cases is done or cannot be interleaved."""
        started = {case for each in self._done for case, at in each if at == repetition}
        shared = [case for case in cases if case not in self._alone | started]
        while shared:
            over = self._interleave_once(shared, repetition, seed)
            shared = [case for case in shared if case not in over]

    def _interleave_once(self, cases: list[str], repetition: int, seed: str) -> set[str]:
        """Run one interleaved launch of these cases in each variant. Return the cases that need no other one."""
        sides = self._sides
        need = [side.call(VariantAgent.need, cases=cases, repetition=repetition) for side in sides]
        if lack := lack_of_memory([each["memory"] for each in need]):
            return self._stop_interleaving(cases, lack)
        # On an accelerator, each variant derives the steps of a turn from its step time. Both take the larger number.
        timed = [max(steps) for steps in zip(*(each["timed"] for each in need), strict=True)]
        with launch_folder() as folder:
            ends = [Pair(run=self._run, side=side.variant.name, folder=str(folder)) for side in sides]
            with Token(ends, len(cases), seed) as token:
                deadline_s = sum(each["deadline_s"] for each in need)
                for side, pair in zip(sides, ends, strict=True):
                    side.send_request(
                        VariantAgent.launch,
                        cases=cases,
                        repetition=repetition,
                        pair=asdict(pair),
                        deadline_s=deadline_s,
                        timed=timed,
                    )
                failed = pass_token(sides, token)
        if failed and failed[1] == Status.OOM:
            # Each variant may have enough memory alone.
            name = sides[failed[0]].variant.name
            return self._stop_interleaving(cases, f"the {ROLE[name]} ran out of memory next to the other")
        over: set[str] = set()
        for number in range(len(sides)) if failed is None else [failed[0]]:
            over |= self._store_launch(number, repetition)
        if not over:
            self._alone |= {*cases}
        return over or {*cases}

    def _store_launch(self, number: int, repetition: int) -> set[str]:
        """Request a variant to store its last launch. Return the cases of the launch."""
        answer = self._sides[number].call(VariantAgent.keep, repetition=repetition)
        self._done[number] |= {(case, repetition) for case in answer["kept"]}
        self._alone |= {*answer["failed"]}
        return {*answer["kept"]}

    def _stop_interleaving(self, cases: list[str], why: str) -> set[str]:
        """Log the reason why these cases are launched alternately from now on, and return them."""
        self.log(f"whole launches alternate in {format.count(len(cases), 'configuration')}: {why}")
        self._alone |= {*cases}
        return {*cases}


def recorded_command(request: AbRequest, variants: Sequence[Variant]) -> list[str]:
    """Return the command line with each variant's description as it may be recorded."""
    shown = {text: each.recorded() for text, each in zip((request.a, request.b), variants, strict=True)}

    def recorded(word: str) -> str:
        option, equals, text = word.partition("=")
        joined = word.startswith("--") and text in shown
        return f"{option}{equals}{shown[text]}" if joined else shown.get(word, word)

    return [recorded(word) for word in request.run.argv]


# The options that make a field of both plans equal, {field: option}.
OPTIONS = {name: each.field.option for name, each in option_fields(Protocol).items() if not each.field.role}
OPTIONS |= {"seed": "--seed"}


def common_cases(plans: Sequence[dict[str, Any]], log: Callable[[str], None]) -> tuple[list[str], list[dict[str, str]]]:
    """Return the cases that both variants can run, and for each variant the skipped cases, {case id: reason}.

    `plans` are the answers of a and b to `plan`. Raises UsageError if their protocols differ, or without common cases.
    """
    check_protocols(plans)
    apart = [
        {
            case: f"the {ROLE[name]} does not run it: {other['skipped'].get(case, 'its suite does not have it')}"
            for case in own["cases"]
            if case not in other["cases"]
        }
        for own, other, name in ((plans[0], plans[1], "b"), (plans[1], plans[0], "a"))
    ]
    both = [case for case in plans[0]["cases"] if case in plans[1]["cases"]]
    if not both:
        why = next(chain(*(each.values() for each in apart)), "no configurations")
        raise UsageError(f"no configuration runs in both variants: {why}")
    for own, aside, name in zip(plans, apart, "ab", strict=True):
        for case, reason in aside.items():
            log(f"skipped {own['cases'][case]} in the {ROLE[name]}: {reason}")
    return both, apart


def check_protocols(plans: Sequence[dict[str, Any]]) -> None:
    """Raise UsageError if the protocols differ in a field that both versions of parabench have."""
    own, other = (plan["protocol"] | {"seed": plan["seed"]} for plan in plans)
    found = {name: (own[name], other[name]) for name in own if name in other and own[name] != other[name]}
    if found:
        differ = ", ".join(f"{name}: {a} in a, {b} in b" for name, (a, b) in found.items())
        options = ", ".join(OPTIONS[name] for name in found if name in OPTIONS)
        raise UsageError(f"{differ}; {options and f'give {options}, or '}make both suites equal")


def launch_orders(turns: Sequence[Key], seed: int) -> dict[Key, tuple[int, int]]:
    """Return the order of the variants, (0, 1) or (1, 0), for each case and repetition.

    The first variant is random in a case's first repetition, and alternates from then on. Then both are first equally
    often.
    """
    draw = random.Random(f"who is first, {seed}")
    first: dict[str, int] = {}
    found = {}
    for case, repetition in turns:
        first[case] = 1 - first[case] if case in first else draw.randrange(2)
        found[case, repetition] = first[case], 1 - first[case]
    return found


def lack_of_memory(needs: Sequence[dict[str, list[float | None]] | str]) -> str | None:
    """Return the reason why launches of both variants do not fit into memory at once; `None` if they do.

    `needs` are the "memory" of both answers to `need`.
    """
    if unknown := next((need for need in needs if isinstance(need, str)), None):
        return unknown
    parts: dict[str, list[list[Any]]] = {}
    for memory, part in chain.from_iterable(need.items() for need in needs if not isinstance(need, str)):
        parts.setdefault(memory, []).append(part)
    for memory, each_need in parts.items():
        free = [each for _, each in each_need]
        if None in free:
            return f"the free memory of {memory} is not known"
        if (least := sum(needed for needed, _ in each_need)) > (most := min(free)):
            return f"both variants at once need {least / GB:.1f} GB of {memory}, and {most / GB:.1f} GB may be taken"
    return None
