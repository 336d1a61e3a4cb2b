"""The section of what it ran on, and how its links are wired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parabench.analysis.environment.facts import gpu_rows, link_rows, machine_pairs
from parabench.analysis.environment.nodes import (
    MOST_COLUMNS,
    cluster_said,
    device_kinds,
    node_rows,
    nodes_compared,
    nodes_said,
    several,
)
from parabench.analysis.session import Session
from parabench.analysis.text import format
from parabench.report.spec import Section, Table


def machine_section(session: Session) -> Section:
    """What a session of any kind ran on; of several nodes those that are alike together."""
    environment = session.environment
    if not several(environment):
        found, said = _devices(environment, "")
        return Section("machine", "Machine", " ".join(said), [], "", found, pairs=tuple(machine_pairs(environment)))
    head, rows = node_rows(environment)
    tables, told = [Table("The nodes", head, rows, texts=len(head), closed=False)], []
    for nodes, record in device_kinds(environment)[:MOST_COLUMNS]:
        own, said = _devices(record, nodes_said(nodes))
        tables += own
        told += said
    compared = nodes_compared(environment)
    return Section(
        "machine",
        "Machine",
        " ".join(dict.fromkeys(told)),
        [],
        "",
        tuple(tables),
        lead=f"{compared[0].upper()}{compared[1:]}.",
        pairs=(("cluster", cluster_said(environment)),),
    )


def _devices(environment: Mapping[str, Any], of: str) -> tuple[tuple[Table, ...], list[str]]:
    """Tables of a machine's devices and what lies between them, and how to read them; `of` are its nodes, if any."""
    whose = f" of {of}" if of else ""
    alike, devices, unread = gpu_rows(environment)
    head, links, legend = link_rows(environment)
    found, said = [], []
    if devices:
        found.append(Table(f"Devices{whose}", (of, *alike[1:]), devices, texts=len(alike), closed=False))
    if len(links) > 1:
        title = f"How the devices{whose} are linked"
        found.append(Table(title, (of, *head[1:]), links, texts=len(head), closed=False))
    if devices:
        said.append("Clocks, links and modes are those of the moment when the session began.")
    if unread:
        said.append(f"Unknown: {format.listed(unread)}.")
    if len(links) > 1:
        said.append(f"Between two devices lies, written as nvidia-smi topo -m writes it: {'; '.join(legend)}.")
    return tuple(found), said
