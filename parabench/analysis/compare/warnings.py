"""What a reader must know before trusting a comparison."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from statistics import median

import pandas as pd
from scipy.special import stdtrit

from parabench.analysis import format
from parabench.analysis.compare.cases import CaseResult
from parabench.analysis.compare.several import Several
from parabench.analysis.environment.diff import software_differences
from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.block_model import Effects, fit
from parabench.analysis.stats.contrasts import LEAST_SD, logs_of
from parabench.analysis.stats.quantiles import studentized_range
from parabench.analysis.warnings.codes import FindingGroup, finding_groups
from parabench.analysis.warnings.launches import session_warnings
from parabench.machine import accelerator
from parabench.store.record import Finding


def several_findings(of: Several) -> list[FindingGroup]:
    """Return warnings about the comparison, then each side's own, with the names of the sides."""
    about: dict[tuple[str, str, str], list[str]] = {}

    def add(found: Iterable[Finding], *names: str) -> None:
        for each in found:
            about.setdefault((each.code, each.message, each.advice), []).extend(names)

    for at, side in enumerate(of.sides[1:], 1):
        add(_of_pair(of, at), f"{side.role} against {of.first.role}")
    add(_lost(of))
    for side in of.sides:
        add(unfinished(side))
    for side in of.sides:
        labels = dict(zip(side.cases["case_id"], side.cases["label"], strict=True))
        for group in finding_groups(side.results, side.session, side.once(session_warnings), labels):
            add((Finding(group.code, message, group.advice) for message in group.messages), side.role)
    groups: dict[tuple[str, str], list[str]] = {}
    for (code, message, advice), names in about.items():
        said = f"{format.joined(names)}: {message}" if names else message
        groups.setdefault((code, advice), []).append(said)
    return [FindingGroup(code, advice, tuple(messages)) for (code, advice), messages in groups.items()]


def _lost(of: Several) -> Iterator[Finding]:
    for at, side in enumerate(of.sides[1:], 1):
        lost = of.lost(of.rows, 0, at)
        if lost:
            yield Finding(
                "broken",
                f"{format.count(len(lost), 'case')} succeeded on {of.first.role} and failed on {side.role}: "
                f"{format.listed(row.label for row in lost)}.",
                "The ratios leave them out. Their errors are under “Cases missing on a side”.",
            )


def _of_pair(of: Several, at: int) -> Iterator[Finding]:
    """Yield warnings that are not about one side alone."""
    if of.paired[at] or not of.common(at):
        return
    if of.other_hardware[at]:
        yield from across_findings(of.first, of.sides[at], of.common(at))
        return
    results = [row.step_time[at - 1] for row in of.rows if row.cases[0] == row.cases[at]]
    yield from unpaired_finding(of.first, of.sides[at], [each for each in results if each is not None])


def unfinished(*sides: SessionData) -> Iterator[Finding]:
    """Yield a finding for each side whose session has planned launches left."""
    for side in sides:
        if side.session.finished_utc is None:
            yield Finding(
                "unfinished",
                f"The session of {side.role} is not finished: more launches were planned.",
                "Finish it with --resume, and compare again.",
            )


def across_findings(base: SessionData, candidate: SessionData, pairs: Collection[tuple[str, str]]) -> Iterator[Finding]:
    """What a reader must know before taking a ratio for the hardware's. `pairs` are (base, candidate) case ids."""
    yield Finding(
        "one_machine",
        "Each side is one machine: the intervals do not cover the variation between machines of a kind.",
        "Measure several machines of a kind before you decide on one.",
    )
    kinds = _two_kinds(base, candidate, pairs, "statistic")
    if kinds:
        yield Finding(
            "statistic",
            f"A launch's number is the {kinds[0]} of its steps on {base.role} and the {kinds[1]} on {candidate.role}, "
            "because CPUs are shared and devices are not: part of the ratio is due to the statistic.",
            "Read nothing into a ratio near 1.",
        )
    devices = _two_kinds(base, candidate, pairs, "device")
    if devices:
        kind = {"cpu": "the resident set of a process", accelerator.TYPE: "what torch allocated on a device"}
        yield Finding(
            "memory",
            f"Peak memory is {kind[devices[0]]} on {base.role} and {kind[devices[1]]} on {candidate.role}.",
            "Do not read the ratio per GB as one of efficiency: the two are not the same quantity.",
        )
    energy_sources = [" and ".join(sorted(_joules_from(side))) for side in (base, candidate)]
    if all(energy_sources) and energy_sources[0] != energy_sources[1]:
        yield Finding(
            "energy",
            f"Joules are from the {energy_sources[0]} on {base.role} and from the {energy_sources[1]} on "
            f"{candidate.role}.",
            "Power readings can be off by several per cent; compare devices that have the same source.",
        )
    software = [each.name for each in software_differences(base, candidate)]
    if software:
        yield Finding(
            "software",
            f"The software differs too: {format.listed(software, most=8)}. The ratios include its effect.",
            "Measure both sides with the same software to isolate the hardware.",
        )


