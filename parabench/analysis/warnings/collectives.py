"""Warnings about a session of collectives, computed from the data, with advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from parabench.analysis.collectives.cost_model import Fit
from parabench.analysis.environment.nodes import crowded, several_nodes
from parabench.analysis.session import Session
from parabench.analysis.text import format
from parabench.analysis.warnings.launches import NOISY, debug_environment, few_launches, shared_gpu
from parabench.analysis.warnings.nodes import nodes_differ
from parabench.plan.collective_case import size_text
from parabench.store.record import Finding, Status

# A model that is off by more than this says little about what a change would bring. A choice.
POOR_FIT = 0.25


def check_collectives(
    launches: pd.DataFrame, table: pd.DataFrame, fits: Iterable[Fit], session: Session
) -> list[Finding]:
    """All computed findings, the broadest first; `table` as `bus.bus_table` makes it."""
    good = (launches["status"] == Status.OK).groupby(launches["label"], sort=False).sum()
    logged = (table["source"] != "").any()
    return [
        *([] if logged else few_launches([str(label) for label in good.index], list(good))),
        *_failing(launches),
        *_oversubscribed(table, session),
        *shared_gpu(table, session.environment),
        *debug_environment(table, session.environment),
        *nodes_differ(session),
        *_other_algorithm(table),
        *_noisy(table),
        *_poor_fits(fits),
    ]


def _failing(launches: pd.DataFrame) -> Iterator[Finding]:
    for case_id, group in launches.groupby("case", sort=False):
        ok = int((group["status"] == Status.OK).sum())
        if 0 < ok < len(group):
            yield Finding(
                code="fails_sometimes",
                message=f"{group['label'].iloc[0]}: {len(group) - ok} of {format.count(len(group), 'launch')} "
                "failed; only those that succeeded count.",
                advice="Read the launch's error before you choose this algorithm.",
                case_id=str(case_id),
            )


def _oversubscribed(table: pd.DataFrame, session: Session) -> Iterator[Finding]:
    on_cpu = table.loc[table["device"] == "cpu", ["world_size", "threads", "nodes"]].drop_duplicates()
    each = [tuple(map(int, row)) for row in on_cpu.to_numpy()]
    short = {size: found for size, *how in each if (found := crowded(session.environment, size, *how))}
    if short:
        cores = min(cores for _, cores in short.values())
        of_several = several_nodes(session.environment)
        whose = "a node's ranks" if of_several else "world_size"
        yield Finding(
            code="oversubscribed",
            message=f"{' or '.join(map(str, sorted(short)))} ranks on {format.count(cores, 'core')}"
            f"{' of each node' if of_several else ''} take turns, so their times are "
            "the scheduler's as much as the algorithm's.",
            advice=f"Keep {whose} x threads at {cores} or below, or use a machine with more cores.",
        )


def _other_algorithm(table: pd.DataFrame) -> Iterator[Finding]:
    for case in table[table["ran"] != table["algorithm"]].drop_duplicates("case_id").to_dict("records"):
        yield Finding(
            code="other_algorithm",
            message=f"{case['label']}: {case['ran']} ran, because {case['algorithm']} has no {case['op']} of its own.",
            advice=f"Read its numbers as those of {case['ran']}.",
            case_id=case["case_id"],
        )


def _noisy(table: pd.DataFrame) -> Iterator[Finding]:
    noisy = table[table["spread"] > table["device"].map(NOISY)]
    for case_id, group in noisy.groupby("case_id", sort=False):
        worst: dict[Any, Any] = group.sort_values("spread").iloc[-1].to_dict()
        yield Finding(
            code="noisy",
            message=f"{worst['label']}: launches differ, the most at {size_text(int(worst['bytes']))}, by "
            f"{format.percent(float(worst['spread']))}.",
            advice="Stop what else runs on the machine, or run more launches.",
            case_id=str(case_id),
        )


def _poor_fits(fits: Iterable[Fit]) -> Iterator[Finding]:
    for fit in fits:
        if fit.typical_error > POOR_FIT:
            what = "a straight line" if fit.is_line else "its formula"
            of = f" ({fit.scope})" if fit.is_line else ""
            yield Finding(
                code="poor_fit",
                message=f"{fit.algorithm}{of}: {what} is typically {format.percent(fit.typical_error)} off.",
                advice="Read the fitted constants as a description at best; look at where the points leave the line.",
            )
