"""Warnings about a session of collectives."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from parabench.analysis.collectives.cost_model import Fit
from parabench.analysis.session import Session
from parabench.analysis.warnings.codes import Rule
from parabench.analysis.warnings.launches import FEW, NOISY, common
from parabench.plan.collective_case import size_text
from parabench.store.record import Finding

# A cost model with a larger error hardly predicts the effect of a change.
POOR_FIT = 0.25

OTHER_ALGORITHM = Rule(
    "other_algorithm",
    lambda row: row["ran"] != row["algorithm"],
    "{label}: {ran} ran, because {algorithm} has no {op}.",
    "The numbers are those of {ran}.",
)
NOISY_SIZES = Rule(
    "noisy",
    lambda row: row["spread"] > row["limit"],
    "{label}: launches differ, the most at {size}, by {spread:percent}.",
    "Stop other processes on the machine, or run more launches.",
)
POOR_FITS = Rule(
    "poor_fit",
    lambda row: row["error"] > POOR_FIT,
    "{name}: {model} is typically {error:percent} off.",
    "Read the fitted constants as a rough description, and look for sizes whose points leave the line.",
)


def check_collectives(cases: pd.DataFrame, table: pd.DataFrame, fits: Iterable[Fit], session: Session) -> list[Finding]:
    """Return all computed warnings, the broadest first.

    `cases` are configurations with their counts of launches, and `table` is a `bus.bus_table`.
    """
    logged = (cases["source"] != "").any()
    sizes = table.assign(limit=table["device"].map(NOISY).astype(float), size=table["bytes"].map(size_text))
    fitted = [
        (f"{each.algorithm} ({each.scope})", "a straight line", each.typical_error)
        if each.is_line
        else (each.algorithm, "its formula", each.typical_error)
        for each in fits
    ]
    return [
        *([] if logged else FEW.findings(cases)),
        *common(cases, session),
        *OTHER_ALGORITHM.findings(table.drop_duplicates(["case_id", "ran"])),
        *NOISY_SIZES.findings(sizes.sort_values("spread", ascending=False).drop_duplicates("case_id")),
        *POOR_FITS.findings(pd.DataFrame(fitted, columns=["name", "model", "error"])),
    ]