def _joules_from(side: SessionData) -> set[str]:
    return set(side.counted["joules_source"].dropna())


def _two_kinds(
    base: SessionData, candidate: SessionData, pairs: Collection[tuple[str, str]], column: str
) -> tuple[str, str] | None:
    """What `column` says on both sides of the first pair that does not agree."""
    for old, new in pairs:
        found = str(base.cases_by_id.loc[old, column]), str(candidate.cases_by_id.loc[new, column])
        if found[0] != found[1]:
            return found
    return None


def unpaired_finding(base: SessionData, candidate: SessionData, results: Iterable[CaseResult]) -> Iterator[Finding]:
    """Yield the finding that the sides were not interleaved, and the bound that interleaved sides would have had."""
    judged = [row for row in results if row.upper is not None and row.ratio is not None]
    cases = {row.case_id for row in judged}
    message = (
        "The sides were not interleaved: anything else that changed in between (clocks, temperature, other load) is "
        "attributed to the candidate."
    )
    effects = [_effects(side, cases) for side in (base, candidate)]
    moved = max(_moved(side, cases, fitted) for side, fitted in zip((base, candidate), effects, strict=True))
    if moved > 0:
        message += f" Within one of these sessions all cases together moved by {format.percent(math.expm1(moved))}."
    variances = [max(each.residual**2, LEAST_SD**2) for each in effects if each is not None]
    if len(variances) == 2:
        # The noise of interleaved launches is the residual of case + block, on both sides.
        n = int(median(min(len(row.base_launches), len(row.candidate_launches)) for row in judged))
        error = float(stdtrit(n - 1, CONFIDENCE)) * math.sqrt(sum(variances) / n)
        now = median((row.upper or 0.0) / (row.ratio or 1.0) for row in judged) - 1
        if error < math.log1p(min(1.0, now)):
            message += (
                f" In a typical case the upper bound lies {format.percent(now)} above the estimate; interleaved, it "
                f"would be {format.percent(math.expm1(error))}."
            )
    yield Finding("unpaired", message, "Interleave the sides with `parabench ab`.")


def _effects(side: SessionData, cases: Collection[str]) -> Effects | None:
    """Return the fitted model of the judged configurations; None if the noise within blocks is unknown."""
    good = side.timed[side.timed["case"].isin(cases)]
    effects = fit(good) if len(good) else None
    return effects if effects is not None and effects.df >= 1 else None


def _moved(side: SessionData, cases: Collection[str], effects: Effects | None) -> float:
    """Return how far the blocks of a session differ on the log scale, as the mean over configurations.

    Return 0 if there is one configuration, or if the noise of launches explains it (Tukey's range of the block means).
    """
    good = side.timed[side.timed["case"].isin(cases)]
    if effects is None or good["case"].nunique() < 2 or good["repetition"].nunique() < 2:
        return 0.0
    logs = pd.Series(logs_of(good["step_s"]), index=good.index)
    blocks = (logs - logs.groupby(good["case"]).transform("mean")).groupby(good["repetition"])
    levels = blocks.mean()
    moved = float(levels.max() - levels.min())
    error = max(effects.residual, LEAST_SD) / math.sqrt(int(blocks.size().min()))
    return moved if moved > studentized_range(len(levels), effects.df, CONFIDENCE) * error else 0.0
