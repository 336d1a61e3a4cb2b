"""Warn about sessions of training runs and of collectives, with tables and the rules about their rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.carry_over import carry_over, sentence
from parabench.analysis.collectives.bus import bus_table, measured
from parabench.analysis.efficiency import efficiency
from parabench.analysis.environment.nodes import crowded, kinds, node_of_rank, nodes_compared, rank_text, sharing
from parabench.analysis.links import check_links, link_table
from parabench.analysis.numbers import status_counts
from parabench.analysis.session import Session, SessionData
from parabench.analysis.step.breakdown import case_breakdown
from parabench.analysis.step.stragglers import straggler_table
from parabench.analysis.warnings import Rule, devices
from parabench.machine import accelerator
from parabench.metrics import STEP_PARTS
from parabench.models import PRECISIONS
from parabench.plan.collective_case import size_text
from parabench.store.record import Finding, Status
from parabench.store.results import records
from parabench.strategies import STRATEGIES, entry_of
from parabench.strategies import Rule as Verified

# Environment variables for debugging: the value that switches each on, and its cost. CUDA programming guide ("CUDA
# environment variables"), HIP documentation ("Debugging with HIP"), torch's ProcessGroupNCCL.hpp, NCCL's "Environment
# variables".
_ON = re.compile(r"1|y|yes|t|true", re.IGNORECASE)
_DEBUG_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": (_ON, "the host waits for each kernel"),
    "HIP_LAUNCH_BLOCKING": (_ON, "the host waits for each kernel"),
    "TORCH_NCCL_BLOCKING_WAIT": (_ON, "the host waits for each collective"),
    "NCCL_DEBUG": (re.compile("TRACE", re.IGNORECASE), "NCCL logs each call"),
}
# The variation between launches of one configuration, not measured for a dedicated GPU.
AA_SPREAD = {"cpu": 0.025}
# Twice that; a dedicated GPU's clocks stay within about 1-2%.
NOISY = {"cpu": 2 * AA_SPREAD["cpu"], accelerator.TYPE: 0.03}
# Undisturbed launches drift by less. On shared CPUs, medians of equal launches differ by 9.7%. A dedicated GPU is
# quieter.
_DRIFTS = {"cpu": 0.10, accelerator.TYPE: 0.05}
# Ranks of a slow node take this many times as long to compute: on CPUs, twice the variation of equal launches' medians
# (9.7%). Clocks of dedicated GPUs stay within 1-2%.
_SLOW_NODE = {"cpu": 1.20, accelerator.TYPE: 1.05}
# In these strategies, the forward pass does not communicate, so ranks differ only by hardware and chance. All ranks
# wait for each other.
_LOCAL_FORWARD = [
    name for name, entry in STRATEGIES.items() if entry.local_forward and entry.rule is Verified.REFERENCE
]

# Rules about configurations of training runs and of collectives.
_COMMON = (
    # With two launches the interval of a mean is 12.7 standard errors wide, with three 4.3. A log is one launch.
    Rule(
        "few_launches",
        lambda row: 0 < row["n_ok"] < 3 and not row.get("source"),
        "{label}: fewer than 3 successful launches, so the variation between launches is hardly known.",
        "Run 3 launches or more (--launches).",
        worst="n_ok",
    ),
    Rule(
        "fails_sometimes",
        lambda row: row["n_ok"] > 0 and row["status"] != "ok",
        "{label}: {status} of {n_launches:#launch}; only those that succeeded are ranked.",
        "Read the launch's error before you choose this configuration.",
    ),
    Rule(
        "oversubscribed",
        lambda row: row["threads_there"] > 0,
        "{label}: up to {threads_there:.0f} computing threads on {cores:#core} of a node, so ranks share cores and "
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


def session_warnings(seen: SessionData) -> list[Finding]:
    """Return all computed warnings of a session of training runs, the broadest first."""
    found = [*common(seen.cases, seen.session)]
    tested = seen.once(carry_over)
    if tested and tested.found:
        advice = (
            "Do not trust smaller differences between configurations that shared launches. Measure them in separate "
            "launches (--launches 5 --rounds 0)."
        )
        found.append(Finding("carry_over", sentence(tested, seen.labels), advice, tested.found["case_id"]))
    for table, rule in (*_RULES, *devices.RULES):
        found += rule.findings(seen.once(table))
    return [*found, *check_links(link_table(seen.results, seen.session))]


def common(cases: pd.DataFrame, session: Session) -> Iterator[Finding]:
    """Yield the warnings about configurations and environment that apply to training runs and to collectives."""
    environment = session.environment
    there = [(*_threads(environment, case), *(sharing(environment, case) or (0, 0))) for case in records(cases)]
    cases = cases.join(pd.DataFrame(there, cases.index, ["threads_there", "cores", "ranks_there", "devices"]))
    for rule in _COMMON:
        yield from rule.findings(cases)
    yield from debug_environment(cases, environment)
    if len(kinds(environment)) > 1:
        yield Finding(
            "nodes_differ",
            f"The nodes are not alike: {nodes_compared(environment)}.",
            "Ranks wait for the slowest, so answers hold for this mixture of nodes only. Use equal nodes to avoid "
            "this.",
        )


def _threads(environment: Mapping[str, Any], case: Mapping[Any, Any]) -> tuple[int, int]:
    """Return (computing threads, cores) of a node if a CPU case has too many threads, otherwise (0, 0)."""
    sizes = (int(case[name]) for name in ("world_size", "threads", "nodes"))
    return (case["device"] == "cpu" and crowded(environment, *sizes)) or (0, 0)


def debug_environment(cases: pd.DataFrame, environment: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn if debugging variables slowed the launches on CUDA. `cases` has the columns device and backend."""
    on_cuda = (cases["device"] == accelerator.TYPE).any()
    with_nccl = (cases["backend"] == accelerator.BACKEND).any()
    costs = {}
    for name, value in (environment.get("env") or {}).items():
        on, cost = _DEBUG_VARIABLES.get(name, (None, ""))
        if on is not None and on.fullmatch(value) and (with_nccl if "NCCL" in name else on_cuda):
            costs[name] = f"with {name}={value} {cost}"
    if costs:
        yield Finding(
            "debug_environment",
            f"Debugging was on in the environment: {', '.join(costs.values())}. The times are longer than in training "
            "without it.",
            f"Unset {', '.join(costs)} and measure again.",
        )


