"""Draw docs/rooms.svg from the source: the packages of parabench and their imports.

`python -m docs.drawing.rooms` writes the picture, and a test checks that it is current. Arrows that follow from others
(from `session` over `launch` to `plan`) and the modules that every package imports are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from docs.drawing.svg import FAINT, INK, Canvas
from tests.unit.test_imports import MEASURING, ORDER, READING, arrows, room

FILE = Path(__file__).parents[1] / "rooms.svg"

# Modules that every package imports, or that no package imports. Modules with a separate place in ORDER are drawn only
# if they are in ROOMS.
HIDDEN = {
    "errors", "records", "registry", "files", "signals", "private", "metrics", "json_text", "cli", "__main__",
    "launch.preload",
}  # fmt: skip

# {package: (column, purpose)}. The rows follow from the arrows.
ROOMS = {
    "pytest_plugin": (5.2, "suites as tests"),
    "commands": (1.5, "one file per command"),
    "ab": (1.5, "interleaved variants"),
    "watching": (0.4, "your training loop"),
    "session": (1.5, "request to answer"),
    "cluster": (1.75, "several nodes"),
    "workloads": (0.5, "measurement of a rank"),
    "serve": (4.2, "live report"),
    "exporters": (3.15, "formats of other tools"),
    "imports": (3.1, "traces, dumps, logs"),
    "notebook": (5.2, "results in Python"),
    "launch": (2.0, "processes of a launch"),
    "strategies": (0.0, "ddp, fsdp, tp, pp ..."),
    "report": (4.6, "pages and files"),
    "probes": (1.0, "instruments of a rank"),
    "plan": (3.45, "suites, list of launches"),
    "strategies.base": (0.0, "interface of strategies"),
    "data": (2.6, "sources of samples"),
    "analysis": (4.6, "answers from results"),
    "models": (1.0, "built-in models"),
    "strategies.snippet": (4.85, "configuration as code"),
    "collectives": (2.8, "all-reduce algorithms"),
    "machine": (3.8, "hardware, versions"),
    "cases": (1.3, "Case, Protocol"),
    "tables": (1.5, "tables of extensions"),
    "store": (3.6, "results database"),
}
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 170, 40, 20, 26, 16
MEASURES, READS, BOTH = "#e8f0fa", "#fdf1dc", "#ffffff"


def imported() -> dict[str, set[str]]:
    """Return {package: packages that it imports from}, without imports that follow from others."""
    level = {name: at for at, layer in enumerate(ORDER) for name in layer.split()}
    drawn = {name for name in level if name not in HIDDEN and (name in ROOMS or "." not in name)}
    to: dict[str, set[str]] = {name: set() for name in drawn}
    for importing, other in arrows():
        a, b = room(importing), room(other)
        if level[a] > level[b] and {a, b} <= drawn:
            to[a].add(b)

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        left = [start]
        while left:
            new = to[left.pop()] - found
            found |= new
            left += new
        return found

    reach = {name: reached(name) for name in to}
    return {a: {b for b in others if not any(b in reach[c] for c in others - {b})} for a, others in to.items()}


def rows_of(to: Mapping[str, set[str]]) -> dict[str, int]:
    """Return {package: length of its longest chain of imports}."""
    rows: dict[str, int] = {}

    def row(name: str) -> int:
        if name not in rows:
            rows[name] = 1 + max((row(other) for other in to[name]), default=-1)
        return rows[name]

    for name in to:
        row(name)
    return rows


def color_of(room: str) -> str:
    """Return blue for measuring packages, yellow for reading packages, and white for the others."""
    return MEASURES if room in MEASURING else READS if room in READING else BOTH


def draw() -> str:
    """Return the SVG document. Raises KeyError if a package is not in ROOMS."""
    to = imported()
    rows = rows_of(to)
    top = max(rows.values())
    places = {
        name: (MARGIN + ROOMS[name][0] * (WIDTH + GAP_X), MARGIN + (top - row) * (HEIGHT + GAP_Y))
        for name, row in rows.items()
    }
    canvas = Canvas()
    canvas.marker("rooms-head", FAINT, filled=True)
    for name, others in sorted(to.items()):
        for other in sorted(others):
            (x1, y1), (x2, y2) = places[name], places[other]
            shift = max(-1.0, min(1.0, (x2 - x1) / (2 * WIDTH)))
            canvas.line(
                x1 + WIDTH / 2 + shift * WIDTH / 3, y1 + HEIGHT, x2 + WIDTH / 2 - shift * WIDTH / 3, y2,
                stroke=FAINT, marker_end="url(#rooms-head)",
            )  # fmt: skip
    for name, (x, y) in sorted(places.items()):
        canvas.rect(x, y, WIDTH, HEIGHT, rx=5, fill=color_of(name), stroke=INK)
        middle = {"text_anchor": "middle"}
        canvas.text(x + WIDTH / 2, y + 17, name, font_size=13, font_weight="bold", **middle)
        canvas.text(x + WIDTH / 2, y + 32, ROOMS[name][1], font_size=11.5, **({"fill": INK} | middle))
    columns = max(column for column, _ in ROOMS.values())
    width = 2 * MARGIN + columns * (WIDTH + GAP_X) + WIDTH
    height = 2 * MARGIN + top * (HEIGHT + GAP_Y) + HEIGHT
    text = "; ".join(
        f"{name} imports from {', '.join(sorted(others))}" for name, others in sorted(to.items()) if others
    )
    return canvas.document("rooms", "The packages of parabench and their imports", text, width, height)


if __name__ == "__main__":
    FILE.write_text(draw())
