"""The machines of a session, and the measured links between ranks or nodes."""

from __future__ import annotations

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
from parabench.report.spec import WORDED, Column, Section, Table, table_of

_TIER = (
    Column("Links", lambda tier: SAID[tier.name]),
    Column("Directions", "links", WORDED),
    Column("Latency, µs", "latency_s", "about_us"),
    Column("GB/s", "bytes_per_s", "about_gb"),
    Column("Slowest, GB/s", "low", "about_gb"),
    Column("Fastest, GB/s", "high", "about_gb"),
)
_LINK = (
    Column("From", lambda link: f"rank {link['from_rank']}"),
    Column("To", lambda link: f"rank {link['to_rank']}"),
    Column("Tier", lambda link: SAID[link["tier"]]),
    Column("Latency, µs", "latency_s", "about_us"),
    Column("GB/s", "bytes_per_s", "about_gb"),
)


def links_section(links: pd.DataFrame) -> Section | None:
    """Return the section of `analysis.links.link_table`; None if the links were not measured."""
    if links.empty:
        return None
    tiers = tiers_of(links)
    text = tiers_said(tiers)
    return Section(
        "links",
        "Links",
        "Latency and bandwidth between ranks, measured before the first launch.",
        "",
        (
            table_of("Tiers of links", _TIER, tiers.values(), closed=False),
            table_of("All links, the slowest first", _LINK, links.sort_values("bytes_per_s", kind="stable")),
        ),
        lead=f"{text[0].upper()}{text[1:]}." if text else "No bandwidth is known; the warnings have the reasons.",
        reading="Latency is half a round trip of 8 bytes. Bandwidth is one way, without the latency. Numbers are "
        "medians of 100 on GPUs, and the 10th percentile on CPUs. Between nodes, their first ranks were measured. With "
        "many nodes, these are 1, 2, 4, 8, ... apart.",
    )


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
