"""Warnings about a session's numbers, computed from the data, with advice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.carry_over import carry_over, sentence
from parabench.analysis.environment.nodes import crowded, kinds, node_of_rank, nodes_compared, rank_said, sharing
from parabench.analysis.session import Session, SessionData
from parabench.analysis.step import breakdown, ddp_log, stragglers
from parabench.analysis.warnings import health, links
from parabench.analysis.warnings.computing import arithmetic, data_bound, launch_bound, not_compiled
from parabench.machine import accelerator
from parabench.store.record import Finding, Status
from parabench.strategies import STRATEGIES, Rule

# Per device, because noise differs: on shared CPUs the launch number's A/A spread was 2.5% and the median's
# 9.7%, and a third of a launch has few steps, so 10% is what undisturbed launches do not reach. A dedicated
# GPU is quieter.
DRIFTS = {"cpu": 0.10, accelerator.TYPE: 0.05}
# By how much launches of one case differed there, in their number; it was not measured for a dedicated GPU.
AA_SPREAD = {"cpu": 0.025}
# Twice that; a dedicated GPU's clocks stay within about 1-2%.
NOISY = {"cpu": 2 * AA_SPREAD["cpu"], accelerator.TYPE: 0.03}
# With two launches the interval of a mean is 12.7 standard errors wide, with three 4.3.
FEW_LAUNCHES = 3
# Environment variables for debugging: the value that switches each on, and its cost. CUDA programming guide ("CUDA
# environment variables"), HIP documentation ("Debugging with HIP"), torch's ProcessGroupNCCL.hpp, NCCL's "Environment
# variables".
ON = re.compile(r"1|y|yes|t|true", re.IGNORECASE)
DEBUG_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": (ON, "the host waits for each kernel"),
    "HIP_LAUNCH_BLOCKING": (ON, "the host waits for each kernel"),
    "TORCH_NCCL_BLOCKING_WAIT": (ON, "the host waits for each collective"),
    "NCCL_DEBUG": (re.compile("TRACE", re.IGNORECASE), "NCCL logs each call"),
}
# Above scheduler noise; the other ranks wait for it in every all-reduce.
SLOW_RANK = 1.25
# One rank's forward pass communicates nothing under these strategies, so ranks differ only by their hardware
# and luck. Where no rank waits for another (stale gradients), or none has to (no exchange), a slow one costs the others
# nothing.
LOCAL_FORWARD = tuple(
    name for name, entry in STRATEGIES.items() if entry.local_forward and entry.rule is Rule.REFERENCE
)
# By how much a node's ranks compute longer than those of the others. Twice what medians of equal launches differ by on
# shared CPUs (9.7%); clocks of dedicated GPUs stay within 1-2%, and 5% is what a straggler has to cost, too.
SLOW_NODE = {"cpu": 1.20, accelerator.TYPE: 1.05}
# In so many launches at least, and in that share of all that span nodes: of two equal nodes one is slower by chance in
# half of them, but not by as much.
ENOUGH_LAUNCHES = 3
MOST_LAUNCHES = 0.75


def session_warnings(seen: SessionData) -> list[Finding]:
    """Return all computed warnings of a session, the broadest first."""
    return [finding for rule in RULES for finding in rule(seen)]


def common(cases: pd.DataFrame, session: Session) -> Iterator[Finding]:
    """Yield the warnings that sessions of training runs and of collectives have in common."""
    yield from failing(cases)
    for rule in (oversubscribed, shared_devices, debug_environment):
        yield from rule(cases, session.environment)
    yield from nodes_differ(session)


def few_launches(cases: pd.DataFrame) -> Iterator[Finding]:
    """Yield a warning if launches of some configurations succeeded, but too few."""
    few = list(cases.loc[(cases["n_ok"] > 0) & (cases["n_ok"] < FEW_LAUNCHES), "label"])
    if few:
        which = "Every case" if len(few) == len(cases) else format.listed(few, most=3)
        yield Finding(
            code="few_launches",
            message=f"{which}: fewer than {FEW_LAUNCHES} successful launches, "
            "so the variation between launches is hardly known.",
            advice=f"Run {FEW_LAUNCHES} launches or more (--launches).",
        )


def failing(cases: pd.DataFrame) -> Iterator[Finding]:
    """Yield a warning for each configuration with some failed launches."""
    for case in cases[(cases["n_ok"] > 0) & (cases["status"] != Status.OK)].to_dict("records"):
        yield Finding(
            code="fails_sometimes",
            message=f"{case['label']}: {case['status']} of {format.count(case['n_launches'], 'launch')}; "
            "only those that succeeded are ranked.",
            advice="Read the launch's error before you choose this configuration.",
            case_id=case["case_id"],
        )


def oversubscribed(cases: pd.DataFrame, environment: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a warning if configurations have more computing threads than their nodes have cores."""
    on_cpu = cases[cases["device"] == "cpu"].to_dict("records")
    sizes = {case["label"]: [int(case[name]) for name in ("world_size", "threads", "nodes")] for case in on_cpu}
    over = {label: found for label, size in sizes.items() if (found := crowded(environment, *size))}
    if over:
        threads, cores = max(over.values())
        yield Finding(
            code="oversubscribed",
            message=f"{format.listed(over, most=3)}: up to {threads} computing threads on "
            f"{format.count(cores, 'core')} of a node, so ranks take turns and scaling cannot be read from this.",
            advice=f"Keep ranks per node x threads at {cores} or below, or use a machine with more cores.",
        )


