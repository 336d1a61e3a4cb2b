"""The report of a session of collectives: what is fastest at which size, and whether it behaves as theory says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from parabench.analysis.collectives.bus import bus_table, launch_sizes, session_launches
from parabench.analysis.collectives.cost_formula import formula
from parabench.analysis.collectives.cost_model import Constant, Fit, fit_costs, points_of
from parabench.analysis.collectives.crossover import answers
from parabench.analysis.links import link_table
from parabench.analysis.session import Session
from parabench.analysis.text import format
from parabench.analysis.warnings.codes import finding_groups
from parabench.analysis.warnings.collectives import check_collectives
from parabench.analysis.warnings.links import check_links
from parabench.plan.collective_case import OPS, size_text
from parabench.plan.collective_protocol import LATENCY, in_words
from parabench.report.data.collectives import case_table, page_data
from parabench.report.page import render_page
from parabench.report.palette import in_native_order
from parabench.report.sections.environment import links_section
from parabench.report.spec import Section, Tab
from parabench.store.record import Status
from parabench.store.results import Results

NS_PER_S, US_PER_S = 1e9, 1e6


def render(results: Results, session: Session, template_folder: Path | None = None) -> str:
    """The page as text."""
    launches, links = session_launches(results, session), link_table(results, session)
    sizes = launch_sizes(results, session)
    table = bus_table(sizes)
    places = in_native_order(sizes["algorithm"].unique())
    fits = tuple(
        sorted(
            fit_costs(points_of(sizes)),
            key=lambda fit: (places.index(fit.algorithm), OPS.index(fit.op or OPS[0]), fit.world_size or 0),
        )
    )
    cases = case_table(launches)
    labels = dict(zip(cases["case_id"], cases["label"], strict=True))
    good = launches["status"] == Status.OK
    return render_page(
        "collectives.html",
        session,
        _tabs(bool((table["good"] > 0).any()), in_words(session.timing), links_section(links)),
        template_folder,
        data=page_data(cases, launches, table, fits),
        answers=answers(sizes),
        trust={"good": int(good.sum()), "launches": len(launches), "cases": len(cases),
               "blocks": launches["block"].nunique(), "checked": int(table["n_wrong"].notna().sum()),
               "unchecked": int(table["n_wrong"].isna().sum()), "wrong": int(table["n_wrong"].sum())},
        rows=[_row(row) for row in table.to_dict("records")],
        statistics=sorted(set(table["statistic"])),
        timed=in_words(session.timing),
        batched=session.timing != LATENCY,
        fits=[_fit(fit) for fit in fits],
        formulas=_formulas(table),
        findings=finding_groups(
            results, session, [*check_collectives(launches, table, fits, session), *check_links(links)], labels
        ),
        launches=launches.to_dict("records"),
        failed=launches[~good].to_dict("records"),
    )  # fmt: skip


def _tabs(drawn: bool, timed: str, links: Section | None) -> list[Tab]:
    return [
        Tab("answer", "Answer", ()),
        Tab("algorithms", "Algorithms", _algorithms(drawn, timed)),
        Tab("trust", "Trust", ()),
        Tab("environment", "Environment", (links,) if links else ()),
        Tab("data", "Data", ()),
    ]


def _algorithms(drawn: bool, timed: str) -> tuple[Section, ...]:
    nothing = "No launch of the selected cases ended well, so there is nothing to draw."
    none = "No launch ended well, so there is nothing to draw."
    return (
        Section(
            "bus",
            "Bus bandwidth against size",
            "Higher is better. Bus bandwidth is what the links carry, by nccl-tests' factors, so it can be held "
            "against the hardware whatever the number of ranks. Bars reach from the slowest to the fastest launch. "
            f"Out of place where torch has both forms. Timed: {timed}.",
            nothing if drawn else none,
            draw="bus" if drawn else "",
        ),
        Section(
            "fit",
            "Measured times over the fitted formula",
            "A point is a launch; a line is the algorithm's formula with its fitted constants, or a + S b where there "
            "is no formula. Both axes are logarithmic. Points that leave their line show where the algorithm does not "
            f"behave as theory says. Timed: {timed}.",
            nothing if drawn else none,
            draw="fit" if drawn else "",
        ),
    )


def _row(row: dict[Any, Any]) -> dict[str, Any]:
    """One line of the table of sizes."""
    form = "in place" if row["in_place"] else "out of place"
    return {str(name): value for name, value in row.items()} | {"size": size_text(int(row["bytes"])), "form": form}


def _fit(fit: Fit) -> dict[str, Any]:
    """One fit in the table of constants; what is no formula says where its line holds."""
    return {
        "algorithm": fit.algorithm,
        "scope": f"{fit.op}, {format.count(fit.world_size or 0, 'rank')}" if fit.is_line else "",
        "error": fit.typical_error,
        "constants": [_constant(constant, fit) for constant in fit.constants],
    }


def _constant(constant: Constant, fit: Fit) -> dict[str, Any]:
    """One line of the table of constants: a in µs, b and c in ns a byte, and their inverse in GB/s."""
    per_byte = constant.unit == "s/B"
    scale = NS_PER_S if per_byte else US_PER_S
    return {
        "name": constant.name,
        "tier": "" if fit.is_line else constant.tier,
        "unit": "ns/B" if per_byte else "µs",
        "value": None if constant.value is None else constant.value * scale,
        "low": None if constant.low is None else constant.low * scale,
        "high": None if constant.high is None else constant.high * scale,
        "rate": 1 / (constant.value * NS_PER_S) if per_byte and constant.value else None,
        "reason": constant.reason or "",
    }


def _formulas(table: pd.DataFrame) -> list[tuple[str, str, str]]:
    """(algorithm, operation, formula) of everything measured."""
    pairs = table[["algorithm", "op"]].drop_duplicates().sort_values(["algorithm", "op"])
    return [(str(a), str(op), formula(str(op), str(a))) for a, op in zip(pairs["algorithm"], pairs["op"], strict=True)]
