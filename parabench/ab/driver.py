"""`parabench ab`: measure two variants so that drift affects both.

Their launches run at the same time and are interleaved. Cases that cannot be interleaved are launched alternately.
"""

from __future__ import annotations

import os
import random
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rich.console import Console

from parabench.ab.agent import VariantAgent
from parabench.ab.variant import ROLE, Variant, VariantProcess, end, hear_turns, read_variant, running
from parabench.analysis import format
from parabench.analysis.compare.comparison import ALPHA, TOLERANCE
from parabench.cluster.connection import LaunchEvent
from parabench.errors import UsageError
from parabench.files import launch_folder
from parabench.launch.token import Pair, Token
from parabench.plan.fields import option_fields
from parabench.plan.protocol import Protocol
from parabench.plan.suite import shipped
from parabench.session.progress import PlainProgress, logger, make_progress, warner
from parabench.session.request import Request, check_label
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

if TYPE_CHECKING:
    from parabench.analysis.answer import Answer

# Returns whether the launches of the sessions with these ids are enough.
Enough = Callable[[Sequence[int]], bool]
# The case id and repetition of a launch.
Key = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbRequest:
    """The unchecked options: variants `a` and `b` as typed, the run of each, and the comparison.

    `files` are the options of output files, as typed. `go_on` is the command that resumes, if it is not `parabench ab`.
    """

    a: str
    b: str
    run: Request
    tolerance: float = TOLERANCE
    alpha: float = ALPHA
    files: Sequence[str] = ()
    go_on: str = ""

    def judging(self) -> list[str]:
        """Return the options of the comparison that are not the default. The results database does not have them."""
        words = ["--tolerance", str(self.tolerance)] if self.tolerance != TOLERANCE else []
        return words + (["--alpha", str(self.alpha)] if self.alpha != ALPHA else [])


def measure(request: AbRequest, console: Console, enough: Enough = lambda sessions: False) -> Turns | None:
    """Measure both variants. Return None if stopped.

    After each repetition, it ends early if `enough` returns true for the ids of both sessions. Raises UsageError before
    anything is launched or recorded, and if a variant ends early.
    """
    variants = [read_variant("a", request.a), read_variant("b", request.b)]
    if request.run.label is not None:
        check_label(f"{request.run.label}-a")
    if request.run.suite is None:
        request.run.check_bare_resume()
    if request.run.resume:
        check_resumable(request.run.out, "ab")
    turns = Turns(request, variants, console, enough)
    try:
        with stop_signals(), running(variants, turns.heard) as sides:
            turns.run(sides)
    except Interrupted as stop:
        warner(console)(f"stopped by {stop}{turns.kept}")
        return None
    except UsageError as error:
        raise UsageError(f"{error}{turns.kept}") from error
    return turns


def run_ab(request: AbRequest, console: Console) -> Answer | None:
    """Measure and compare both variants, write the report of b, and print the answer. Return None if stopped."""
    from parabench.analysis.compare.gate import compare, lines
    from parabench.analysis.compare.sides import sides_of
    from parabench.analysis.environment.diff import differences
    from parabench.report.build import write_report

    turns = measure(request, console)
    if turns is None:
        return None
    path = request.run.out / STORE_NAME
    results = load(path)
    base, candidate = sides_of(results, turns.sessions)
    # The user compares the variants because they differ.
    changed = tuple(each.name for each in differences(base, candidate) if each.matters)
    outcome = compare(base, candidate, request.tolerance, request.alpha, changed)
    report = write_report(results, path.with_name(REPORT_NAME), str(turns.sessions[1]))
    again = ["parabench", "compare", f"{path}@{base.session.name}", f"{path}@{candidate.session.name}"]
    again += request.judging()
    again += chain.from_iterable(("--changed", name) for name in changed)
    for each in turns.variants:
        turns.log(f"{each.name}: {each.shown() or 'this checkout and environment'}")
    answer = logger(turns.console, answers=not request.files)
    for line in lines(outcome):
        answer(line)
    for line in (f"store:  {path}", f"report: {report}", f"again:  {shlex.join(again)}"):
        turns.log(line)
    return outcome


