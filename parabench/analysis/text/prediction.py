"""Predictions in words, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from parabench.analysis.prediction.choose import ADVISED, BucketList, Check, Choice
from parabench.analysis.prediction.predict import Prediction, by_reason
from parabench.analysis.prediction.schedule import BETWEEN, WITHIN
from parabench.analysis.text import format

HEAD = (
    "case", "step, ms", "90 % interval", "compute", "slowest", "in a node", "between nodes", "bubble", "memory",
    "same rate", "line in log2",
)  # fmt: skip

# Names of lists that are longer are cut.
MOST_CAPS = 24


def lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """The table of what was predicted, then why the rest was refused, and what was taken for granted."""
    told = [each for each in predictions if each.refused is None]
    if told:
        # What only pipelines have is shown beside them.
        left_out = () if any(each.bubble_s for each in told) else (HEAD.index("bubble"),)
        rows = [HEAD, *map(_row, told)]
        yield from format.aligned([[cell for at, cell in enumerate(row) if at not in left_out] for row in rows])
        yield "All times in ms; same rate and line in log2: naive forecasts, for comparison."
        yield from _naive(told)
    for note, labels in _by(told).items():
        yield f"note: {format.listed(labels, 3)}: {note}"
    for each in predictions:
        if each.refused is not None:
            yield f"refused {each.case.label}: {each.refused}"


def _row(each: Prediction) -> tuple[str, ...]:
    exposed = each.exposed_s or {}
    times = (each.compute_s, each.slowest_s, exposed.get(WITHIN, 0.0), exposed.get(BETWEEN, 0.0), each.bubble_s)
    return (
        each.case.label,
        format.digits(each.step_s * 1e3),
        format.milliseconds_between(each.low_s, each.high_s),
        *(format.digits(seconds * 1e3) for seconds in times),
        format.UNKNOWN if each.peak_bytes is None else f"{format.digits(each.peak_bytes / 1e9)} GB",
        *("-" if naive is None else format.digits(naive * 1e3) for naive in (each.constant_s, each.line_s)),
    )


def _naive(told: Sequence[Prediction]) -> Iterator[str]:
    """Where a naive forecast says the same."""
    for name, said in (("constant_s", "the same rate per rank"), ("line_s", "a line in log2 of the ranks")):
        alike = [each for each in told if (naive := getattr(each, name)) and each.low_s <= naive <= each.high_s]
        if alike:
            yield f"As good as predicted for {len(alike)} of {len(told)}: {said}, which is within their intervals."


def _by(told: Sequence[Prediction]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in told:
        for note in each.notes:
            found.setdefault(note, []).append(each.case.label)
    return found


def interval(each: Prediction) -> str:
    """'21.3 ms (90 %: 19.8 to 22.9)'."""
    return f"{format.milliseconds(each.step_s)} (90 %: {format.milliseconds_between(each.low_s, each.high_s)})"


def choice_lines(found: Choice) -> Iterator[str]:
    """What would be chosen, by how much, and what might be as fast."""
    yield f"{found.world_size} ranks: {found.best.case.label} is expected to be the fastest: {interval(found.best)}."
    default = found.default
    if default is not None and default is not found.best:
        times = format.times(default.sample_s / found.best.sample_s)
        per_sample = "" if default.case.global_batch == found.best.case.global_batch else " for a sample"
        said = f"is expected to take {times} as long{per_sample}: {interval(default)}"
        yield f"PyTorch's default, {default.case.label}, {said}."
    level = found.level
    if level:
        yield (
            f"{format.count(len(level), 'other case')} of {1 + len(found.rest)} may be as fast: "
            f"{format.listed((each.case.label for each in level), 4)}."
        )
    reasons = by_reason(found.refused)
    for reason in list(reasons)[:3]:
        yield f"refused: {reason}"
    if len(reasons) > 3:
        yield f"refused for {len(reasons) - 3} more reasons; name the cases with --set to see them"


def bucket_lines(found: BucketList) -> Iterator[str]:
    """What buckets to take, as a line of code, and what it is expected to give: the best single cap, or a list that is
    faster by more than predictions of lists have been off."""
    single, gain = found.single, format.percent(max(0.0, found.bound - 1))
    cap = single.case.bucket_cap
    best_cap = f"best single cap, {single.case.label}: {interval(single)}"
    buckets = format.count(len(found.buckets.bytes), "bucket")
    if found.advised:
        yield f"{buckets} in the order of reduction: {interval(found.listed)};"
        yield f"the {best_cap}. The list is expected to be {gain} faster:"
        exact = ", ".join(repr(round(each, 6)) for each in found.buckets.caps_mib)
        yield f"  model = DistributedDataParallel(model, bucket_cap_mb_list=[{exact}])"
    else:
        nothing = "" if found.gains else f" No list of buckets was found that gives more than {gain} over it."
        yield f"The {best_cap}.{nothing}"
        given = "" if cap is None else f", bucket_cap_mb={cap:g}"
        yield f"  model = DistributedDataParallel(model{given})"
    if not found.gains:
        return
    if not found.advised:
        yield (
            f"A list of {buckets} is expected to be {gain} faster: {interval(found.listed)}. That is less than "
            f"predictions of lists have been off by ({format.percent(ADVISED)}), so measure it before you take it."
        )
    listed = "+".join(f"{each:.4g}" for each in found.buckets.caps_mib[:MOST_CAPS])
    values = f"{'default' if cap is None else f'{cap:g}'},{listed}"
    yield f"Measure it: parabench run bucket_size --set algorithm={single.case.algorithm} --set bucket_mib={values}"


def check_lines(found: Check) -> Iterator[str]:
    """Each case with what was measured, then how far off predictions are."""
    rows = [("case", "measured, ms", "predicted, ms", "90 % interval", "error", "")]
    for each, step_s in found.told:
        inside = each.low_s <= step_s <= each.high_s
        rows.append(
            (
                each.case.label,
                format.digits(step_s * 1e3),
                format.digits(each.step_s * 1e3),
                format.milliseconds_between(each.low_s, each.high_s),
                format.signed(each.step_s / step_s - 1),
                "" if inside else "outside",
            )
        )
    if found.told:
        yield from format.aligned(rows)
        n = len(found.told)
        yield (
            f"Half of {format.count(n, 'prediction')} are within {format.percent(found.median_error)} of what was "
            f"measured, {found.inside} within their 90 % interval."
        )
    for each in found.predictions:
        if each.refused is not None:
            yield f"refused {each.case.label}: {each.refused}"


def to_dict(each: Prediction) -> dict[str, Any]:
    """A prediction as JSON: seconds and bytes; None is unknown."""
    if each.refused is not None:
        return {"case": each.case.to_dict(), "label": each.case.label, "refused": each.refused}
    names = (
        "step_s", "low_s", "high_s", "compute_s", "slowest_s", "bubble_s", "peak_bytes", "constant_s", "line_s",
        "measured_s",
    )  # fmt: skip
    return {
        "case": each.case.to_dict(),
        "label": each.case.label,
        **{name: getattr(each, name) for name in names},
        "exposed_s": {"within": 0.0, "between": 0.0}
        | {"within" if tier == WITHIN else "between": seconds for tier, seconds in (each.exposed_s or {}).items()},
        "notes": list(each.notes),
    }
