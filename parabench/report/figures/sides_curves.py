"""Curves of several sides: step time against bucket size, throughput and efficiency against the world size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from parabench.analysis import format
from parabench.analysis.compare.overall import Overall
from parabench.analysis.compare.several import MACHINES_OWN, SHARED_WORK, Several
from parabench.analysis.scaling import ALIKE, FIXED, curves
from parabench.plan.case import Case
from parabench.plan.fields import list_text, number
from parabench.report.figures.figures import ALL, ERROR_BARS, FROM_ZERO, GREY, Panel, Trace, lay_out, listed, plain
from parabench.report.figures.sides import SideCase, cases_by_work, side_points
from parabench.report.palette import side_style

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def buckets(of: Several, works: Sequence[Overall]) -> list[Panel]:
    """Return step time against bucket size: a panel for configurations that differ only in it, a curve per side.

    Panels with the most sizes come first.
    """
    found = []
    for work, cases in cases_by_work(of, works):
        groups: dict[Any, list[SideCase]] = {}
        for one in cases:
            if one.known("step_time_s"):
                groups.setdefault(_but_bucket(one.case), []).append(one)
        for own in groups.values():
            sizes = sorted({one.case.bucket_mib for one in own}, key=_rising)
            if len(sizes) > 1:
                label = structs.replace(own[0].case, bucket_mib=None).label
                found.append((" · ".join(filter(None, (work.heading, label))), own, sizes))
    return [_buckets(of, *panel) for panel in sorted(found, key=lambda panel: -len(panel[-1]))]


def _but_bucket(case: Case) -> tuple[Any, ...]:
    return tuple(value for name, value in case.to_dict().items() if name not in (*MACHINES_OWN, "bucket_mib"))


def _rising(bucket_mib: Any) -> tuple[int, tuple[float, ...]]:
    """Return a key that sorts sizes, then lists of caps, then PyTorch's default."""
    if bucket_mib is None:
        return 2, ()
    return (1, bucket_mib) if isinstance(bucket_mib, tuple) else (0, (bucket_mib,))


def _buckets(of: Several, title: str, cases: list[SideCase], sizes: list[Any]) -> Panel:
    # Sizes on a logarithmic axis; on its right, lists of caps and the default.
    places: dict[Any, float] = {size: math.log2(size) for size in sizes if isinstance(size, float)}
    low, high = min(places.values(), default=0.0), max(places.values(), default=0.0)
    apart = [size for size in sizes if size not in places]
    places |= {size: high + (i + 1) * max(1.0, (high - low) / 5) for i, size in enumerate(apart)}
    traces = []
    for at in range(len(of.names)):
        aside = (at - (len(of.names) - 1) / 2) * 0.06  # so that error bars do not hide each other
        known = [(step_s, one) for one in cases if (step_s := one.known("step_time_s").get(at))]
        # The fastest, if a side measured one size on two kinds of device.
        own = {one.case.bucket_mib: one for _, one in sorted(known, key=lambda pair: -pair[0])}
        curve = [own[size] for size in places if size in own and size not in apart]
        parts = [part for part in (curve, *([own[size]] for size in apart if size in own)) if part]
        for i, part in enumerate(parts):
            x = [places[one.case.bucket_mib] + aside for one in part]
            mode = "lines+markers" if len(part) > 1 else "markers"
            traces.append(_step_times(of, at, x, part, mode=mode, showlegend=not i))
    texts = [_bucket(list_text(size) if isinstance(size, tuple) else size) for size in places]
    ticks = {"tickvals": [*places.values()], "ticktext": texts}
    return Panel(title, lay_out(traces, "bucket size (MiB)", "step time (ms)", xaxis=ticks), 360)


def _step_times(of: Several, at: int, x: list[float], cases: list[SideCase], **more: Any) -> Trace:
    own = [one.sides[at] for one in cases]
    steps = [numbers["step_time_s"] for numbers in own]
    bars = {
        "array": listed((max(0.0, numbers["high_s"] - numbers["step_time_s"]) for numbers in own), 1e3),
        "arrayminus": listed((max(0.0, numbers["step_time_s"] - numbers["low_s"]) for numbers in own), 1e3),
    }
    hovers = [
        f"<b>{plain(one.row.label)}</b><br>{plain(of.names[at])}: {format.milliseconds(step_s)} per step<br>"
        f"{numbers['n_ok']:.0f} of {format.count(int(numbers['n_launches']), 'launch')} ok"
        for one, numbers, step_s in zip(cases, own, steps, strict=True)
    ]
    line = {"color": side_style(at).color}
    ids = [one.id for one in cases]
    return side_points(of, at, x, listed(steps, 1e3), hovers, ids, error_y=ERROR_BARS | bars, line=line, **more)


def _bucket(bucket_mib: str | float | None) -> str:
    """Return the text of a bucket size, or of a list of caps, in a table of cases."""
    if isinstance(bucket_mib, str):
        return bucket_mib
    return number(bucket_mib) if format.known(bucket_mib) else "default"


