"""What is fastest at which size as a person would say it, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from parabench.analysis.collectives.crossover import BusAnswer, Range
from parabench.analysis.text import format
from parabench.plan.collective_case import size_text
from parabench.plan.collective_protocol import in_words


def to_dict(of: BusAnswer) -> dict[str, Any]:
    """As JSON can hold it (docs/reference/json.md): unknown is null."""
    return asdict(of) | {"sentence": sentence(of)}


def sentence(of: BusAnswer) -> str:
    """The answer after its heading."""
    return f"{of.heading}: {plain_sentence(of)}"


def plain_sentence(of: BusAnswer) -> str:
    """The answer without its heading."""
    said = [of.why_not or _ranges(of)]
    if of.peak is not None and of.peak_bytes is not None:
        said.append(
            f"The highest bus bandwidth is {format.digits(of.peak)} GB/s, "
            f"{of.peak_algorithm} at {size_text(of.peak_bytes)}."
        )
    said.append(f"Timed: {in_words(of.timing)}.")
    return " ".join(said)


def _ranges(of: BusAnswer) -> str:
    blocks = format.count(of.blocks, "block")
    if len(of.ranges) == 1 and set(of.ranges[0].algorithms) == set(of.algorithms):
        everything = format.count(len(of.algorithms), "algorithm")
        return f"No difference was found between the {everything} at any size with {blocks}."
    found = "; ".join(_range(of, each) for each in of.ranges) + f" ({blocks})."
    if not of.changes:
        return found
    places = [f"between {size_text(change.above_bytes)} and {size_text(change.below_bytes)}" for change in of.changes]
    return f"{found} The best changes {format.joined(places)}."


def _range(of: BusAnswer, each: Range) -> str:
    sizes = f"at {size_text(each.first_bytes)}"
    if each.last_bytes != each.first_bytes:
        sizes = f"from {size_text(each.first_bytes)} to {size_text(each.last_bytes)}"
    if len(each.algorithms) > 1:
        return f"{format.joined(each.algorithms)} are fastest and not statistically distinguishable {sizes}"
    if each.alone == tuple(size for size in of.sizes if each.first_bytes <= size <= each.last_bytes):
        return f"{each.algorithms[0]} is fastest {sizes}"
    alone = [size_text(size) for size in each.alone]
    only = f", and the only one at {format.joined(alone)}" if alone else ""
    return f"{each.algorithms[0]} is among the fastest {sizes}{only}"
