"""Fit the latency and bandwidth of links to the times of collectives.

A message of x bytes takes a + b x seconds (Hockney, 1994), and a collective takes the sum over its rounds. a and b are
fitted for each operation, algorithm and tier.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from parabench.analysis.collectives.bus import good_sizes, measured
from parabench.analysis.collectives.rounds import BETWEEN, WITHIN, rounds
from parabench.analysis.numbers import numbers
from parabench.analysis.session import Session
from parabench.collectives import levels_of
from parabench.collectives.nccl import NCCL_PREFIX
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.plan.collective_case import size_text
from parabench.store.results import Results

TIERS = (WITHIN, BETWEEN)
NAMES = {WITHIN: "local", BETWEEN: "node"}
_NODES = {WITHIN: "", BETWEEN: " --nnodes 2"}

# Larger messages than this many times the largest measured message are not predicted.
BEYOND = 8

_PREFIXES = {
    "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30,
    "Ti": 2.0**40,
}  # fmt: skip
_RATES = {f"{prefix}B/s": factor for prefix, factor in _PREFIXES.items()}
_RATES |= {f"{prefix}bit/s": factor / 8 for prefix, factor in _PREFIXES.items()}
_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER_AND_UNIT = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9.]\S*)")


class Row(NamedTuple):
    """The measured seconds of one collective: `bytes` is the whole buffer, `ranks` and `nodes` are numbers."""

    op: str
    algorithm: str
    ranks: int
    nodes: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Link:
    """The cost of a link: seconds per message and per byte, valid for messages of up to `most` bytes."""

    latency_s: float
    byte_s: float
    most: float = math.inf


def given_link(text: str) -> Link:
    """Return the link that a text such as "25GB/s,20us" or "200Gbit/s, 5 µs" gives. Raises UsageError for others."""
    matches = [match for part in text.split(",") if (match := _NUMBER_AND_UNIT.fullmatch(part.strip()))]
    rates, latencies = (
        [float(match[1]) * units[match[2]] for match in matches if match[2] in units] for units in (_RATES, _TIMES)
    )
    numbers = [*rates, *latencies]
    if text.count(",") != 1 or len(rates) != 1 or len(latencies) != 1 or not all(0 < n < math.inf for n in numbers):
        raise UsageError(
            f"link {text!r} is not a bandwidth and a latency, both above 0; write it as 25GB/s,20us, with B/s or bit/s "
            "after k, M, G, Ki, Mi or Gi, and ns, us, ms or s"
        )
    return Link(latencies[0], 1 / rates[0])


@dataclass(frozen=True)
class Links:
    """Links `fitted` by (operation, algorithm, tier). Links `given` by tier replace the fitted ones."""

    fitted: Mapping[tuple[str, str, str], Link]
    given: Mapping[str, Link]
    backend: str = "gloo"

    def seconds(self, op: str, algorithm: str, ranks: int, per_node: int, size: int, groups: int = 1) -> float:
        """Return the seconds of a collective of `size` bytes, if `groups` of a node share its network card.

        Raises UsageError if the schedule is unknown, a link was neither measured nor given, or a message is too large.
        """
        found = rounds(op, _schedule(algorithm, self.backend), ranks, per_node, size)
        if found is None:
            raise UsageError(
                f"{algorithm} is not predicted, because its schedule is unknown; use --set algorithm=native"
            )
        total = 0.0
        for each in found:
            link = self._link(op, algorithm, each.tier)
            shared = each.flows * (groups if each.tier == BETWEEN else 1)
            if each.share * size > link.most:
                asked, known = (size_text(round(most)) for most in (each.share * size, link.most / BEYOND))
                raise UsageError(
                    f"{op} {algorithm} has messages of {asked} {each.tier}, more than {BEYOND} times the largest "
                    f"measured ({known}); measure larger ones: parabench collectives --op {op} --algorithm {algorithm} "
                    f"--world-size 2{_NODES[each.tier]} --max {size_text(2 * size).replace(' ', '')}"
                )
            total += each.times * (link.latency_s + shared * each.share * size * link.byte_s)
        return total

    def _link(self, op: str, algorithm: str, tier: str) -> Link:
        """Return the link of a tier. A given link is limited to the measured speed of such messages within a node."""
        levels = levels_of(algorithm)
        part = algorithm if levels is None else levels[tier == BETWEEN]
        inside = self.fitted.get((op, part, WITHIN))
        given, link = self.given.get(tier), self.fitted.get((op, part, tier))
        if given is not None:
            if inside is None:
                return given
            return Link(max(given.latency_s, inside.latency_s), max(given.byte_s, inside.byte_s))
        if link is None:
            raise UsageError(
                f"links {tier} were not measured for {part}; measure them: parabench collectives --algorithm {part} "
                f"--world-size 2{_NODES[tier]}, or give them: --link {NAMES[tier]}=25GB/s,20us"
            )
        return link


def links_from_rows(rows: Iterable[Row], backend: str) -> dict[tuple[str, str, str], Link]:
    """Return the link of each (operation, algorithm, tier), fitted to the times of collectives.

    Least squares are weighted, so that small messages count too, and no constant is negative. Rows with an unknown
    schedule, and rows of two_level, are left out.
    """
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.ranks > 1 and levels_of(row.algorithm) is None:
            groups[row.op, row.algorithm].append(row)
    found: dict[tuple[str, str, str], Link] = {}
    for (op, algorithm), group in groups.items():
        schedule = _schedule(algorithm, backend)
        each_rounds = [rounds(op, schedule, row.ranks, row.ranks // row.nodes, row.bytes) for row in group]
        if None in each_rounds:
            continue
        messages = [(at, each) for at, several in enumerate(each_rounds) for each in several or ()]
        # By row: the messages of a tier, and their bytes.
        design = np.zeros((len(group), len(TIERS), 2))
        for at, each in messages:
            design[at, TIERS.index(each.tier)] += each.times, each.times * each.flows * each.share * group[at].bytes
        seconds = np.array([row.seconds for row in group])
        weighted = design.reshape(len(group), -1) * seconds[:, None] ** -0.5
        scale = np.maximum(np.linalg.norm(weighted, axis=0), 1e-300)
        constants = nnls(weighted / scale, seconds**0.5)[0] / scale
        for tier, (latency_s, byte_s) in zip(TIERS, constants.reshape(-1, 2).tolist(), strict=True):
            most = max((each.share * group[at].bytes for at, each in messages if each.tier == tier), default=0.0)
            if most:
                found[op, algorithm, tier] = Link(latency_s, byte_s, BEYOND * most)
    return found


def measured_rows(results: Results, sessions: Sequence[Session]) -> list[Row]:
    """Return the collectives that sessions measured in float32; if one was repeated, the last session counts.

    The seconds of a size are the geometric mean over launches of the median batch. A mean of all calls would grow with
    bursts of other processes.
    """
    found: dict[Any, Row] = {}
    for session in sessions:
        good = good_sizes(measured(numbers(results, session)))
        good = good[(good["dtype"] == "float32") & good["redop"].isin(["sum", "none"]) & (good["source"] == "")]
        sizes = [good[name] for name in ("op", "algorithm", "world_size", "nodes", "bytes")]
        for (op, algorithm, ranks, nodes, size), mean in np.log(good["p50_s"]).groupby(sizes).mean().items():
            row = Row(op, algorithm, int(ranks), int(nodes), int(size), math.exp(mean))
            found[row[:-1]] = row
    return list(found.values())


# NCCL's tree is a pair of binary trees with half of the data each, like ours (S. Jeaugey, "Massively Scale Your Deep
# Learning Training with NCCL 2.4", 2019). Its default is assumed to be a ring.
_NCCL_SCHEDULES = {"native": "ring", f"{NCCL_PREFIX}ring": "ring", f"{NCCL_PREFIX}tree": "tree"}


def _schedule(algorithm: str, backend: str) -> str:
    """Return the algorithm of parabench that has the communication rounds of `algorithm`: ring for NCCL's default."""
    return _NCCL_SCHEDULES.get(algorithm, algorithm) if backend == accelerator.BACKEND else algorithm
