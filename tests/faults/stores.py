"""Stores that are not ours: mutations of real ones, each given to commands by lot."""

from __future__ import annotations

import json
import shutil
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

import fake_results as fake
import fake_turns
import hostile_helpers
import prediction_helpers
from command_line import parabench
from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.plan.protocol import Protocol
from parabench.serve.progress import read_progress
from parabench.serve.server import Live
from parabench.session.resume import ab_sides, load_state, settings_of
from parabench.session.resume import resume as resume_session
from parabench.store.store import Store
from tests.faults import outputs
from tests.faults.mutations import OF_BYTES, OF_SCHEMA, OF_VALUES, mutate

Wrong = Iterator[tuple[str, str]]


def trainings(path: Path) -> None:
    """Trainings with something in every column, on two nodes."""
    hostile_helpers.trainings(path)


def collectives(path: Path) -> None:
    hostile_helpers.collectives(path)


def turns(path: Path) -> None:
    """Cases that take turns, in two sessions."""
    cases = [fake.case(bucket_mib=size) for size in (1.0, 4.0, 25.0)]
    names, rng = [one.id for one in cases], np.random.default_rng(1)
    for label in ("before", "after"):
        launches = [fake.launch(one, 0.010, block=0) for one in cases]
        for block in (1, 2, 3):
            launches += fake_turns.launches(fake_turns.shared(names, rng, seed=block), cases, block)
        fake.write(path, launches, label=label)


def planned(path: Path) -> None:
    """A session as `run` plans it, which `--resume` takes up."""
    cases = [fake.case(bucket_mib=size) for size in (1.0, 25.0)]
    protocol = {"warmup": 5, "steps": 20, "launches": 3, "deadline_s": None}
    plan = {
        "kind": "training", "cases": [one.to_dict() for one in cases], "skipped": [], "protocol": protocol, "seed": 1,
        "blocks": 3, "extra": [],
    }  # fmt: skip
    assert Protocol(**protocol).blocks == 3
    fake.write(path, fake.sweep(cases, lambda one: 0.02, noise=0.01), plan=plan, finished=False)


def foresight(path: Path) -> None:
    prediction_helpers.write(path)


def sides(path: Path) -> None:
    """Two sides of an ab."""
    cases = [fake.case(bucket_mib=size) for size in (1.0, 25.0)]
    for at, side in enumerate("ab"):
        tied = {"run": "a run", "side": side, "setting": f"lr={at}"}
        launches = fake.sweep(cases, lambda one: 0.02, noise=0.01, seed=at)
        fake.write(path, launches, label=side, interleaved=tied)


BASES: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (trainings, collectives, turns, planned, foresight, sides)
}


def base(made: Path, name: str) -> Path:
    path = made / f"{name}.db"
    if not path.exists():
        BASES[name](path)
    return path


@cache
def case_of(path: Path) -> str:
    with_case = fake.load(path).launch["case_id"]
    return str(with_case.iloc[-1])


# Commands. Each is given the folder of the try, the mutated store, a sound one like it, and the lot.
Command = Callable[[Path, Path, Path, Random], Wrong]


