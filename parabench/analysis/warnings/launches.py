"""The rules about sessions of training runs. Each `Rule` reads a table of `rows`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from parabench.analysis.efficiency import efficiency
from parabench.analysis.environment.nodes import crowded, kinds, nodes_compared, sharing
from parabench.analysis.links import link_table
from parabench.analysis.session import Session, SessionData
from parabench.analysis.warnings import rows
from parabench.analysis.warnings.codes import Rule
from parabench.analysis.warnings.links import check_links
from parabench.analysis.warnings.rows import AA_SPREAD as AA_SPREAD
from parabench.analysis.warnings.rows import DRIFTS as DRIFTS
from parabench.analysis.warnings.rows import NOISY as NOISY
from parabench.machine import accelerator
from parabench.store.record import Finding
from parabench.store.results import records
from parabench.strategies import entry_of

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
# A node must be slow in this number of launches, and in this share of those that span nodes.
ENOUGH_LAUNCHES = 3
MOST_LAUNCHES = 0.75
# The lag as a share of the step. A device that limits lags by half a step or more. The last kernels of a step take
# 10 to 100 us, and the step takes milliseconds.
SMALL_LAG = 0.1
# Waiting for batches causes a warning from this share of the step on.
WAITS = 0.1
# A dedicated GPU's clocks stay within about 1-2% under a steady load.
CLOCK_RANGE = 0.05
# A device under load reaches its power limit now and then; if it stays there, the limit decides its speed.
CAPPED_SHARE = 0.05
# Slower instrumented steps differ too much from the measured steps.
SLOW_INSTRUMENTS = 1.10
# By chance, one of two equal ranks is last in this number of steps in less than 1 of 100 cases (2 x 0.5^8).
ENOUGH_STEPS = 8
# A straggler costs this share of the step.
COSTLY = 0.05

FEW = Rule(
    "few_launches",
    lambda row: 0 < row["n_ok"] < FEW_LAUNCHES,
    f"{{label}}: fewer than {FEW_LAUNCHES} successful launches, so the variation between launches is hardly known.",
    f"Run {FEW_LAUNCHES} launches or more (--launches).",
    worst="n_ok",
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
OTHER_ARITHMETIC = Rule(
    "other_arithmetic",
    None,
    "{label}: {other}, so this is not the precision that the configuration names.",
    "Remove what overrides it from the environment and the model's code, or select the precision that was used.",
    worst="launch_id",
)
ABOVE_PEAK = Rule(
    "mfu_above_peak",
    lambda row: row["mfu"] > 1,
    "{label}: up to {mfu:percent} of the devices' peak FLOP/s, which is impossible.",
    "Check whether matrix products ran in a narrower arithmetic than this precision; if not, the FLOP count is wrong.",
    worst="mfu",
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
CARRY_OVER = Rule(
    "carry_over",
    None,
    "{text}",
    "Do not trust smaller differences between configurations that shared launches. Measure them in separate launches "
    "(--launches 5 --rounds 0).",
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
INSTRUMENTS = Rule(
    "instruments_slow",
    lambda row: row["instruments_ratio"] > SLOW_INSTRUMENTS,
    "{label}: the instrumented steps took {slower:percent} longer than the measured ones, so the breakdown of its step "
    "is approximate.",
    "Read shares rather than times from it. Step time and ranking come from the measured steps only.",
)
COMMUNICATION = Rule(
    "no_communication",
    # One process with several devices does not use torch.distributed.
    lambda row: row["unseen"] and not entry_of(row["strategy"]).one_process,
    "{label}: no collective of its {world_size} ranks was recorded, so its communication bypasses the instruments.",
    "Take its communication as unknown: the instruments record torch.distributed only.",
)
STRAGGLER = Rule(
    "straggler",
    lambda row: (
        row["always_last"]
        and row["steps"] >= ENOUGH_STEPS
        and row["waited_s"] > row["clock_error_s"]
        and row["waited_share"] > COSTLY
    ),
    "{label}: {who} was the last to enter the collectives in {share:percent} of the steps; the others waited "
    "{waited_s:ms} per step for it ({waited_share:percent}).",
    "Check the additional work of that rank, its device, and other processes there.",
)
UNREADABLE = Rule(
    "device_unreadable",
    None,
    "{what} could not be read{during}: {reason}.",
    "Numbers that depend on it are unknown. Check the driver, permissions, and the devices that a container may use.",
)
ECC = Rule(
    "ecc_errors",
    lambda row: row["corrected"] > 0 or row["uncorrected"] > 0 or row["lasting"] > 0,
    "{place} had {corrected:,.0f} corrected and {uncorrected:,.0f} uncorrected memory errors during the launches; "
    "{since} uncorrected since its driver was loaded.",
    "Look at the device's retired pages (nvidia-smi -q -d ECC,PAGE_RETIREMENT), and do not trust results "
    "with an uncorrected error.",
)
HOST = Rule(
    "host_busy",
    lambda row: row["n_busy"] > 0,
    "{label}: in {n_busy:.0f} of {n:#launch} other processes used up to {most:percent} of {where}'s CPU time during "
    "the measured steps.",
    "End other processes on the host, and measure again.",
)
LAUNCH_BOUND = Rule(
    "launch_bound",
    lambda row: row["median_lag"] < SMALL_LAG,
    "{label}: the device of rank {rank} is never more than {lag_s:ms} behind its host, in a step of {step_s:ms} "
    "({data_s:ms} for the batch). It waits for the host, so these times measure the host and not the device.",
    "Give the device more in each step (a larger model, global_batch or seq_len), launch less (fused=on, compile=on, "
    "or CUDA graphs in a custom strategy), or load batches in other processes (--set workers).",
)
NOT_COMPILED = Rule(
    "not_compiled",
    lambda row: row["eager_frames"] > 0 or row["graphs"] == 0,
    "{label}: torch.compile made {graphs:#graph} and gave up {eager_frames:#frame} of Python code, so these times "
    "include eager mode.",
    "Unset TORCH_COMPILE_DISABLE if it is set. Otherwise TORCH_LOGS=recompiles,graph_breaks shows the cause, such as "
    "code that depends on a changing number and is compiled for each value.",
    worst="eager_frames",
)
DATA_BOUND = Rule(
    "data_bound",
    lambda row: row["data_share"] > WAITS,
    "{label}: {data_share:percent} of a step is spent waiting for its batch ({data_s:ms} of {whole_s:ms}).",
    "Load in more processes (--set workers, DataLoader's num_workers), or make a batch cheaper to load.",
)
DEVICES = (
    Rule(
        "foreign_process",
        lambda row: row["foreign"] > 0,
        "{place} had up to {foreign:#foreign process} during the measured steps, holding {held}.",
        "End other processes on the device (nvidia-smi lists them), and measure again.",
    ),
    Rule(
        "throttled",
        lambda row: row["throttled"] > 0,
        "{place} throttled its clocks in {throttled:percent} of the readings during the measured steps: {reasons}.",
        "Look at cooling, power supply and power limits; a throttled device is not representative of its model.",
    ),
    Rule(
        "power_capped",
        lambda row: row["capped"] > CAPPED_SHARE,
        "{place} was at its power limit in {capped:percent} of the readings during the measured steps.",
        "Compare only with devices of the same power limit (nvidia-smi -q -d POWER).",
    ),
    # `power_capped` explains clocks that swing at the power limit, so they cause no second warning.
    Rule(
        "clocks_moved",
        lambda row: row["moved"] > CLOCK_RANGE and row["capped"] <= CAPPED_SHARE,
        "{place} ran at {slowest_mhz:,.0f} MHz in one third of a launch's measured steps and at {fastest_mhz:,.0f} MHz "
        "in another (means, {moved:percent} apart).",
        "Warm up for longer (--warmup-seconds), or lock the clocks (nvidia-smi -lgc).",
    ),
)
# The rules by the table that they read, the broadest first.
RULES: tuple[tuple[Callable[[SessionData], pd.DataFrame], tuple[Rule, ...]], ...] = (
    (rows.arithmetic, (OTHER_ARITHMETIC,)),
    (efficiency, (ABOVE_PEAK,)),
    (rows.configurations, (NOISY_CASES,)),
    (rows.drifting, (DRIFTING,)),
    (rows.interference, (CARRY_OVER,)),
    (rows.slowest_ranks, (SLOW_RANKS,)),
    (rows.slowest_nodes, (SLOW_NODES,)),
    (rows.instrumented, (INSTRUMENTS, COMMUNICATION)),
    (rows.stragglers, (STRAGGLER,)),
    (rows.unreadable, (UNREADABLE,)),
    (rows.devices, DEVICES),
    (rows.memory_errors, (ECC,)),
    (rows.busy_hosts, (HOST,)),
    (rows.host_lags, (LAUNCH_BOUND,)),
    (rows.compiled, (NOT_COMPILED,)),
    (rows.configurations, (DATA_BOUND,)),
)


def session_warnings(seen: SessionData) -> list[Finding]:
    """Return all computed warnings of a session of training runs, the broadest first."""
    return [
        *FEW.findings(seen.cases),
        *common(seen.cases, seen.session),
        *(finding for table, rules in RULES for rule in rules for finding in rule.findings(seen.once(table))),
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