# ---- the tables


def _arithmetic(seen: SessionData) -> pd.DataFrame:
    """Return the launches on CUDA that computed in an arithmetic other than their precision; `other` describes it."""
    good = seen.counted[seen.counted["device"] == accelerator.TYPE]
    found = []
    for launch in records(good[["launch_id", "label", "precision"]]):
        reported = seen.facts[launch["launch_id"]].get("arithmetic")
        if reported is None:
            continue
        wants = PRECISIONS[launch["precision"]].allows_tf32
        if overrides := reported["overrides"]:
            other = f"{' and '.join(f'{name}={value}' for name, value in overrides.items())} was set"
        elif (reported["matmul"] != "highest") is not wants:
            other = f"float32 matrix products ran at torch's precision {reported['matmul']!r}"
        elif reported["cudnn_tf32"] is not wants:
            other = f"cuDNN's TF32 was {'on' if reported['cudnn_tf32'] else 'off'}"
        else:
            continue
        found.append(launch | {"other": other})
    return pd.DataFrame(found)


def _configurations(seen: SessionData) -> pd.DataFrame:
    """Return the cases with the limit of their spread, and `data_share`: the share of a step spent on its batch.

    It is relative to the sum of the median parts, because the step time may be another quantile.
    """
    whole_s = seen.cases[list(STEP_PARTS)].sum(axis=1)
    limit = seen.cases["device"].map(NOISY).astype(float)
    return seen.cases.assign(limit=limit, whole_s=whole_s, data_share=seen.cases["data_s"] / whole_s)