def shared_devices(cases: pd.DataFrame, environment: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a warning if configurations had more ranks on a node than devices."""
    found = {case["label"]: own for case in cases.to_dict("records") if (own := sharing(environment, case))}
    if found:
        ranks, devices = max(found.values())
        yield Finding(
            code="shared_device",
            message=f"{format.listed(found, most=3)}: up to {format.count(ranks, 'rank')} shared "
            f"{format.count(devices, 'device')} of a node, so their times show neither speed nor scaling.",
            advice="Give each rank its own device; use only losses and verification of these configurations.",
        )


def debug_environment(cases: pd.DataFrame, environment: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn if debugging variables slowed the launches on CUDA. `cases` has the columns device and backend."""
    on_cuda = (cases["device"] == accelerator.TYPE).any()
    with_nccl = (cases["backend"] == accelerator.BACKEND).any()
    costs = {}
    for name, value in (environment.get("env") or {}).items():
        on, cost = DEBUG_VARIABLES.get(name, (None, ""))
        if on is not None and on.fullmatch(value) and (with_nccl if "NCCL" in name else on_cuda):
            costs[f"{name}={value}"] = cost
    if costs:
        each = ", ".join(f"with {setting} {cost}" for setting, cost in costs.items())
        yield Finding(
            code="debug_environment",
            message=f"Debugging was on in the environment: {each}. The times are longer than in training without it.",
            advice=f"Unset {', '.join(setting.partition('=')[0] for setting in costs)} and measure again.",
        )


def _noisy(seen: SessionData) -> Iterator[Finding]:
    cases = seen.cases
    for case in cases[cases["spread"] > cases["device"].map(NOISY)].to_dict("records"):
        yield Finding(
            code="noisy",
            message=f"{case['label']}: launches differ by {format.percent(case['spread'])} "
            f"({format.milliseconds(case['low_s'])} to {format.milliseconds(case['high_s'])}).",
            advice="Stop what else runs on the machine, or run more launches.",
            case_id=case["case_id"],
        )


def _drifting(seen: SessionData) -> Iterator[Finding]:
    good = seen.counted
    launches = good["case"].value_counts()
    for case_id, drifting in good[good["drift"].abs() > good["device"].map(DRIFTS)].groupby("case", sort=False):
        largest = max(drifting["drift"], key=abs)
        yield Finding(
            code="drift",
            message=f"{seen.labels[str(case_id)]}: in {len(drifting)} of "
            f"{format.count(int(launches[case_id]), 'launch')} the last third of the steps was "
            f"{'slower' if largest > 0 else 'faster'} than the first, by up to "
            f"{format.percent(abs(largest))}.",
            advice="Warm up for longer (--warmup-seconds); if it gets slower, look at clocks and temperature.",
            case_id=str(case_id),
        )


def _carried_over(seen: SessionData) -> Iterator[Finding]:
    tested = seen.once(carry_over)
    if tested and tested.found:
        yield Finding(
            code="carry_over",
            message=sentence(tested, seen.labels),
            advice="Trust no smaller difference between configurations that shared launches. Measure them in separate "
            "launches (--launches 5 --rounds 0).",
            case_id=tested.found.case_id,
        )


def _slow_ranks(seen: SessionData) -> Iterator[Finding]:
    medians, good = seen.results.medians, seen.counted
    local = good[good["strategy"].isin(LOCAL_FORWARD) & (good["world_size"] > 1)].set_index("launch_id", drop=False)
    rows = medians[(medians["metric"] == "forward_s") & medians["launch_id"].isin(local["launch_id"])]
    wide = rows.set_index(["launch_id", "rank"])["value"].unstack("rank").reindex(local["launch_id"])
    complete = wide.notna().sum(axis="columns") == local["world_size"]
    local = local[complete.groupby(local["case"]).transform("all")]
    if local.empty:
        return
    wide = wide.loc[local.index]
    rank, slowest = wide.idxmax(axis="columns"), wide.max(axis="columns")
    others = wide.mask(np.equal.outer(rank.to_numpy(), wide.columns.to_numpy())).median(axis="columns")
    ranks = local.assign(rank=rank, ratio=slowest / others)
    ranks = ranks[ranks.groupby("case")["rank"].transform("nunique") == 1]
    ranks["ratio"] = ranks.groupby("case")["ratio"].transform("min")
    for first in ranks.drop_duplicates("case").to_dict("records"):
        ratio = first["ratio"]
        if ratio > SLOW_RANK:
            where = rank_said(int(first["rank"]), seen.facts[first["launch_id"]])
            yield Finding(
                code="slow_rank",
                message=f"{first['label']}: {where} computes its forward pass at least "
                f"{format.percent(ratio - 1)} slower than the others in every launch; all ranks wait for it.",
                advice="Look at that rank's device, its clocks, and what else runs there.",
                case_id=first["case"],
            )


def nodes_differ(session: Session) -> Iterator[Finding]:
    """The finding that a node is another machine than node 0; needs no launch."""
    if len(kinds(session.environment)) > 1:
        yield Finding(
            code="nodes_differ",
            message=f"The nodes are not alike: {nodes_compared(session.environment)}.",
            advice="Ranks wait for the slowest: read answers as those of this mixture, or make the nodes alike.",
        )


def _node_forward(seen: SessionData) -> pd.DataFrame:
    """Return `launch_id, device, node, ratio` of launches that span nodes and do not communicate in the forward pass.

    `node` is the slowest, and `ratio` its ranks' median forward pass over the median of the other nodes'. Launches
    whose ranks are not all known are left out.
    """
    good = seen.counted[seen.counted["strategy"].isin(LOCAL_FORWARD)]
    places = [(at, rank, node) for at in good["launch_id"] for rank, node in node_of_rank(seen.facts[at]).items()]
    medians = seen.results.medians
    forward = medians.loc[medians["metric"] == "forward_s", ["launch_id", "rank", "value"]]
    ranks = pd.DataFrame(places, columns=["launch_id", "rank", "node"], dtype=int)
    ranks = ranks.merge(forward, "left", ["launch_id", "rank"])
    ranks = ranks[~ranks["launch_id"].isin(ranks.loc[ranks["value"].isna(), "launch_id"])]
    found = []
    for launch_id, own in ranks.groupby("launch_id"):
        by_node = own.groupby("node")["value"].median().sort_values(kind="stable")
        if len(by_node) > 1:
            found.append((launch_id, by_node.index[-1], by_node.iloc[-1] / by_node.iloc[:-1].median()))
    table = pd.DataFrame(found, columns=["launch_id", "node", "ratio"])
    return table.merge(good[["launch_id", "device"]], on="launch_id")


def _slow_nodes(seen: SessionData) -> Iterator[Finding]:
    table = _node_forward(seen)
    for device, own in table.groupby("device"):
        slow = own[own["ratio"] > SLOW_NODE[str(device)]]
        for node, launches in slow.groupby("node"):
            if len(launches) < max(ENOUGH_LAUNCHES, MOST_LAUNCHES * len(own)):
                continue
            yield Finding(
                code="slow_node",
                message=f"Node {node}: in {len(launches)} of {format.count(len(own), 'launch')} that span nodes its "
                f"ranks computed their forward pass {format.percent(launches['ratio'].median() - 1)} slower than those "
                f"of the other nodes (the median; more than {format.percent(SLOW_NODE[str(device)] - 1)} in each); all "
                "nodes wait for it.",
                advice="Look at that node's clocks, temperature and power limits, at what else runs there, and at how "
                "it differs from the others (Machine).",
            )


# All rules for a session of training runs; each yields the warnings that it has.
RULES: tuple[Callable[[SessionData], Iterable[Finding]], ...] = (
    lambda seen: few_launches(seen.cases),
    lambda seen: common(seen.cases, seen.session),
    arithmetic,
    _noisy,
    _drifting,
    _carried_over,
    _slow_ranks,
    _slow_nodes,
    breakdown.findings,
    stragglers.findings,
    lambda seen: seen.once(health.findings),
    launch_bound,
    not_compiled,
    data_bound,
    ddp_log.findings,
    links.findings,
)