def asked(
    *arguments: object, page: Path | None = None, allowed: tuple[int, ...] = outputs.CODES
) -> Iterator[tuple[str, str]]:
    """A command, in this process; what is wrong with how it ended, what it said, and the page that it wrote."""
    done = parabench(*arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        yield "traceback", "".join(traceback.format_exception(done.exception))
        return
    if done.exit_code not in allowed:
        yield "exit_code", f"{done.exit_code}: {arguments}"
    yield from (("output", each) for each in outputs.of_terminal(done.stdout + done.stderr))
    if done.exit_code == 2 and "predict" not in arguments and "Usage:" not in done.stderr:
        yield from (("output", each) for each in outputs.of_refusal(done.stderr, done.stdout))
    elif done.exit_code != 2 and "-" in arguments:
        kind = arguments[arguments.index("-") - 1]
        judge = {"--json": outputs.of_json, "--junit": outputs.of_junit, "--markdown": outputs.of_markdown}[kind]
        yield from (("output", each) for each in judge(done.stdout))
    if page is not None and page.exists():
        text = page.read_text(encoding="utf-8")
        judge = outputs.of_json if page.suffix == ".json" else outputs.of_page
        yield from (("output", each) for each in judge(text))


def report(folder: Path, store: Path, sound: Path, lot: Random) -> Wrong:
    page = folder / "report.html"
    stores = [store, sound] if lot.random() < 0.3 else [store]
    yield from asked("report", *stores, "-o", page, page=page)


def best(folder: Path, store: Path, sound: Path, lot: Random) -> Wrong:
    more = lot.choice(
        ([], ["--json", "-"], ["--by", "strategy,world_size"], ["--objective", "memory"], ["--objective", "joules"])
    )
    yield from asked("best", store, *more)


def compare(folder: Path, store: Path, sound: Path, lot: Random) -> Wrong:
    both = lot.choice(([store, sound], [sound, store], [store, store]))
    page = folder / "compare.html"
    more = lot.choice(([], ["--json", "-"], ["--junit", "-"], ["--markdown", "-"], ["--html", page]))
    across = ["--across-hardware"] if lot.random() < 0.4 and "--junit" not in more else []
    yield from asked("compare", *both, *across, *more, page=page)


def history(folder: Path, store: Path, sound: Path, lot: Random) -> Wrong:
    page = folder / "history.html"
    more = lot.choice(([], ["--all"], ["--json", "-"], ["--html", page]))
    yield from asked("history", sound, store, *more, page=page)


def export(folder: Path, store: Path, sound: Path, lot: Random) -> Wrong:
    trace = folder / "trace.json"
    yield from asked("export", "--trace", case_of(sound), store, "-o", trace, page=trace)


def predict(folder: Path, store: Path, sound: Path, lot: Random) -> Wrong:
    more = lot.choice(
        (["--world-size", "4"], ["--world-size", "2,4", "--json", "-"], ["--world-size", "4", "--best"], ["--buckets"],
         ["--check", sound])
    )  # fmt: skip
    yield from asked("predict", store, *more)


def resume(folder: Path, store: Path, sound: Path, lot: Random) -> Wrong:
    """What it would do; nothing is launched."""
    command = lot.choice((["run"], ["run"], ["run", "quick"], ["collectives"], []))
    if command:
        store.rename(folder / "results.db")
        # It may say what is to be done, and then what of it cannot be.
        told = asked(*command, "--resume", "--dry-run", "--out", folder)
        yield from (each for each in told if not each[1].startswith("refused, and said"))
        return
    try:
        with Store.open_or_create(store) as opened:  # as a run that goes on, or an ab
            last = opened.last_session()
            if last is not None and last.interleaved:
                sides = ab_sides(opened, last)
                settings_of(sides)
                for each in sides.values():
                    load_state(opened, each, None, "the same")
            else:
                resume_session(opened, None)
    except (UsageError, sqlite3.Error) as error:
        yield from (("output", each) for each in outputs.of_terminal(format.error_line(error)))


def serve(folder: Path, store: Path, sound: Path, lot: Random) -> Wrong:
    """How a session stands, as the page asks for it again and again."""

    def make(path: Path, session: str) -> str:
        raise UsageError("made by `report`, which is tried apart")

    live = Live(str(store), make)
    told = live.progress()
    live.wait()
    yield from (("output", each) for each in outputs.of_json(json.dumps(told, allow_nan=False)))
    said = "\n".join(str(value) for value in told.values())
    yield from (("output", each) for each in outputs.of_terminal(said.replace("\n", "")))
    try:
        read_progress(store, lot.choice((None, "1", "fake", "2")))
    except UsageError as error:
        str(error)


COMMANDS: dict[str, tuple[Command, ...]] = {
    "trainings": (
        report,
        best,
        best,
        compare,
        compare,
        compare,
        history,
        history,
        export,
        serve,
        serve,
        resume,
    ),
    "collectives": (report, best, best, best, serve, serve, resume),
    "turns": (report, best, best, compare, compare, history, history, serve, resume),
    "planned": (resume, resume, resume, serve, serve, best, best, report),
    "foresight": (predict, predict, predict, serve, best),
    "sides": (resume, resume, compare, compare, best, history, serve, serve, report),
}


def of_store(kinds: tuple[str, ...], made: Path, folder: Path, lot: Random) -> Wrong:
    name = lot.choice(list(BASES))
    sound, store = base(made, name), folder / "r.db"
    shutil.copyfile(sound, store)
    said = mutate(store, lot, lot.choice(kinds))
    command = lot.choice(COMMANDS[name])
    for kind, words in command(folder, store, sound, lot):
        yield kind, f"{name}, {said}, {command.__name__}\n{words}"


FAMILIES = {
    "store: bytes": (lambda *way: of_store(OF_BYTES, *way), 0.3),
    "store: values": (lambda *way: of_store(OF_VALUES, *way), 0.6),
    "store: schema": (lambda *way: of_store(OF_SCHEMA, *way), 0.1),
}
