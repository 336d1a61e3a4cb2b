"""What measured links say of the fastest configuration: whether their tiers are why two levels win, or why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from parabench.analysis.links import ACROSS, ALIKE, NODE, Tier, gigabytes, link_table, tiers_of, tiers_said, times_less
from parabench.analysis.session import SessionData
from parabench.plan.case import Case

if TYPE_CHECKING:
    from parabench.analysis.ranking.ranking import Answer

TWO_LEVEL = "two_level"


def with_links(answers: Sequence[Answer], seen: SessionData) -> tuple[Answer, ...]:
    """Return the answers with the explanation by the session's links, if they were measured."""
    if not len(seen.results.read("link", f"session_id = {seen.session.id}")):
        return tuple(answers)
    tiers = tiers_of(link_table(seen.results, seen.session))

    def explain(answer: Answer) -> str:
        if answer.best is None or not answer.decided:
            return ""
        tied, slower = ([seen.case(each.case_id) for each in some] for some in (answer.tied, answer.slower))
        return explained(seen.case(answer.best.case_id), tied, slower, tiers)

    return tuple(replace(answer, links=explain(answer)) for answer in answers)


def explained(best: Case, tied: Sequence[Case], slower: Sequence[Case], tiers: Mapping[str, Tier]) -> str:
    """Explain by the tiers why `best` is faster than `slower`; `tied` are not distinguishable from it.

    Empty if none of them ran on several nodes, or a tier is unknown. Counts of bytes are those of an all-reduce of S
    bytes by `collectives/two_level.py` and by a ring: over the links between m nodes of g ranks (n in all) a rank sends
    2(m-1)/m S/g, a node so 2(m-1)/m S, and in a ring of all ranks one rank of each node 2(n-1)/n S.
    """
    times = times_less(tiers)
    if times is None or max(case.nodes for case in (best, *tied, *slower)) < 2:
        return ""
    sentence = f"Of links, as measured: {tiers_said(tiers)}."
    if best.nodes < 2:
        return sentence
    # Bytes across nodes then differ by the algorithm alone.
    grid = best.strategy, best.world_size, best.nodes
    alike = [case for case in slower if (case.strategy, case.world_size, case.nodes) == grid]
    beaten, equal = ([case.algorithm.startswith(TWO_LEVEL) for case in some] for some in (alike, tied))
    if times >= ALIKE:
        won = _splits_evenly(best) and not all(beaten) and all(equal)
        return f"{sentence} {_saves(best)}" if won else sentence
    levels = f"{gigabytes(tiers[ACROSS].bytes_per_s)} and {gigabytes(tiers[NODE].bytes_per_s)}"
    as_much = "about as much as" if times > 1 / ALIKE else "more than"
    carry = f"Links across nodes carry {as_much} links in a node ({levels})"
    if best.algorithm.startswith(TWO_LEVEL):
        return f"{carry}, so they are not why two levels are fastest."
    return f"{carry}, so two levels spare no slow links." if any(beaten) else sentence


def _saves(best: Case) -> str:
    m, n = best.nodes, best.world_size
    g = n // m
    rank, node, ring = (f"{part:.3g}" for part in (2 * (m - 1) / n, 2 * (m - 1) / m, 2 * (n - 1) / n))
    return (
        f"There {best.algorithm} saves: with m = {m} nodes of g = {g} ranks it sends 2(m-1)/m S/g = {rank} S over them "
        f"per rank, {node} S per node, for S bytes of gradients, in {2 * (m - 1)} turns; a flat ring of n = {n} ranks "
        f"2(n-1)/n S = {ring} S per node, all from one rank of it, in {2 * (n - 1)}."
    )


def _splits_evenly(case: Case) -> bool:
    """Return whether the formula applies: an all-reduce of gradients by nodes, with a ring across them."""
    two = case.algorithm == TWO_LEVEL or (case.algorithm.startswith(TWO_LEVEL) and case.algorithm.endswith(",ring)"))
    return case.strategy == "ddp" and two and case.ranks_per_node == case.world_size // case.nodes
