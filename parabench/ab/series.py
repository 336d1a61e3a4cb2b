"""Accept or reject proposals one after another for `parabench ab --series`, with a bound on all false accepts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
from rich.console import Console

from parabench import json_text
from parabench.ab.driver import AbRequest, measure
from parabench.ab.variant import read_variant
from parabench.analysis import format
from parabench.analysis.answer import Answer, columns, tables
from parabench.analysis.compare.proposal import ALPHA, LEAST, Judgement, alpha_of, judge_proposal
from parabench.analysis.compare.sides import sides_of
from parabench.errors import UsageError
from parabench.files import write_whole
from parabench.session.progress import logger
from parabench.store.results import load
from parabench.store.store import STORE_NAME

SERIES_NAME = "series.json"
# The rounds of a pair of launches: enough for the noise of two shared cores, with a test every minute and a half.
ROUNDS = 36
REJECTED = 1
_VERDICT = {True: "accepted", False: "rejected", None: "not decided"}


@dataclass(frozen=True, kw_only=True)
class Proposal(Judgement):
    """A proposal (variant b), its baseline (variant a), and the decision.

    `number` counts the proposals of the series from 1. `alpha` is the chance of a false accept, and `seconds` the
    duration of the last attempt.
    """

    number: int
    baseline: str
    proposal: str
    alpha: float
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Series:
    """All proposals of a folder: the content of `series.json` (docs/how-to/ab.md).

    `alpha` is the chance of any false accept, and `least` the smallest gain that is worth a change.
    """

    alpha: float
    least: float
    proposals: tuple[Proposal, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return 0 if the last proposal is accepted, else REJECTED."""
        return 0 if self.proposals[-1].accept else REJECTED


# The tables of the answer.
TABLES = {"series": columns(Series, accept=bool | None), "proposals": columns(Proposal)}


def answer(series: Series) -> Answer:
    """Return the answer of `ab --series`, with its tables. `accept` is the last decision."""
    last = series.proposals[-1].accept if series.proposals else None
    rows = {"series": [(series, {"accept": last})], "proposals": series.proposals}
    return Answer(tuple(lines(series)), tables(TABLES, rows))


def read_series(folder: Path) -> Series | None:
    """Return the series of a folder, `None` if it has none. Raises UsageError for a file with other content."""
    path = folder / SERIES_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Series)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{path} is not a series of proposals ({format.one_line(error)}); give another folder"
        ) from error


def run_series(
    request: AbRequest,
    console: Console,
    *,
    alpha: float | None = None,
    least: float | None = None,
    budget_s: float | None = None,
) -> Series | None:
    """Measure variant b as a proposal, and decide. Return the series with the proposal; `None` on a stop signal.

    `request.run.out` is the folder of the series. After `budget_s`, the launches so far decide. Raises UsageError.
    """
    folder = request.run.out
    series = read_series(folder) or Series(
        alpha=ALPHA if alpha is None else alpha, least=LEAST if least is None else least
    )
    for name, value, has in (("alpha", alpha, series.alpha), ("least", least, series.least)):
        if value not in (None, has):
            raise UsageError(
                f"--{name} is {value:g}, and the series in {folder} has {has:g} from its first proposal on; drop it, "
                "or start another series"
            )
    baseline, proposal = read_variant("a", request.a).recorded(), read_variant("b", request.b).recorded()
    mine = _next(series, folder, baseline, proposal)
    store = _folder(folder, mine) / STORE_NAME
    run = replace(request.run, out=store.parent, resume=store.is_file())
    start = time.monotonic()

    def judged(sessions: Sequence[int], over: bool) -> Judgement:
        return judge_proposal(*sides_of(load(store), sessions), mine.alpha, series.least, over)

    def enough(sessions: Sequence[int]) -> bool:
        late = budget_s is not None and time.monotonic() - start > budget_s
        return judged(sessions, late).accept is not None

    _write(folder, series, mine)
    pair = measure(replace(request, run=run, resume_command="the same command"), console, enough)
    if pair is None:
        return None
    judgement = judged(pair.sessions, over=True)
    done = replace(mine, **asdict(judgement), seconds=round(time.monotonic() - start, 1))
    series = _write(folder, series, done)
    answer = logger(console, answers=not request.files)
    for line in lines(series):
        answer(line)
    logger(console)(f"store:  {store}")
    return series


def _next(series: Series, folder: Path, baseline: str, proposal: str) -> Proposal:
    """Return the proposal to measure: the last one if it is undecided and the same, or if nothing was measured for it.

    Otherwise, it is a new one, and the last one's share of alpha is spent.
    """
    number = len(series.proposals) + 1
    if series.proposals and (last := series.proposals[-1]).accept is None:
        measured = (_folder(folder, last) / STORE_NAME).is_file()
        number -= not measured or (last.baseline, last.proposal) == (baseline, proposal)
    alpha = alpha_of(number, series.alpha)
    return Proposal(number=number, baseline=baseline, proposal=proposal, alpha=alpha)


def _folder(folder: Path, proposal: Proposal) -> Path:
    return folder / f"{proposal.number:04d}"


def _write(folder: Path, series: Series, mine: Proposal) -> Series:
    """Write and return the series with this proposal as its last."""
    series = replace(series, proposals=(*series.proposals[: mine.number - 1], mine))
    write_whole(folder / SERIES_NAME, json_text.written(asdict(series)), "series", "give another folder")
    return series


def lines(series: Series) -> list[str]:
    """Describe the last proposal and the series."""
    mine = series.proposals[-1]
    found = [f"Proposal {mine.number}: {_VERDICT[mine.accept]}" + (f": {mine.why}." if mine.why else ".")]
    if mine.gain is not None and mine.low is not None and mine.high is not None:
        least, most = sorted((-mine.high, -mine.low))
        found.append(
            f"A step takes {format.signed(-mine.gain)} (95%: {format.signed(least)} to {format.signed(most)}) against "
            f"the baseline, in {format.count(mine.pairs, 'pair')} of launches."
        )
    accepted = sum(each.accept is True for each in series.proposals)
    found.append(
        f"Series: {format.count(len(series.proposals), 'proposal')}, {accepted} accepted; the chance that any is "
        f"accepted although it gains nothing is {format.percent(series.alpha)} at most, for any number of proposals."
    )
    return found


def table(series: Series) -> list[str]:
    """Return a line per proposal."""
    rows = [
        (str(each.number), _VERDICT[each.accept], each.proposal, "" if each.gain is None else format.signed(-each.gain))
        for each in series.proposals
    ]
    return format.aligned([("number", "verdict", "proposal", "step"), *rows], texts=3)
