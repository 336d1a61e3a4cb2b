"""Draw the pictures of docs/explanation/prediction.md: the method, and predicted over measured step times.

`python -m docs.drawing.prediction` writes the first one. `benchmarks.prediction.held_out` draws the second one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from docs.drawing.svg import FAINT, INK, Canvas

FILE = Path(__file__).parents[1] / "prediction.svg"

MEASURED, COMPUTED, OTHER = "#e8f0fa", "#ffffff", "#fdf1dc"
BOX, TALL, LEFT = 214, 66, 16

# {box: (column, row, lines of text, color)}.
BOXES: dict[str, tuple[float, float, tuple[str, ...], str]] = {
    "program": (0, 0, ("Compute-only run of a rank", "work, calls, waits, gradients", "session: compute"), MEASURED),
    "tables": (0, 1, ("Times of collectives", "2 ranks in a node, 2 nodes", "session: collectives"), MEASURED),
    "given": (0, 2, ("--link node=25GB/s,20us", "if nothing was measured"), OTHER),
    "pair": (0, 3, ("Training runs of 2 ranks", "session: training"), MEASURED),
    "schedule": (1.25, 1, ("Latency and bandwidth", "times the algorithm's rounds,", "N ranks on M nodes"), COMPUTED),
    "slowest": (1.25, 0, ("The slowest of N ranks", "from the spread of steps"), COMPUTED),
    "correct": (1.25, 3, ("Correction of the work", "for each strategy"), COMPUTED),
    "simulate": (2.5, 1, ("Timeline of a step", "one lane computes, one queue", "for each group of ranks"), COMPUTED),
    "answer": (3.75, 1, ("Step time, 90% interval", "compute, exposed, waiting;", "or the missing measurement"), OTHER),
}  # fmt: skip
ARROWS = (
    ("program", "slowest"), ("tables", "schedule"), ("given", "schedule"), ("pair", "correct"), ("slowest", "simulate"),
    ("schedule", "simulate"), ("correct", "simulate"), ("simulate", "answer"),
)  # fmt: skip


def how() -> str:
    """Return the SVG document of the method."""
    canvas = Canvas()
    canvas.marker("arrow", INK, filled=True)

    def place(name: str) -> tuple[float, float]:
        column, row, *_ = BOXES[name]
        return LEFT + column * (BOX + 8), LEFT + row * (TALL + 26)

    for start, end in ARROWS:
        (x, y), (to_x, to_y) = place(start), place(end)
        canvas.line(x + BOX, y + TALL / 2, to_x - 2, to_y + TALL / 2, stroke=FAINT, marker_end="url(#arrow)")
    for name, (_, _, lines, color) in BOXES.items():
        x, y = place(name)
        canvas.rect(x, y, BOX, TALL, rx=6, fill=color, stroke=INK)
        first = y + TALL / 2 - 9 * (len(lines) - 1) + 4
        for at, line in enumerate(lines):
            weight = "bold" if at == 0 else "normal"
            canvas.text(x + 10, first + 18 * at, line, font_size=12, font_weight=weight)
    width = LEFT + 3.75 * (BOX + 8) + BOX + LEFT
    described = "; ".join(f"{' '.join(BOXES[a][2][:1])} goes into {' '.join(BOXES[b][2][:1])}" for a, b in ARROWS)
    return canvas.document("prediction", "How a step time is predicted", described, width, LEFT + 4.0 * (TALL + 26))


class Point(NamedTuple):
    """A held-out configuration: measured and predicted step time, 90% interval, and the kind, which has a color."""

    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    kind: str


SIDE, MARGIN = 520, 64
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def held_out(points: Sequence[Point]) -> str:
    """Return the SVG document of predicted over measured step times, on logarithmic axes, with 90% intervals."""
    canvas = Canvas()
    every = [value for each in points for value in each[:4]]
    low, high = math.log10(min(every) * 0.9), math.log10(max(every) * 1.1)

    def at(seconds: float) -> float:
        return (math.log10(seconds) - low) / (high - low) * SIDE

    def x(seconds: float) -> float:
        return MARGIN + at(seconds)

    def y(seconds: float) -> float:
        return MARGIN + SIDE - at(seconds)

    canvas.rect(MARGIN, MARGIN, SIDE, SIDE, fill="none", stroke=FAINT)
    ends = 10**low, 10**high
    canvas.line(x(ends[0]), y(ends[0]), x(ends[1]), y(ends[1]), stroke=FAINT, stroke_dasharray="4 4")
    for tick in (digit * 10.0**power for power in range(-3, 3) for digit in (1, 2, 5)):
        if ends[0] < tick < ends[1]:
            words = f"{tick * 1e3:g}"
            canvas.text(x(tick), MARGIN + SIDE + 18, words, font_size=11, text_anchor="middle")
            canvas.text(MARGIN - 8, y(tick) + 4, words, font_size=11, text_anchor="end")
    kinds = list(dict.fromkeys(each.kind for each in points))
    for each in points:
        color = COLORS[kinds.index(each.kind) % len(COLORS)]
        inside = each.low_s <= each.measured_s <= each.high_s
        canvas.line(x(each.measured_s), y(each.low_s), x(each.measured_s), y(each.high_s), stroke=color)
        fill = color if inside else "#ffffff"
        canvas.add("circle", cx=x(each.measured_s), cy=y(each.predicted_s), r=4, fill=fill, stroke=color)
    for row, kind in enumerate(kinds):
        canvas.add("circle", cx=MARGIN + 14, cy=MARGIN + 16 + 18 * row, r=4, fill=COLORS[row % len(COLORS)])
        canvas.text(MARGIN + 24, MARGIN + 20 + 18 * row, kind, font_size=12)
    canvas.text(MARGIN, MARGIN - 34, "Predicted over measured step time, ms", font_size=15, font_weight="bold")
    canvas.text(MARGIN, MARGIN - 14, "Bars: 90% intervals; open points are outside theirs", font_size=12)
    canvas.text(MARGIN + SIDE / 2, MARGIN + SIDE + 40, "measured", font_size=12, text_anchor="middle")
    described = f"{len(points)} held-out configurations, predicted over measured"
    return canvas.document("held-out", "Held-out step times", described, SIDE + 2 * MARGIN, SIDE + 2 * MARGIN)


if __name__ == "__main__":
    FILE.write_text(how())
