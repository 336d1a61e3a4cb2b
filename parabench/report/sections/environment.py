"""Sections about the conditions of a session: the variation between launches, its machines, and measured links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.facts import gpu_rows, link_rows, machine_pairs
from parabench.analysis.environment.nodes import (
    cluster_text,
    device_kinds,
    node_rows,
    nodes_compared,
    nodes_text,
    several_nodes,
)
from parabench.analysis.launch_number import STATISTIC
from parabench.analysis.links import TIERS, link_table, tiers_of, tiers_text
from parabench.analysis.session import Session, SessionData
from parabench.analysis.warnings.launches import AA_SPREAD, NOISY
from parabench.machine import accelerator
from parabench.report.cases import page_cases, page_launches
from parabench.report.figures import Panel, band, in_rows, marks, plain, strategy_style
from parabench.report.spec import WORDED, Column, Section, Table, table_of
from parabench.store.results import records

# ---- variation between launches

_FROM = "from its configuration's step time"


def spread_section(seen: SessionData) -> Section:
    """Return the section of the launches relative to the step times of their configurations."""
    cases = seen.once(page_cases)[["case_id", "shown", "strategy", "device", "statistic", "spread"]]
    launches = seen.once(page_launches).merge(cases, on="case_id")
    own = launches[(launches["counts"] > 0) & launches["from_case"].notna()]
    return Section(
        "spread",
        "Launch-to-launch variation",
        "Each launch relative to the step time of its configuration. The narrower the range, the smaller the "
        "differences that can be detected.",
        "No configuration has two valid launches, so their variation is unknown.",
        panels=[_spread(own)] if len(own) else [],
        reading="Outliers are never deleted: a launch that succeeded counts. A warning names configurations "
        f"whose launches differ by more than {format.percent(NOISY['cpu'])} on a CPU, or "
        f"{format.percent(NOISY[accelerator.TYPE])} on GPUs. On a CPU, ±{format.percent(AA_SPREAD['cpu'])} is shaded: "
        f"the variation of the {STATISTIC['cpu']} of equal launches.",
    )


def _spread(own: pd.DataFrame) -> Panel:
    """Return the figure of launches relative to their configurations, with the largest differences on top."""
    widest = own.drop_duplicates("case_id", keep="last").sort_values("spread", ascending=False, kind="stable")
    own = own.assign(row=own["case_id"].map({case: row for row, case in enumerate(widest["case_id"])}))
    traces = []
    for strategy, group in own.groupby("strategy", sort=False):
        style = strategy_style(str(strategy))
        texts = [
            f"<b>{plain(one['label'])}</b><br>repetition {one['repetition']}: "
            f"{format.milliseconds(one['launch_step_s'])}<br>{format.signed(one['from_case'])} {_FROM}"
            for one in records(group)
        ]
        marker = {"size": 7, "opacity": 0.9, "color": style.color, "symbol": style.symbol}
        more = {"customdata": group["case_id"].to_list(), "showlegend": False}
        traces.append(marks(100 * group["from_case"], group["row"], plain(str(strategy)), texts, marker, **more))
    title = f"{format.count(len(own), 'launch')} of {format.count(len(widest), 'configuration')}"
    # The usual variation, if it is known for the statistic of all launches.
    usual = {STATISTIC[device]: 100 * share for device, share in AA_SPREAD.items()}
    shares = {usual.get(statistic) for statistic in own["statistic"]}
    share = shares.pop() if len(shares) == 1 else None
    look: dict[str, Any] = {
        "showlegend": False,
        "xaxis": {"zeroline": True, "zerolinewidth": 1},
        "shapes": [] if share is None else [band(-share, share)],
        "which": "that differ most",
    }
    return in_rows(title, widest["shown"], f"{_FROM} (%)", traces, head=60, **look)


# ---- links and machines

_TIER = (
    Column("Links", lambda tier: TIERS[tier["tier"]]),
    Column("Directions", "links", WORDED),
    Column("Latency, µs", "latency_s", "about_us"),
    Column("GB/s", "bytes_per_s", "about_gb"),
    Column("Slowest, GB/s", "low", "about_gb"),
    Column("Fastest, GB/s", "high", "about_gb"),
)
_LINK = (
    Column("From", lambda link: f"rank {link['from_rank']}"),
    Column("To", lambda link: f"rank {link['to_rank']}"),
    Column("Tier", lambda link: TIERS[link["tier"]]),
    Column("Latency, µs", "latency_s", "about_us"),
    Column("GB/s", "bytes_per_s", "about_gb"),
)


def links_section(seen: SessionData) -> Section | None:
    """Return the section of the measured links between ranks; None if they were not measured."""
    links = link_table(seen.results, seen.session)
    if links.empty:
        return None
    tiers = tiers_of(links)
    text = tiers_text(tiers)
    return Section(
        "links",
        "Links",
        "Latency and bandwidth between ranks, measured before the first launch.",
        "",
        (
            table_of("Tiers of links", _TIER, tiers.reset_index(), closed=False),
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
    found = [_devices(record, nodes_text(nodes)) for nodes, record in device_kinds(environment)]
    compared = nodes_compared(environment)
    return Section(
        "machine",
        "Machine",
        " ".join(dict.fromkeys(note for _, notes in found for note in notes)),
        "",
        (_of_words("The nodes", *node_rows(environment)), *(table for tables, _ in found for table in tables)),
        lead=f"{compared[0].upper()}{compared[1:]}.",
        pairs=(("cluster", cluster_text(environment)),),
    )


def _of_words(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table with a column for each device or kind of node."""
    return table_of(title, [Column(head, at) for at, head in enumerate(heads)], rows, closed=False)


def _devices(environment: Mapping[str, Any], of: str) -> tuple[tuple[Table, ...], list[str]]:
    """Return the tables of the devices of a machine and of their links, and notes. `of` names the nodes, if any."""
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
