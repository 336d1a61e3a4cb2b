"""What a reader must know before trusting a comparison."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median

import pandas as pd
from scipy.special import stdtrit

from parabench.analysis.compare.overall import lost_on
from parabench.analysis.compare.several import Against, Several
from parabench.analysis.environment.diff import software_differences
from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.block_model import Effects, fit
from parabench.analysis.stats.quantiles import studentized_range
from parabench.analysis.stats.ttest import LEAST_SD, TTest, logs_of
from parabench.analysis.text import format
from parabench.analysis.warnings.codes import FindingGroup, finding_groups
from parabench.analysis.warnings.launches import session_warnings
from parabench.machine import accelerator
from parabench.store.record import Finding


def several_findings(of: Several) -> list[FindingGroup]:
    """Warnings about the comparison, then each side's own, with the sides that they are about."""
    about: dict[tuple[str, str, str], list[str]] = {}
    for against in of.against:
        for finding in _of_pair(of, against):
            about.setdefault((finding.code, finding.message, finding.advice), []).append(
                f"{against.side.role} against {of.first.role}"
            )
    for finding in _lost(of):
        about[(finding.code, finding.message, finding.advice)] = []
    for side in of.sides:
        for finding in unfinished(side, side):
            about[(finding.code, finding.message, finding.advice)] = []
    for side in of.sides:
        labels = dict(zip(side.cases["case_id"], side.cases["label"], strict=True))
        for group in finding_groups(side.results, side.session, side.once(session_warnings), labels):
            for message in group.messages:
                about.setdefault((group.code, message, group.advice), []).append(side.role)
    groups: dict[tuple[str, str], list[str]] = {}
    for (code, message, advice), names in about.items():
        said = f"{format.joined(names)}: {message}" if names else message
        groups.setdefault((code, advice), []).append(said)
    return [FindingGroup(code, advice, tuple(messages)) for (code, advice), messages in groups.items()]


def _lost(of: Several) -> Iterator[Finding]:
    """Cases that no mean is of, because a side broke them."""
    labels = dict(zip(of.rows, of.cases["label"], strict=True))
    for at, side in enumerate(of.sides[1:], 1):
        lost = lost_on(of, of.rows, 0, at)
        if lost:
            yield Finding(
                "broken",
                f"{format.count(len(lost), 'case')} succeeded on {of.first.role} and failed on {side.role}: "
                f"{format.listed(str(labels[row]) for row in lost)}.",
                "The ratios leave them out. Their errors are under “Cases missing on a side”.",
            )


def _of_pair(of: Several, against: Against) -> Iterator[Finding]:
    """What is not also said of one side alone."""
    if against.paired or not against.step_time.of:  # without a case in common there is nothing to warn of
        return
    if against.machines:
        yield from across_findings(of.first, against.side, against.step_time.of)
        return
    tests = {pair[0]: test for pair, test in against.step_time.tests.items() if pair[0] == pair[1]}
    yield from unpaired_finding(of.first, against.side, tests)


def unfinished(base: SessionData, candidate: SessionData) -> Iterator[Finding]:
    """A finding for each side whose session was to go on."""
    for side in (base, candidate):
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
        "Each side is one machine at one time: the intervals do not cover the variation between machines of a kind, or "
        "between days.",
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


def unpaired_finding(base: SessionData, candidate: SessionData, tests: Mapping[str, TTest]) -> Iterator[Finding]:
    """The finding that no launch of one side has a partner in the other, and what partners would have ruled out.

    A difference of partners has the noise that is left when what a block's launches share is taken away, twice: it is
    read from the residuals of case + block in each side.
    """
    message = (
        "The sides were not interleaved: anything else that changed in between (clocks, temperature, other load) is "
        "attributed to the candidate."
    )
    effects = [_effects(side, tests) for side in (base, candidate)]
    moved = max(_moved(side, tests, fitted) for side, fitted in zip((base, candidate), effects, strict=True))
    if moved > 0:
        message += f" Within one of these sessions all cases together moved by {format.percent(math.expm1(moved))}."
    interleaved = _interleaved(base, candidate, tests, effects)
    if interleaved is not None and interleaved <= 1:
        now = math.expm1(min(50.0, median(test.upper - test.difference for test in tests.values())))
        if interleaved < now:
            message += (
                f" In a typical case the upper bound lies {format.percent(now)} above the estimate; interleaved, it "
                f"would be {format.percent(interleaved)}."
            )
    yield Finding("unpaired", message, "Interleave the sides with `parabench ab`.")


def _effects(side: SessionData, tests: Mapping[str, TTest]) -> Effects | None:
    """Case + block of the cases that were judged; None where the spread within blocks is unknown."""
    good = side.timed[side.timed["case"].isin(tests)]
    effects = fit(good) if len(good) else None
    return effects if effects is not None and effects.df >= 1 else None


def _moved(side: SessionData, tests: Mapping[str, TTest], effects: Effects | None) -> float:
    """How far a session's blocks lie apart on the log scale, mean over the cases that were judged.

    0 where that is one case, which moves alone, and where the noise of launches explains it: Tukey's range of as many
    means of blocks, each of as many launches as the block that has fewest.
    """
    good = side.timed[side.timed["case"].isin(tests)]
    if effects is None or good["case"].nunique() < 2 or good["repetition"].nunique() < 2:
        return 0.0
    logs = pd.Series(logs_of(good["step_s"]), index=good.index)
    blocks = (logs - logs.groupby(good["case"]).transform("mean")).groupby(good["repetition"])
    levels = blocks.mean()
    moved = float(levels.max() - levels.min())
    error = max(effects.residual, LEAST_SD) / math.sqrt(int(blocks.size().min()))
    return moved if moved > studentized_range(len(levels), effects.df, CONFIDENCE) * error else 0.0


def _interleaved(
    base: SessionData, candidate: SessionData, tests: Mapping[str, TTest], effects: Sequence[Effects | None]
) -> float | None:
    """How far above the estimate partners would put the upper bound in a typical case; None where the spread within
    blocks is unknown."""
    variances = [max(each.residual**2, LEAST_SD**2) for each in effects if each is not None]
    if len(variances) < 2:
        return None
    counts = [side.counted["case"].value_counts() for side in (base, candidate)]
    n = int(median(min(int(count.get(case, 0)) for count in counts) for case in tests))
    return math.expm1(min(50.0, float(stdtrit(n - 1, CONFIDENCE)) * math.sqrt(sum(variances) / n)))