# -- curves over the world size ---------------------------------------------------------------------------------------

Point = Mapping[Any, Any]
_IDEAL = {
    "type": "scatter", "mode": "lines", "name": "ideal", "meta": ALL, "hoverinfo": "skip",
    "line": {"color": GREY, "dash": "dot", "width": 1.5},
}  # fmt: skip


def scaling(of: Several) -> list[Panel]:
    """Return throughput and efficiency against the world size: a color per side, a dash per strategy. A side's
    strategy is shown by its curve with most world sizes, among equals the fastest at the largest."""
    page_ids = dict(zip((row.cases for row in of.rows), of.cases["case_id"], strict=True))
    alike = [name for name in ALIKE if name in SHARED_WORK]
    groups: dict[str, dict[tuple[Any, ...], list[Point]]] = {kind: {} for kind in FIXED}
    for at, seen in enumerate(of.sides):
        ids = {row[at]: id_ for row, id_ in page_ids.items()}
        for point in seen.once(curves).to_dict("records"):
            key = tuple(None if point[name] != point[name] else point[name] for name in (*alike, FIXED[point["kind"]]))
            own = groups[point["kind"]].setdefault(key, [])
            own.append(point | {"side": at, "page_id": ids[point["case_id"]]})
    every = [key for own in groups.values() for key in own]
    differing = [i for i in range(len(alike)) if len({key[i] for key in every} - {None}) > 1]
    panels = []
    for kind, works in groups.items():
        for key, points in works.items():
            same = f"global batch {key[-1]}" if FIXED[kind] == "global_batch" else f"{key[-1]:g} samples a rank"
            title = ", ".join([f"{kind.capitalize()} scaling", same, *(str(key[i]) for i in differing)])
            if len({point["world_size"] for point in points}) > 1:
                panels += _scaling(of, title, points)
    return panels


def _best(points: list[Point]) -> list[list[Point]]:
    """Return the curve of each strategy of each side."""
    found: dict[tuple[int, str], dict[int, list[Point]]] = {}
    for point in sorted(points, key=lambda point: point["world_size"]):
        found.setdefault((point["side"], point["strategy"]), {}).setdefault(point["curve"], []).append(point)
    return [max(own.values(), key=lambda curve: (len(curve), curve[-1]["tokens_per_s"])) for own in found.values()]


def _scaling(of: Several, title: str, points: list[Point]) -> list[Panel]:
    sizes = sorted({point["world_size"] for point in points})
    strategies = list(dict.fromkeys(point["strategy"] for point in points))
    unit = format.unit_of(points[0]["seq_len"])
    wide = sizes[-1] > 16 * sizes[0]
    best = sorted(_best(points), key=lambda curve: curve[0]["side"])

    def draw(name: str, factor: float, text: Callable[[float], str]) -> list[Trace]:
        return [_curve(of, curve, strategies, name, factor, text) for curve in best]

    x = {"type": "log" if wide else "linear", "tickvals": sizes, "ticktext": [*map(str, sizes)]}
    throughput = lay_out(
        draw("tokens_per_s", 1, lambda value: format.throughput(value, unit)),
        "world size (ranks)",
        f"throughput ({unit}/s)",
        xaxis=x,
        yaxis={"type": "log"} if wide else FROM_ZERO,
    )
    ideal = _IDEAL | {"x": [sizes[0], sizes[-1]], "y": [100, 100]}
    efficiency = lay_out(
        [ideal, *draw("efficiency", 100, format.percent)],
        "world size (ranks)",
        "efficiency (%)",
        xaxis=x,
        yaxis=FROM_ZERO,
    )
    height = 340 + 10 * len(best)
    return [Panel(f"{title}: throughput", throughput, height), Panel(f"{title}: efficiency", efficiency, height)]


def _curve(
    of: Several, curve: list[Point], strategies: list[str], name: str, factor: float, text: Callable[[float], str]
) -> Trace:
    first = curve[0]
    at, strategy = first["side"], first["strategy"]
    how = plain(f"{strategy}, {first['algorithm']}, bucket {_bucket(first['bucket_mib'])}")
    hovers = [
        f"<b>{plain(of.names[at])}</b><br>{how}<br>{format.count(point['world_size'], 'rank')}: {text(point[name])}"
        for point in curve
    ]
    line = {"color": side_style(at).color, "dash": _DASHES[strategies.index(strategy) % len(_DASHES)]}
    more: dict[str, Any] = {"mode": "lines+markers", "line": line, "legendgroup": f"{at} {strategy}"}
    x, y = [point["world_size"] for point in curve], listed((point[name] for point in curve), factor)
    trace = side_points(of, at, x, y, hovers, [point["page_id"] for point in curve], marker={"size": 8}, **more)
    return trace | {"name": f"{trace['name']}, {plain(strategy)}"} if len(strategies) > 1 else trace
