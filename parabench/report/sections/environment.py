"""The machines of a session, and the measured links between ranks or nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.facts import gpu_rows, link_rows, machine_pairs
from parabench.analysis.environment.nodes import (
    cluster_said,
    device_kinds,
    node_rows,
    nodes_compared,
    nodes_said,
    several_nodes,
)
from parabench.analysis.links import SAID, tiers_of, tiers_said
from parabench.analysis.session import Session
from parabench.report.spec import DASH, FORMATS, SHADES, WORDED, Column, Matrix, Section, Table, table_of

# With more ranks, the matrix is of nodes. With more nodes, there is only the table of tiers.
MOST_RANKS, MOST_NODES = 16, 32
# The numbers of a link, by their column: the title of their matrix, and their format.
NUMBERS = {"bytes_per_s": ("Bandwidth, GB/s", "about_gb"), "latency_s": ("Latency, µs", "about_us")}


def links_section(links: pd.DataFrame) -> Section | None:
    """Return the section of `analysis.links.link_table`; None if the links were not measured."""
    if links.empty:
        return None
    tiers = tiers_of(links)
    ranks = 1 + int(links[["from_rank", "to_rank"]].to_numpy().max())
    nodes = 1 + int(links[["from_node", "to_node"]].to_numpy().max())
    matrices: tuple[Matrix, ...] = ()
    if ranks <= MOST_RANKS or 1 < nodes <= MOST_NODES:
        matrices = tuple(_matrix(links, ranks, nodes, number) for number in NUMBERS)
    said = tiers_said(tiers)
    return Section(
        "links",
        "Links",
        "Latency and bandwidth between ranks, measured before the first launch.",
        "",
        (table_of("Tiers of links", _TIER, tiers.values(), closed=False),),
        lead=f"{said[0].upper()}{said[1:]}." if said else "No bandwidth is known; the warnings say why.",
        matrices=matrices,
        reading="One pair at a time was measured for each rank. Latency is half a round trip of 8 bytes. Bandwidth is "
        "one way, without the latency. Numbers are medians of 100 on GPUs, and the 10th percentile on CPUs. Darker is "
        "more. Between nodes, their first ranks were measured. With many nodes, these are 1, 2, 4, 8, ... apart. In a "
        "matrix of nodes, the diagonal is the median inside a node.",
    )


_TIER = (
    Column("Links", lambda tier: SAID[tier.name]),
    Column("Directions", "links", WORDED),
    Column("Latency, µs", "latency_s", "about_us"),
    Column("GB/s", "bytes_per_s", "about_gb"),
    Column("Slowest, GB/s", "low", "about_gb"),
    Column("Fastest, GB/s", "high", "about_gb"),
)


def _matrix(links: pd.DataFrame, ranks: int, nodes: int, number: str) -> Matrix:
    """Return a matrix of ranks, or of nodes if there are many ranks."""
    title, how = NUMBERS[number]
    values: dict[Any, Any]
    if ranks <= MOST_RANKS:
        values = dict(zip(zip(links["from_rank"], links["to_rank"], strict=True), links[number], strict=True))
        names = [f"rank {rank}" + f" (node {rank * nodes // ranks})" * (nodes > 1) for rank in range(ranks)]
    else:
        values = links.groupby(["from_node", "to_node"])[number].median().to_dict()
        names = [f"node {node}" for node in range(nodes)]
    # Shades are logarithmic, because tiers are orders of magnitude apart. The range is a factor of two or more, so that
    # similar numbers look similar.
    known = [value for value in values.values() if format.known(value) and value > 0] or [1.0]
    low, span = min(known), max(math.log(max(known) / min(known)), math.log(2))

    def cell(ends: tuple[int, int]) -> tuple[str, int | None]:
        value = values.get(ends)
        if not format.known(value):
            return DASH if ends in values else "", None
        return FORMATS[how](value), round(SHADES * math.log(max(value, low) / low) / span)

    every = range(len(names))
    return Matrix(title, tuple(names), tuple(tuple(cell((a, b)) for b in every) for a in every))


def machine_section(session: Session) -> Section:
    """Return the section of the hardware of a session of any kind; equal nodes share columns and tables."""
    environment = session.environment
    if not several_nodes(environment):
        tables, notes = _devices(environment, "")
        return Section("machine", "Machine", " ".join(notes), "", tables, pairs=tuple(machine_pairs(environment)))
    found = [_devices(record, nodes_said(nodes)) for nodes, record in device_kinds(environment)]
    compared = nodes_compared(environment)
    return Section(
        "machine",
        "Machine",
        " ".join(dict.fromkeys(note for _, notes in found for note in notes)),
        "",
        (_of_words("The nodes", *node_rows(environment)), *(table for tables, _ in found for table in tables)),
        lead=f"{compared[0].upper()}{compared[1:]}.",
        pairs=(("cluster", cluster_said(environment)),),
    )


def _of_words(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table with a column for each device or kind of node."""
    return table_of(title, [Column(head, str(at)) for at, head in enumerate(heads)], rows, closed=False)


def _devices(environment: Mapping[str, Any], of: str) -> tuple[tuple[Table, ...], list[str]]:
    """Return the tables of the devices of a machine, or of the nodes `of`, and their links, and how to read them."""
    whose = f" of {of}" if of else ""
    alike, devices, unread = gpu_rows(environment)
    head, links, legend = link_rows(environment)
    notes = ["Clocks, links and modes are those at the start of the session."] if devices else []
    if unread:
        notes.append(f"Unknown: {format.listed(unread)}.")
    if len(links) > 1:
        notes.append(f"Links, as nvidia-smi topo -m names them: {'; '.join(legend)}.")
    return (
        _of_words(f"Devices{whose}", (of, *alike[1:]), devices),
        _of_words(f"Links between the devices{whose}", (of, *head[1:]), links if len(links) > 1 else []),
    ), notes
