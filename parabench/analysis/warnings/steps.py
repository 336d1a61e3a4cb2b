"""Warnings about the parts of a step: slow instruments, missing communication, stragglers, and DDP's log."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import taken_apart
from parabench.analysis.step.ddp_log import ddp_comparison
from parabench.analysis.step.stragglers import always_last, straggler_table
from parabench.analysis.warnings.codes import Rule
from parabench.store.record import Finding
from parabench.strategies import entry_of

# Slower instrumented steps differ too much from the measured steps.
SLOW_INSTRUMENTS = 1.10
# By chance, one of two equal ranks is last in this number of steps in less than 1 of 100 cases (2 x 0.5^8).
ENOUGH_STEPS = 8
# A straggler costs this share of the step.
COSTLY = 0.05
# Two clocks of the same step agree within a few percent: at 2 ranks on shared CPUs, three of four spans within 5%.
DISAGREES = 0.20
# Hooks, and copying small buckets back, are between the timestamps of the two: mostly 0.1 to 0.7 ms on a CPU.
DISAGREES_S = 1e-3

INSTRUMENTS = Rule(
    "instruments_slow",
    lambda row: row["instruments_ratio"] > SLOW_INSTRUMENTS,
    "{label}: the instrumented steps took {slower:percent} longer than the measured ones, so the breakdown of its step "
    "is approximate.",
    "Read shares rather than times from it. Step time and ranking come from the measured steps only.",
)
COMMUNICATION = Rule(
    "no_communication",
    # One process with several devices does not use torch.distributed.
    lambda row: row["unseen"] and not entry_of(row["strategy"]).one_process,
    "{label}: no collective of its {world_size} ranks was recorded, so its communication bypasses the instruments.",
    "Take its communication as unknown: the instruments record torch.distributed only.",
)
STRAGGLER = Rule(
    "straggler",
    lambda row: (
        row["always_last"]
        and row["steps"] >= ENOUGH_STEPS
        and row["waited_s"] > row["clock_error_s"]
        and row["waited_share"] > COSTLY
    ),
    "{label}: {who} was the last to enter the collectives in {share:percent} of the steps; the others waited "
    "{waited_s:ms} per step for it ({waited_share:percent}).",
    "Check the additional work of that rank, its device, and other processes there.",
)
DDP_LOG = Rule(
    "ddp_disagrees",
    lambda row: row["disagrees"] and row["alike"] > max(1, row["pairs"] / 2),
    "{label}: DDP's logger reports {ddp_s:ms} of {span} in an instrumented step, the instruments {ours_s:ms} (in "
    "{alike} of {pairs:#pair}).",
    "One of them is wrong, or they measure different spans (docs/explanation/instruments.md). Only one includes your "
    "forward hooks, and on a busy host a rank may lose its core between two timestamps. Trust neither until you know "
    "the cause.",
)


def findings(seen: SessionData) -> Iterator[Finding]:
    """Yield the warnings about the parts of a step."""
    cases, stragglers = seen.once(taken_apart), seen.once(straggler_table)
    cases = cases[["case_id", "label", "strategy", "world_size", "unseen", "instruments_ratio"]]
    yield from INSTRUMENTS.findings(cases.assign(slower=cases["instruments_ratio"] - 1))
    yield from COMMUNICATION.findings(cases)
    yield from STRAGGLER.findings(stragglers.assign(always_last=always_last(stragglers)))
    pairs = seen.once(ddp_comparison).dropna(subset="difference")
    if len(pairs):
        yield from DDP_LOG.findings(_disagreements(pairs))


def _disagreements(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per case and span: the medians, and the number of pairs that differ `alike`."""
    key = ["case_id", "label", "span"]
    medians = pairs.groupby(key, sort=False)[["ddp_s", "ours_s"]].transform("median")
    same_sign = (pairs["ddp_s"] > pairs["ours_s"]) == (medians["ddp_s"] > medians["ours_s"])
    found = (
        pairs.assign(alike=_apart(pairs) & same_sign)
        .groupby(key, sort=False)
        .agg(ddp_s=("ddp_s", "median"), ours_s=("ours_s", "median"), alike=("alike", "sum"), pairs=("alike", "size"))
    )
    return found.assign(disagrees=_apart(found)).reset_index()


def _apart(table: pd.DataFrame) -> pd.Series[bool]:
    """Return whether the times of each row differ by more than the measurement explains."""
    return (table["ddp_s"] - table["ours_s"]).abs() > np.maximum(DISAGREES * table["ours_s"], DISAGREES_S)
