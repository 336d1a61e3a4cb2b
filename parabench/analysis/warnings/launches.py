"""Warnings about a session's numbers, as rules about tables with a row per configuration, launch or node.

`computing`, `health`, `links` and `steps` have further rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.carry_over import carry_over, sentence
from parabench.analysis.environment.nodes import crowded, kinds, node_of_rank, nodes_compared, rank_said, sharing
from parabench.analysis.links import link_table
from parabench.analysis.session import Session, SessionData
from parabench.analysis.warnings import computing, health, steps
from parabench.analysis.warnings.codes import Rule
from parabench.analysis.warnings.links import check_links
from parabench.machine import accelerator
from parabench.store.record import Finding
from parabench.store.results import records
from parabench.strategies import STRATEGIES
from parabench.strategies import Rule as Verified

# Undisturbed launches drift by less. On shared CPUs, medians of equal launches differ by 9.7%. A dedicated GPU is
# quieter.
DRIFTS = {"cpu": 0.10, accelerator.TYPE: 0.05}
# The variation between launches of one configuration, not measured for a dedicated GPU.
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
# In these strategies, the forward pass does not communicate, so ranks differ only by hardware and chance. All ranks
# wait for each other.
LOCAL_FORWARD = [name for name, entry in STRATEGIES.items() if entry.local_forward and entry.rule is Verified.REFERENCE]
# Ranks of a slow node take this many times as long to compute: on CPUs, twice the variation of equal launches' medians
# (9.7%). Clocks of dedicated GPUs stay within 1-2%.
SLOW_NODE = {"cpu": 1.20, accelerator.TYPE: 1.05}
# A node must be slow in this number of launches, and in this share of those that span nodes.
ENOUGH_LAUNCHES = 3
MOST_LAUNCHES = 0.75

FEW = Rule(
    "few_launches",
    lambda row: 0 < row["n_ok"] < FEW_LAUNCHES,
    f"{{label}}: fewer than {FEW_LAUNCHES} successful launches, so the variation between launches is hardly known.",
    f"Run {FEW_LAUNCHES} launches or more (--launches).",
    worst="n_ok",
)
COMMON = (
    Rule(
        "fails_sometimes",
        lambda row: row["n_ok"] > 0 and row["status"] != "ok",
        "{label}: {status} of {n_launches:#launch}; only those that succeeded are ranked.",
        "Read the launch's error before you choose this configuration.",
    ),
    Rule(
        "oversubscribed",
        lambda row: row["threads_there"] > 0,
        "{label}: up to {threads_there:.0f} computing threads on {cores:#core} of a node, so ranks take turns and "
        "scaling cannot be read from this.",
        "Keep ranks per node x threads at {cores:.0f} or below, or use a machine with more cores.",
        worst="threads_there",
    ),
    Rule(
        "shared_device",
        lambda row: row["ranks_there"] > 0,
        "{label}: up to {ranks_there:#rank} shared {devices:#device} of a node, so their times show neither speed nor "
        "scaling.",
        "Give each rank a separate device; use only losses and verification of these configurations.",
        worst="ranks_there",
    ),
)
NOISY_CASES = Rule(
    "noisy",
    lambda row: row["spread"] > row["limit"],
    "{label}: launches differ by {spread:percent} ({low_s:ms} to {high_s:ms}).",
    "Stop other processes on the machine, or run more launches.",
)
DRIFTING = Rule(
    "drift",
    None,
    "{label}: in {n_far} of {n:#launch} the last third of the steps was {way} than the first, by up to {size:percent}.",
    "Warm up for longer (--warmup-seconds); if it gets slower, look at clocks and temperature.",
)
SLOW_RANKS = Rule(
    "slow_rank",
    lambda row: row["ratio"] > SLOW_RANK,
    "{label}: {where} computes its forward pass at least {slower:percent} slower than the others in every launch; all "
    "ranks wait for it.",
    "Check that rank's device, its clocks, and other processes there.",
)
SLOW_NODES = Rule(
    "slow_node",
    lambda row: row["n_slow"] >= ENOUGH_LAUNCHES and row["n_slow"] >= MOST_LAUNCHES * row["n"],
    "Node {node}: in {n_slow} of {n:#launch} that span nodes its ranks computed their forward pass {slower:percent} "
    "slower than ranks of the other nodes (the median; more than {limit:percent} in each); all nodes wait for it.",
    "Check that node's clocks, temperature and power limits, other processes there, and its differences from the other "
    "nodes (Machine).",
)
CARRY_OVER = Rule(
    "carry_over",
    None,
    "{text}",
    "Do not trust smaller differences between configurations that shared launches. Measure them in separate launches "
    "(--launches 5 --rounds 0).",
)
DEBUG = Rule(
    "debug_environment",
    None,
    "Debugging was on in the environment: {costs}. The times are longer than in training without it.",
    "Unset {names} and measure again.",
)
NODES = Rule(
    "nodes_differ",
    None,
    "The nodes are not alike: {compared}.",
    "Ranks wait for the slowest, so answers hold for this mixture of nodes only. Use equal nodes to avoid this.",
)


def session_warnings(seen: SessionData) -> list[Finding]:
    """Return all computed warnings of a session of training runs, the broadest first."""
    cases = seen.cases.assign(limit=seen.cases["device"].map(NOISY).astype(float))
    return [
        *FEW.findings(cases),
        *common(cases, seen.session),
        *computing.arithmetic(seen),
        *NOISY_CASES.findings(cases),
        *DRIFTING.findings(_drifting(seen)),
        *_carried_over(seen),
        *SLOW_RANKS.findings(_slowest_ranks(seen)),
        *SLOW_NODES.findings(_slowest_nodes(seen)),
        *steps.findings(seen),
        *seen.once(health.findings),
        *computing.findings(seen),
        *check_links(link_table(seen.results, seen.session)),
    ]


def common(cases: pd.DataFrame, session: Session) -> Iterator[Finding]:
    """Yield the warnings that sessions of training runs and of collectives have in common."""
    environment = session.environment
    names = ["threads_there", "cores", "ranks_there", "devices"]
    there = [
        (*(_threads(environment, case) or (0, 0)), *(sharing(environment, case) or (0, 0))) for case in records(cases)
    ]
    cases = cases.join(pd.DataFrame(there, cases.index, names))
    for rule in COMMON:
        yield from rule.findings(cases)
    yield from debug_environment(cases, environment)
    if len(kinds(environment)) > 1:
        yield from NODES.findings(pd.DataFrame([{"compared": nodes_compared(environment)}]))


def _threads(environment: Mapping[str, Any], case: Mapping[Any, Any]) -> tuple[int, int] | None:
    sizes = (int(case[name]) for name in ("world_size", "threads", "nodes"))
    return crowded(environment, *sizes) if case["device"] == "cpu" else None


def debug_environment(cases: pd.DataFrame, environment: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn if debugging variables slowed the launches on CUDA. `cases` has the columns device and backend."""
    on_cuda = (cases["device"] == accelerator.TYPE).any()
    with_nccl = (cases["backend"] == accelerator.BACKEND).any()
    costs = {}
    for name, value in (environment.get("env") or {}).items():
        on, cost = DEBUG_VARIABLES.get(name, (None, ""))
        if on is not None and on.fullmatch(value) and (with_nccl if "NCCL" in name else on_cuda):
            costs[name] = f"with {name}={value} {cost}"
    if costs:
        yield from DEBUG.findings(pd.DataFrame([{"costs": ", ".join(costs.values()), "names": ", ".join(costs)}]))


