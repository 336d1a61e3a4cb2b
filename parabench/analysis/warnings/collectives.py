"""Warnings about a session of collectives, computed from the data, with advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.collectives.cost_model import Fit
from parabench.analysis.session import Session
from parabench.analysis.warnings.launches import NOISY, common, few_launches
from parabench.plan.collective_case import size_text
from parabench.store.record import Finding

# A model that is off by more than this says little about what a change would bring. A choice.
POOR_FIT = 0.25


def check_collectives(cases: pd.DataFrame, table: pd.DataFrame, fits: Iterable[Fit], session: Session) -> list[Finding]:
    """Return all computed warnings, the broadest first; `cases` are configurations with their counts of launches, and
    `table` is that of `bus.bus_table`."""
    logged = (cases["source"] != "").any()
    return [
        *([] if logged else few_launches(cases)),
        *common(cases, session),
        *_other_algorithm(table),
        *_noisy(table),
        *_poor_fits(fits),
    ]


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