def _drifting(seen: SessionData) -> pd.DataFrame:
    """Return the launch with the largest drift of each configuration, if its drift is above _DRIFTS."""
    good = seen.counted.assign(case_id=seen.counted["case"], size=seen.counted["drift"].abs())
    good["n"] = good.groupby("case")["case"].transform("size")
    far = good[good["size"] > good["device"].map(_DRIFTS).astype(float)]
    n_far = far.groupby("case")["case"].transform("size")
    far = far.assign(n_far=n_far, way=np.where(far["drift"] > 0, "slower", "faster"))
    return far.sort_values("size", ascending=False, kind="stable").drop_duplicates("case")


def _forward(seen: SessionData) -> pd.DataFrame:
    """Return the median forward time of each rank: `launch_id, rank, node, rank_s, case_id, label, device`.

    Launches are left out if the time of a rank is unknown.
    """
    medians = seen.results.medians
    forward = medians[medians["metric"] == "forward_s"].rename(columns={"value": "rank_s"})
    good = seen.counted[seen.counted["strategy"].isin(_LOCAL_FORWARD) & (seen.counted["world_size"] > 1)]
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
    """Return one row per configuration whose slowest rank is the same in every launch; `ratio` is its smallest."""
    slowest = _slowest(seen.once(_forward))
    launches = slowest["case_id"].map(seen.counted["case"].value_counts())
    by_case = slowest.groupby("case_id")
    always = (by_case["rank"].transform("nunique") == 1) & (by_case["rank"].transform("size") == launches)
    slowest = slowest.assign(ratio=by_case["ratio"].transform("min"))[always].sort_index().drop_duplicates("case_id")
    where = [rank_text(rank, seen.facts[at]) for at, rank in zip(slowest.index, slowest["rank"], strict=True)]
    return slowest.assign(where=where, slower=slowest["ratio"] - 1)


def _slowest_nodes(seen: SessionData) -> pd.DataFrame:
    """Return one row per device type and node whose ratio to the other nodes is above _SLOW_NODE in a launch."""
    table = _slowest(seen.once(_forward).groupby(["device", "launch_id", "node"])["rank_s"].median().reset_index())
    table = table.assign(limit=table["device"].map(_SLOW_NODE).astype(float)).dropna()
    table = table.assign(n=table.groupby("device")["node"].transform("size"))
    slow = table[table["ratio"] > table["limit"]].groupby(["device", "node"])
    rows = slow[["n", "limit"]].first().assign(n_slow=slow.size(), slower=slow["ratio"].median() - 1)
    return rows.assign(limit=rows["limit"] - 1).reset_index()


def _instrumented(seen: SessionData) -> pd.DataFrame:
    """Return the `case_breakdown`, with `slower`: the relative slowdown of instrumented steps."""
    cases = seen.once(case_breakdown)
    return cases.assign(slower=cases["instruments_ratio"] - 1)


