"""Doubts about the arithmetic that launches computed in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parabench.analysis.efficiency import efficiency
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.machine import accelerator
from parabench.models import PRECISIONS, TF32
from parabench.store.record import Finding


def arithmetic(seen: SessionData) -> Iterator[Finding]:
    """The findings that ranks computed in another arithmetic than their case's, and in more than there can be."""
    other: dict[str, str] = {}
    works = seen.cases.set_index("case_id")[["label", "device", "precision"]].to_dict("index")
    for launch_id, case_id in zip(seen.good["launch_id"], seen.good["case_id"], strict=True):
        case = works[case_id]
        said = _other(case["precision"], seen.facts[launch_id].get("arithmetic"))
        if case["device"] == accelerator.TYPE and said is not None:
            other[case["label"]] = said
    if other:
        yield Finding(
            code="other_arithmetic",
            message=f"{format.listed(list(other), most=3)}: {next(iter(other.values()))}, so this is not the precision "
            "that the case names.",
            advice="Unset what overrides it in the environment and in the model's code, or name the precision that is "
            "meant.",
        )
    table = seen.once(efficiency)
    above = table.loc[table["mfu"] > 1, ["label", "mfu"]].to_dict("records")
    if above:
        yield Finding(
            code="mfu_above_peak",
            message=f"{format.listed([case['label'] for case in above], most=3)}: up to "
            f"{max(case['mfu'] for case in above):.0%} of the peak, and no device computes faster than it can.",
            advice="See whether products ran in a narrower arithmetic than the case's precision; else the count of "
            "operations is wrong.",
        )


def _other(precision: str, told: dict[str, Any] | None) -> str | None:
    """How the arithmetic that a rank told of at its end differs from that of `precision`."""
    if told is None:
        return None
    wants = PRECISIONS[precision].matmul == TF32
    if told["overrides"]:
        return f"{' and '.join(f'{name}={value}' for name, value in told['overrides'].items())} was set"
    if (told["matmul"] != "highest") is not wants:
        return f"float32 matrix products ran at torch's precision {told['matmul']!r}"
    if told["cudnn_tf32"] is not wants:
        return f"cuDNN's TF32 was {'on' if told['cudnn_tf32'] else 'off'}"
    return None
