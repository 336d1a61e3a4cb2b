"""Scaling curves as the page embeds them: their points are rows of cases, so that what these hold is embedded once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from parabench.analysis.scaling import ALIKE, FIXED, STRONG
from parabench.analysis.text.format import unit_of
from parabench.report.data.columns import packed

# The values of these need no name before them.
_SPEAKING = ("model", "data", "precision", "device")


def scaling_data(curves: pd.DataFrame, rows: Mapping[Any, int]) -> dict[str, Any]:
    """`curves` as `analysis.scaling` has them, their cases by the row in `rows`.

    `groups` have the title of what stays the same and the unit of throughput; a curve names its `group`, the row of its
    `base` and how many points it has, `n_points`; a point its `case` and `efficiency`, those of a curve together and in
    the order of the curves.
    """
    begins = curves.drop_duplicates("curve")
    works = curves[list(ALIKE)].drop_duplicates()
    table = pd.DataFrame(
        {
            "group": begins["group"],
            "base": begins["base_case_id"].map(rows),
            "n_points": curves.groupby("curve").size().to_numpy(),
        }
    )
    return {
        "groups": [
            {"title": _title(group, works), "unit": unit_of(group["seq_len"])}
            for group in begins.drop_duplicates("group").to_dict("records")
        ],
        "curves": packed(table),
        "points": packed(pd.DataFrame({"case": curves["case_id"].map(rows), "efficiency": curves["efficiency"]})),
    }


def _title(group: Mapping[Any, Any], works: pd.DataFrame) -> str:
    """'Strong scaling, global batch 8', and what else sets this work apart."""
    kind = group["kind"]
    said = f"global batch {group[FIXED[kind]]}" if kind == STRONG else f"{group[FIXED[kind]]:g} samples a rank"
    apart = [
        str(group[name]) if name in _SPEAKING else f"{name.replace('_', ' ')} {group[name] or 'of bytes'}"
        for name in ALIKE
        if works[name].nunique() > 1
    ]
    return ", ".join([f"{kind.capitalize()} scaling", said, *apart])