def _host_lags(seen: SessionData) -> pd.DataFrame:
    """Return the rank with the smallest device lag in the median launch of each configuration on CUDA.

    A host enqueues kernels without waiting. If the device is slower, it lags behind until the queue of kernels is full
    (about 1,000). If the host is slower, the device lags by one or two kernels. Launches whose collectives block the
    host, as with gloo, are left out.
    """
    medians, good = seen.results.medians, seen.counted
    free = (good["device"] == accelerator.TYPE) & ((good["world_size"] == 1) | (good["backend"] == accelerator.BACKEND))
    rows = medians[medians["metric"].isin(["device_lag_s", "step_s", "data_s"])]
    wide = rows.pivot_table("value", ["launch_id", "rank"], "metric", observed=True)
    wide = wide.rename(columns={"device_lag_s": "lag_s"}).reindex(columns=["lag_s", "step_s", "data_s"])
    wide = wide.dropna(subset=["lag_s", "step_s"]).reset_index()
    lags = seen.of_launch[free].merge(wide.assign(lag=wide["lag_s"] / wide["step_s"]), on="launch_id")
    lags = lags.sort_values("lag", kind="stable").drop_duplicates("launch_id")
    by_case = lags.groupby("case_id", sort=False)
    lags = lags.assign(median_lag=by_case["lag"].transform("median"))
    return lags[by_case.cumcount() == (by_case["lag"].transform("size") - 1) // 2]


def _compiled(seen: SessionData) -> pd.DataFrame:
    """Return the highest numbers of graphs and eager frames of any rank, per launch with torch.compile."""
    found = [
        {"label": label, **{name: max(rank[name] for rank in ranks) for name in ("graphs", "eager_frames")}}
        for at, label in zip(seen.counted["launch_id"], seen.counted["label"], strict=True)
        if (ranks := seen.facts[at].get("compiled"))
    ]
    return pd.DataFrame(found, columns=["label", "graphs", "eager_frames"])


# Each table with a rule about its rows, the broadest first.
_RULES = (
    (_arithmetic, Rule(
        "other_arithmetic",
        None,
        "{label}: {other}, so this is not the precision that the configuration names.",
        "Remove what overrides it from the environment and the model's code, or select the precision that was used.",
        worst="launch_id",
    )),
    (efficiency, Rule(
        "mfu_above_peak",
        lambda row: row["mfu"] > 1,
        "{label}: up to {mfu:percent} of the devices' peak FLOP/s, which is impossible.",
        "Check whether matrix products ran in a narrower arithmetic than this precision; if not, the FLOP count is "
        "wrong.",
        worst="mfu",
    )),
    (_configurations, Rule(
        "noisy",
        lambda row: row["spread"] > row["limit"],
        "{label}: launches differ by {spread:percent} ({low_s:ms} to {high_s:ms}).",
        "Stop other processes on the machine, or run more launches.",
    )),
    (_drifting, Rule(
        "drift",
        None,
        "{label}: in {n_far} of {n:#launch} the last third of the steps was {way} than the first, by up to "
        "{size:percent}.",
        "Warm up for longer (--warmup-seconds); if it gets slower, look at clocks and temperature.",
    )),
    # Above scheduler noise; the other ranks wait for it in every all-reduce.
    (_slowest_ranks, Rule(
        "slow_rank",
        lambda row: row["ratio"] > 1.25,
        "{label}: {where} computes its forward pass at least {slower:percent} slower than the others in every launch; "
        "all ranks wait for it.",
        "Check that rank's device, its clocks, and other processes there.",
    )),
    # A node must be slow in 3 launches, and in most of those that span nodes.
    (_slowest_nodes, Rule(
        "slow_node",
        lambda row: row["n_slow"] >= 3 and row["n_slow"] >= 0.75 * row["n"],
        "Node {node}: in {n_slow} of {n:#launch} that span nodes its ranks computed their forward pass "
        "{slower:percent} slower than ranks of the other nodes (the median; more than {limit:percent} in each); all "
        "nodes wait for it.",
        "Check that node's clocks, temperature and power limits, other processes there, and its differences from the "
        "other nodes (Machine).",
    )),
    # Instrumented steps that are slower differ too much from the measured steps.
    (_instrumented, Rule(
        "instruments_slow",
        lambda row: row["instruments_ratio"] > 1.10,
        "{label}: the instrumented steps took {slower:percent} longer than the measured ones, so the breakdown of its "
        "step is approximate.",
        "Read shares rather than times from it. Step time and ranking come from the measured steps only.",
    )),
    # One process with several devices does not use torch.distributed.
    (_instrumented, Rule(
        "no_communication",
        lambda row: row["unseen"] and not entry_of(row["strategy"]).one_process,
        "{label}: no collective of its {world_size} ranks was recorded, so its communication bypasses the instruments.",
        "Take its communication as unknown: the instruments record torch.distributed only.",
    )),
    # By chance, one of two equal ranks is last in 8 steps in less than 1 of 100 cases (2 x 0.5^8).
    (straggler_table, Rule(
        "straggler",
        lambda row: (
            row["always_last"] and row["steps"] >= 8 and row["waited_s"] > row["clock_error_s"]
            and row["waited_share"] > 0.05
        ),
        "{label}: {who} was the last to enter the collectives in {share:percent} of the steps; the others waited "
        "{waited_s:ms} per step for it ({waited_share:percent}).",
        "Check the additional work of that rank, its device, and other processes there.",
    )),
    # A device that limits lags by half a step or more. The last kernels of a step take 10 to 100 us, and the step takes
    # milliseconds.
    (_host_lags, Rule(
        "launch_bound",
        lambda row: row["median_lag"] < 0.1,
        "{label}: the device of rank {rank} is never more than {lag_s:ms} behind its host, in a step of {step_s:ms} "
        "({data_s:ms} for the batch). It waits for the host, so these times measure the host and not the device.",
        "Give the device more in each step (a larger model, global_batch or seq_len), launch less (fused=on, "
        "compile=on, or CUDA graphs in a custom strategy), or load batches in other processes (--set workers).",
    )),
    (_compiled, Rule(
        "not_compiled",
        lambda row: row["eager_frames"] > 0 or row["graphs"] == 0,
        "{label}: torch.compile made {graphs:#graph} and gave up {eager_frames:#frame} of Python code, so these times "
        "include eager mode.",
        "Unset TORCH_COMPILE_DISABLE if it is set. Otherwise TORCH_LOGS=recompiles,graph_breaks shows the cause, such "
        "as code that depends on a changing number and is compiled for each value.",
        worst="eager_frames",
    )),
    (_configurations, Rule(
        "data_bound",
        lambda row: row["data_share"] > 0.1,
        "{label}: {data_share:percent} of a step is spent waiting for its batch ({data_s:ms} of {whole_s:ms}).",
        "Load in more processes (--set workers, DataLoader's num_workers), or make a batch cheaper to load.",
    )),
)  # fmt: skip


# ---- sessions of collectives

_OTHER_ALGORITHM = Rule(
    "other_algorithm",
    lambda row: row["ran"] != row["algorithm"],
    "{label}: {ran} ran, because {algorithm} has no {op}.",
    "Read its times as times of {ran}.",
)
_NOISY_SIZES = Rule(
    "noisy",
    lambda row: row["spread"] > row["limit"],
    "{label}: launches differ, the most at {size}, by {spread:percent}.",
    "Stop other processes on the machine, or run more launches.",
)


def check_collectives(seen: SessionData) -> list[Finding]:
    """Return all computed warnings of a session of collectives, the broadest first."""
    launches = seen.numbers.drop_duplicates("launch_id")
    of_case = launches.assign(ok=launches["status"] == Status.OK).groupby("case", sort=False)
    fields = ["label", "world_size", "nodes", "threads", "device", "backend", "source"]
    cases = of_case[fields].first().assign(status=of_case["status"].agg(status_counts), n_ok=of_case["ok"].sum())
    cases = cases.assign(n_launches=of_case.size()).rename_axis("case_id").reset_index()
    table = bus_table(measured(seen.numbers))
    sizes = table.assign(limit=table["device"].map(NOISY).astype(float), size=table["bytes"].map(size_text))
    return [
        *common(cases, seen.session),
        *_OTHER_ALGORITHM.findings(table.drop_duplicates(["case_id", "ran"])),
        *_NOISY_SIZES.findings(sizes.sort_values("spread", ascending=False).drop_duplicates("case_id")),
    ]