def _drifting(seen: SessionData) -> pd.DataFrame:
    """Return the launch of each configuration that drifts the most, if it drifts by more than DRIFTS."""
    good = seen.counted.assign(case_id=seen.counted["case"], size=seen.counted["drift"].abs())
    good["n"] = good.groupby("case")["case"].transform("size")
    far = good[good["size"] > good["device"].map(DRIFTS).astype(float)]
    far = far.assign(
        n_far=far.groupby("case")["case"].transform("size"), way=np.where(far["drift"] > 0, "slower", "faster")
    )
    return far.sort_values("size", ascending=False, kind="stable").drop_duplicates("case")


def _carried_over(seen: SessionData) -> Iterator[Finding]:
    tested = seen.once(carry_over)
    if tested and tested.found:
        text = sentence(tested, seen.labels)
        yield from CARRY_OVER.findings(pd.DataFrame([{"text": text, "case_id": tested.found["case_id"]}]))


def _forward(seen: SessionData) -> pd.DataFrame:
    """Return the median forward pass of each rank: `launch_id, rank, node, rank_s, case_id, label, device`.

    Launches whose ranks are not all known are left out.
    """
    medians = seen.results.medians
    forward = medians[medians["metric"] == "forward_s"].rename(columns={"value": "rank_s"})
    good = seen.counted[seen.counted["strategy"].isin(LOCAL_FORWARD) & (seen.counted["world_size"] > 1)]
    good = good[["launch_id", "case", "label", "device", "world_size"]].rename(columns={"case": "case_id"})
    ranks = good.merge(forward[["launch_id", "rank", "rank_s"]].dropna(), on="launch_id")
    ranks = ranks[ranks.groupby("launch_id")["rank"].transform("size") == ranks["world_size"]]
    node_of = {at: node_of_rank(seen.facts[at]) for at in ranks["launch_id"].unique()}
    nodes = [node_of[at].get(rank, 0) for at, rank in zip(ranks["launch_id"], ranks["rank"], strict=True)]
    return ranks.assign(node=nodes)


def _slowest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the slowest row of each launch by `rank_s`, with its `ratio` to the median of the other rows."""
    rows = rows.sort_values("rank_s", kind="stable")
    slowest = rows.drop_duplicates("launch_id", keep="last").set_index("launch_id")
    others = rows[rows.duplicated("launch_id", keep="last")].groupby("launch_id")["rank_s"].median()
    return slowest.assign(ratio=slowest["rank_s"] / others)


def _slowest_ranks(seen: SessionData) -> pd.DataFrame:
    """Return the rank of each configuration that is the slowest one in every launch, and its least `ratio`."""
    slowest = _slowest(seen.once(_forward))
    launches = slowest["case_id"].map(seen.counted["case"].value_counts())
    by_case = slowest.groupby("case_id")
    always = (by_case["rank"].transform("nunique") == 1) & (by_case["rank"].transform("size") == launches)
    slowest = slowest.assign(ratio=by_case["ratio"].transform("min"))[always].sort_index().drop_duplicates("case_id")
    where = [rank_said(rank, seen.facts[at]) for at, rank in zip(slowest.index, slowest["rank"], strict=True)]
    return slowest.assign(where=where, slower=slowest["ratio"] - 1)


def _slowest_nodes(seen: SessionData) -> pd.DataFrame:
    """Return each node that is slower than the others by more than SLOW_NODE, by device."""
    table = _slowest(seen.once(_forward).groupby(["device", "launch_id", "node"])["rank_s"].median().reset_index())
    table = table.assign(limit=table["device"].map(SLOW_NODE).astype(float)).dropna()
    table = table.assign(n=table.groupby("device")["node"].transform("size"))
    slow = table[table["ratio"] > table["limit"]].groupby(["device", "node"])
    rows = slow[["n", "limit"]].first().assign(n_slow=slow.size(), slower=slow["ratio"].median() - 1)
    return rows.assign(limit=rows["limit"] - 1).reset_index()
