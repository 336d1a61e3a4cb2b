"""The color, dash and marker of strategies, algorithms and parts of a step on all pages."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from parabench.collectives import ALGORITHMS, LEVELS
from parabench.metrics import STEP_PARTS
from parabench.strategies import STRATEGIES, entry_of

# Okabe and Ito's palette, for any color vision. A name has the same color on every page.
_PALETTE = ("#8C6D31", "#7F7F7F", "#B8860B", "#5F6CAF")
_ALGORITHM = {name: entry.color for name, entry in ALGORITHMS.items() if entry.color}
# NCCL's algorithms have dashes, and the color of a similar algorithm of parabench.
_NCCL = {
    "ring": "#D55E00", "tree": "#009E73", "collnetdirect": "#8C6D31", "collnetchain": "#7F7F7F", "nvls": "#0072B2",
    "nvlstree": "#E69F00", "pat": "#56B4E9",
}  # fmt: skip
_ALGORITHM |= {f"nccl:{name}": color for name, color in _NCCL.items()}
# two_level(inner,outer): a purple by the inner level, a dash by the outer.
_INNER = dict(zip(LEVELS, ("#CC79A7", "#7B3294", "#E7298A", "#54278F", "#C994C7", "#980043"), strict=False))
_OUTER = dict(zip(LEVELS, ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot"), strict=False))
_DASH = {f"nccl:{name}": "dash" for name in _NCCL}
for (_inner, _of_inner), (_outer, _of_outer) in itertools.product(_INNER.items(), _OUTER.items()):
    _ALGORITHM[f"two_level({_inner},{_outer})"], _DASH[f"two_level({_inner},{_outer})"] = _of_inner, _of_outer
_STRATEGY = {name: entry.color for name, entry in STRATEGIES.items() if entry.color}
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "cross")


def color_of(colors: dict[str, str], name: str) -> str:
    """Return the color of a name; a custom name always has the same one."""
    return colors.get(name) or _PALETTE[sum(name.encode()) % len(_PALETTE)]


class Style(NamedTuple):
    """The color, dash and marker of a curve."""

    color: str
    dash: str
    symbol: str

    @property
    def line(self) -> dict[str, str]:
        """Plotly's settings of a line."""
        return {"color": self.color, "dash": self.dash}


def _style(colors: dict[str, str], name: str, dash: str) -> Style:
    place = list(colors).index(name) if name in colors else sum(name.encode())
    return Style(color_of(colors, name), dash, SYMBOLS[place % len(SYMBOLS)])


def strategy_style(strategy: str) -> Style:
    """Return the style of a strategy, dashed if it is not ranked."""
    return _style(_STRATEGY, strategy, "solid" if entry_of(strategy).ranked else "dash")


def algorithm_style(algorithm: str) -> Style:
    """Return the style of an algorithm."""
    return _style(_ALGORITHM, algorithm, _DASH.get(algorithm, "solid"))


# Colors that are distinguishable on light and dark backgrounds.
_SIDES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F")


def side_style(at: int) -> Style:
    """Return the style of a side by its place. With more sides than colors, the symbols differ."""
    n = len(_SIDES)
    return Style(_SIDES[at % n], "solid", SYMBOLS[(at + at // n) % len(SYMBOLS)])


def native_first(algorithm: str) -> tuple[int, str]:
    """Return a key that sorts the backend's own algorithm first, then ours, then others by name."""
    known = list(_ALGORITHM)
    return (known.index(algorithm) if algorithm in known else len(known), algorithm)


# The parts of a measured step, by column of `page_cases`: their color and name.
_PART = ("#56B4E9", "#0072B2", "#D55E00", "#CC79A7", "#009E73", "#999999")
PART = {part: (color, name) for color, (part, name) in zip(_PART, STEP_PARTS.items(), strict=True)}
# The parts of an instrumented step. Communication has one color, exposed or overlapped.
SHARE = {
    "instrumented_data_s": ("#56B4E9", "data"),
    "compute_s": ("#5F6CAF", "compute"),
    "exposed_s": ("#E69F00", "exposed communication"),
    "idle_s": ("#999999", "idle"),
}
# Overlapped communication, which is drawn inside compute.
_EXPOSED = SHARE["exposed_s"][0]
OVERLAP_HATCH = {"shape": "/", "size": 5, "solidity": 0.45, "fgcolor": _EXPOSED, "bgcolor": "rgba(0,0,0,0)"}