class Turns:
    """The sessions of both variants, from start or resume to their end."""

    _sides: list[VariantProcess]

    def __init__(self, request: AbRequest, variants: Sequence[Variant], console: Console, enough: Enough) -> None:
        self._request, self.variants, self.console, self.log = request, variants, console, logger(console)
        self._enough = enough
        self._progress: PlainProgress | None = None
        self.sessions: list[int] = []
        # How to resume, once something is recorded.
        self.kept, self._run = "", ""
        # The launches of each variant that are done, and the ids of cases that are no longer interleaved.
        self._done: list[set[Key]] = []
        self._alone: set[str] = set()

    def heard(self, side: str, event: LaunchEvent) -> None:
        """Show an event of a variant."""
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
        shared = [{"cases": both, "aside": aside} for aside in apart]
        # The store is closed after both variants have closed theirs: the last one leaves one file.
        with store_in(self._request.run.out) as store, ExitStack() as stack:
            stack.callback(end, sides)
            opened = self._resume(store, shared) if self._request.run.resume else self._begin(store, shared)
            self.sessions = [each["session"] for each in opened]
            command = self._request.go_on or self._command(store, [each.shown() for each in self.variants])
            self.kept = f"; every finished launch is kept; resume with: {command}"
            self._walk(opened)
            for side in sides:
                side.ask(VariantAgent.finish)

    def _plan(self) -> tuple[list[str], list[dict[str, str]]]:
        """Let both variants plan, and return `shared`. Raises UsageError."""
        run = self._request.run
        # A suite file in the working directory is the same for both. Other names are resolved by each variant.
        mine = run.suite is not None and run.suite not in shipped() and os.path.isfile(run.suite)
        suite = os.path.abspath(str(run.suite)) if mine else run.suite
        for side in self._sides:
            side.say(VariantAgent.plan, **run.given() | {"out": os.path.abspath(run.out), "suite": suite})
        return shared([side.hear() for side in self._sides], self.log)

    def _begin(self, store: Store, shared: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Start both sessions, with a number in their labels if the store has variants of that name."""
        there, label = store.labels(), self._request.run.label or "ab"
        names = chain([label], (f"{label}-{number}" for number in range(2, len(there) + 3)))
        free = next(name for name in names if not {f"{name}-a", f"{name}-b"} & there)
        check_label(f"{free}-a")
        self._run = uuid4().hex
        return [
            side.ask(
                VariantAgent.begin,
                **cases,
                store=os.path.abspath(store.path),
                label=f"{free}-{side.variant.name}",
                argv=hide(self._request, self.variants),
                interleaved={"run": self._run, "side": side.variant.name, "setting": side.variant.recorded()},
            )
            for side, cases in zip(self._sides, shared, strict=True)
        ]

    def _resume(self, store: Store, shared: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Resume both sessions. Raises UsageError if there are none, or the variants are others."""
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
            side.ask(VariantAgent.resume, **cases, store=path, run=self._run, side=side.variant.name, instead=command)
            for side, cases in zip(self._sides, shared, strict=True)
        ]

    def _command(self, store: Store, settings: Sequence[str]) -> str:
        """Return the `ab` command that resumes this session, with the `settings` of both variants."""
        return ab_command(store.path, settings, *self._request.judging(), *self._request.files)

    def _walk(self, opened: list[dict[str, Any]]) -> None:
        """Launch what is left, repetition by repetition."""
        self._done = [{(case, repetition) for case, repetition in each["done"]} for each in opened]
        turns, seed = [(case, repetition) for case, repetition in opened[0]["turns"]], opened[0]["seed"]
        order = orders(turns, seed)
        left = [key for key in turns if any(key not in each for each in self._done)]
        launches = sum(key not in each for key in left for each in self._done)
        if any(self._done):
            self.log(f"resuming: {2 * len(turns) - launches} of {2 * len(turns)} launches are done")
        if launches < 2 * len(left):
            self.log("a pair is completed after a stop; drift since then counts as a difference of the variants")
        if not left:
            return
        for side in self._sides:
            side.say(VariantAgent.start)
        for side in self._sides:
            side.hear()
        with make_progress(self.console, launches, opened[0]["repetitions"]) as self._progress:
            gone: dict[str, str] = {}
            for side in self._sides:
                gone |= side.ask(VariantAgent.explain)["left_out"]
            for side in self._sides:
                side.ask(VariantAgent.leave_out, cases=gone)
            for reason in gone.values():
                self.log(f"left out in both variants: {reason}")
            cohorts = self._cohorts(opened)
            kept = (key for key in left if key[0] not in gone)
            for repetition, keys in groupby(kept, itemgetter(1)):
                groups: dict[Any, list[str]] = {}
                for case, _ in keys:
                    # The first launch of a case is not shared: it measures its memory and has the instruments.
                    group = cohorts.get(case, case) if repetition > FIRST_REPETITION else case
                    groups.setdefault(group, []).append(case)
                for group, cases in groups.items():
                    for case in cases:
                        for side in self._sides:
                            side.ask(VariantAgent.prepare, case=case)
                    if group not in cases:
                        self._interleave(cases, repetition, f"{seed}, {repetition}")
                    for case in cases:
                        self._alternate(case, repetition, order[case, repetition])
                if repetition > FIRST_REPETITION and self._enough(self.sessions):
                    return

    def _cohorts(self, opened: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
        """Return {case id: its launch group in each variant} of the cases that are interleaved."""
        if not opened[0]["rounds"]:
            return {}
        alone = opened[0]["alone"] | opened[1]["alone"]
        for why, cases in Counter(alone.values()).items():
            self.log(f"whole launches alternate in {format.count(cases, 'configuration')}: {why}")
        places = [{case: at for at, cohort in enumerate(each["cohorts"]) for case in cohort} for each in opened]
        return {case: (places[0][case], places[1][case]) for case in places[0] if case not in alone}

    def _alternate(self, case: str, repetition: int, order: tuple[int, int]) -> None:
        """Launch a case in one variant after the other, unless it is done."""
        for number in order:
            if (case, repetition) not in self._done[number]:
                self._sides[number].ask(VariantAgent.launch, cases=[case], repetition=repetition)
                self._keep(number, repetition)

    def _interleave(self, cases: list[str], repetition: int, seed: str) -> None:
        """Run interleaved launches of both variants until each of these cases is done or has to alternate."""
        started = {case for each in self._done for case, at in each if at == repetition}
        shared = [case for case in cases if case not in self._alone | started]
        while shared:
            over = self._take_turns(shared, repetition, seed)
            shared = [case for case in shared if case not in over]

    def _take_turns(self, cases: list[str], repetition: int, seed: str) -> set[str]:
        """Run an interleaved launch of each variant, shared by these cases. Return the cases that need no other one."""
        sides = self._sides
        need = [side.ask(VariantAgent.need, cases=cases, repetition=repetition) for side in sides]
        if lack := lack_of_memory([each["memory"] for each in need]):
            return self._set_apart(cases, lack)
        # On an accelerator a turn has a duration, and steps of one variant may take longer.
        timed = [max(steps) for steps in zip(*(each["timed"] for each in need), strict=True)]
        with launch_folder() as folder:
            ends = [Pair(run=self._run, side=side.variant.name, folder=str(folder)) for side in sides]
            with Token(ends, len(cases), seed) as token:
                deadline_s = sum(each["deadline_s"] for each in need)
                for side, pair in zip(sides, ends, strict=True):
                    side.say(
                        VariantAgent.launch,
                        cases=cases,
                        repetition=repetition,
                        pair=asdict(pair),
                        deadline_s=deadline_s,
                        timed=timed,
                    )
                failed = hear_turns(sides, token)
        if failed and failed[1] == Status.OOM:
            # Each may have enough memory without the other.
            name = sides[failed[0]].variant.name
            return self._set_apart(cases, f"the {ROLE[name]} ran out of memory next to the other")
        over: set[str] = set()
        for number in range(len(sides)) if failed is None else [failed[0]]:
            over |= self._keep(number, repetition)
        if not over:
            self._alone |= {*cases}
        return over or {*cases}

    def _keep(self, number: int, repetition: int) -> set[str]:
        """Let a variant store its last launch. Return the cases of the launch."""
        answer = self._sides[number].ask(VariantAgent.keep, repetition=repetition)
        self._done[number] |= {(case, repetition) for case in answer["kept"]}
        self._alone |= {*answer["failed"]}
        return {*answer["kept"]}

    def _set_apart(self, cases: list[str], why: str) -> set[str]:
        """Launch these cases alternately from now on, and log why."""
        self.log(f"whole launches alternate in {format.count(len(cases), 'configuration')}: {why}")
        self._alone |= {*cases}
        return {*cases}


def hide(request: AbRequest, variants: Sequence[Variant]) -> list[str]:
    """Return the command with the words of each variant as they may be recorded."""
    shown = {text: each.recorded() for text, each in zip((request.a, request.b), variants, strict=True)}

    def recorded(word: str) -> str:
        option, equals, text = word.partition("=")
        joined = word.startswith("--") and text in shown
        return f"{option}{equals}{shown[text]}" if joined else shown.get(word, word)

    return [recorded(word) for word in request.run.argv]


# The options that make a part of the plan equal in both variants.
OPTIONS = {name: each.field.option for name, each in option_fields(Protocol).items() if not each.field.role}
OPTIONS |= {"seed": "--seed"}


def shared(plans: Sequence[dict[str, Any]], log: Callable[[str], None]) -> tuple[list[str], list[dict[str, str]]]:
    """Return the cases that both variants can run, and for each variant the skipped cases, {case id: reason}.

    `plans` are the answers of a and b to `plan`. Raises UsageError if the variants would measure differently, or share
    no case.
    """
    check_alike(plans)
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


def check_alike(plans: Sequence[dict[str, Any]]) -> None:
    """Raise UsageError if the protocols differ in a field that both versions of parabench have."""
    own, other = (plan["protocol"] | {"seed": plan["seed"]} for plan in plans)
    found = {name: (own[name], other[name]) for name in own if name in other and own[name] != other[name]}
    if found:
        differ = ", ".join(f"{name}: {a} in a, {b} in b" for name, (a, b) in found.items())
        options = ", ".join(OPTIONS[name] for name in found if name in OPTIONS)
        raise UsageError(f"{differ}; {options and f'give {options}, or '}make both suites equal")


def orders(turns: Sequence[Key], seed: int) -> dict[Key, tuple[int, int]]:
    """Return the order of the variants in each launch.

    The first variant is random in a case's first repetition, and alternates from then on, so that an effect of the
    place affects both variants equally often.
    """
    draw = random.Random(f"who is first, {seed}")
    first: dict[str, int] = {}
    found = {}
    for case, repetition in turns:
        first[case] = 1 - first[case] if case in first else draw.randrange(2)
        found[case, repetition] = first[case], 1 - first[case]
    return found


def lack_of_memory(needs: Sequence[dict[str, list[float | None]] | str]) -> str | None:
    """Return why launches of both variants cannot run at the same time; `None` if they can. `needs` are from `need`."""
    if unknown := next((need for need in needs if isinstance(need, str)), None):
        return unknown
    parts: dict[str, list[list[Any]]] = {}
    for place, part in chain.from_iterable(need.items() for need in needs if not isinstance(need, str)):
        parts.setdefault(place, []).append(part)
    for place, of_place in parts.items():
        free = [each for _, each in of_place]
        if None in free:
            return f"the free memory of {place} is not known"
        if (least := sum(needed for needed, _ in of_place)) > (most := min(free)):
            return f"both variants at once need {least / GB:.1f} GB of {place}, and {most / GB:.1f} GB may be taken"
    return None
