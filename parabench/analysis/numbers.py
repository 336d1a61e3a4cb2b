"""Compute the table of launches: one row per launch and configuration, with all measured numbers.

All answers are computed from `numbers`, from `case_table`, which has one row per configuration, and from the detail
tables of a database (steps, calls, spans, device readings). A launch is the unit of replication: its steps become one
number before anything is averaged or compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from parabench import json_text
from parabench.analysis.energy import COUNTER, launch_energy
from parabench.analysis.launch_number import (
    MEAN,
    QUANTILE,
    STATISTIC,
    in_rounds,
    loop_times,
    shares_launch,
    step_turns,
    turns_of,
)
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.metrics import STEP_PARTS
from parabench.plan.case import DEFAULTS, Case, RecordedCase
from parabench.plan.collective_case import CollectiveCase
from parabench.store.database import SLOWEST
from parabench.store.record import BATCH_UNSEEN, FIRST_REPETITION, UNVERIFIED, Phase, Status
from parabench.store.results import Results, records
from parabench.strategies import entry_of

if TYPE_CHECKING:
    from parabench.analysis.session import Session

# Two configurations have the same workload, and are ranked against each other, if these fields agree. `split` is not
# among them, because it does not change the amount of computing. `vocabulary` is, because it changes the tokens.
WORK = ("model", "data", "vocabulary", "global_batch", "seq_len", "precision", "device")
PEAKS = ("peak_rss_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
MEMORY = (*PEAKS, "used_bytes")

# Conditions for `results.load` in SQL, if an answer needs less than the report: no readings and calls at all, or those
# that are columns of `numbers`.
STEP_TIMES = dict.fromkeys(("collective", "device_sample", "host_sample", "span"), "FALSE")
STEP_TIMES["digest"] = f"kind = '{SLOWEST}'"
LAUNCH_NUMBERS = {
    "device_sample": "rank IS NULL AND metric IN ('used_bytes', 'energy_j', 'power_w')",
    # Calls of `parabench collectives`, not of a training run's instrumented steps.
    "collective": f"phase IS NOT '{Phase.INSTRUMENT}'",
    "host_sample": "FALSE",
    "span": "FALSE",
}

# Columns of the table `launch` and their names in `numbers`.
_STORED = {
    "id": "launch_id", "session_id": "session", "case_id": "case", "case_json": "case_json", "repetition": "repetition",
    "position": "position", "status": "status", "error": "error", "failed_rank": "failed_rank",
    "failed_signal": "failed_signal", "traceback": "traceback", "started_utc": "started_utc", "wall_s": "wall_s",
    "facts": "facts",
}  # fmt: skip
# The columns of `numbers` for training sessions, besides the fields of `plan.case.Case`.
COLUMNS = {
    "launch_id": "id of the launch in the table `launch`",
    "session": "id of its session",
    "variant": "`a` (baseline) or `b` (candidate) in `parabench ab`, otherwise empty",
    "case": "id of the configuration",
    "label": "name of the configuration, unique in the table",
    "case_json": "the configuration as JSON",
    "repetition": "number of the repetition; -1 for the reference launch, -2 for the NCCL debug-log launch, -3 for the "
    "second copy of a configuration in an A/A test",
    "position": "place of the launch in its repetition",
    "shared_launch": "id of the first launch in the same processes; without interleaving, the id of the launch",
    "in_turns": "whether its processes were shared with other configurations",
    "turns": "number of interleaved rounds; 1 for a launch of one configuration",
    "status": "how it ended: `ok`, `wrong`, `oom`, `crashed`, `hung`, `failed` or `interrupted`",
    "error": "the first cause of a failure",
    "failed_rank": "the rank that failed first",
    "failed_signal": "the signal that ended this rank",
    "traceback": "traceback of this rank",
    "started_utc": "when it started, ISO 8601",
    "wall_s": "how long it took, with startup",
    "facts": "facts that the ranks reported, as JSON",
    "verified": "whether its losses were compared with training on one device",
    "counted": "whether its numbers count: a successful repetition with a known step time",
    "timed": "whether its step time is compared: if a configuration shared launches, only these",
    "statistic": "how `step_s` is computed from the steps: `10th percentile`, `median` or `mean`",
    "step_s": "step time on the slowest rank; if configurations were interleaved, as compared round by round",
    "undisturbed_s": "the same quantile of the steps for a loop under `parabench.watch`, whose `step_s` is the mean",
    "p90_s": "90th percentile of the steps",
    "drift": "last third of the steps relative to the first third, minus 1",
    "n_steps": "number of measured steps",
    "tokens_per_s": "tokens per second, or samples if the model takes no sequences",
    "token_s": "seconds per token",
    **{name: f"part of the step on the slowest rank: {meaning}" for name, meaning in STEP_PARTS.items()},
    "peak_rss_bytes": "peak resident set of the rank with the highest peak memory",
    "peak_allocated_bytes": "peak memory in CUDA tensors of this rank",
    "peak_reserved_bytes": "peak memory that torch's CUDA allocator reserved on this rank",
    "used_bytes": "peak memory in use on the device with the highest use",
    "peak_memory_bytes": "`peak_rss_bytes` on a CPU, `peak_allocated_bytes` on a GPU",
    "staleness_mean": "mean delay of gradients, in updates",
    "staleness_max": "largest delay of a gradient, in updates",
    "joules_per_step": "energy of all devices in a measured step",
    "joules_source": "`energy counter` or `power readings`",
    "joules_reason": "why the energy is unknown",
    "token_j": "energy per token, from one source for the whole session",
}


def numbers(results: Results, *sessions: Session) -> pd.DataFrame:
    """Return one row per launch and configuration, including launches that do not count.

    The columns are the keys of `COLUMNS`, which explains them, and the fields of `plan.case.Case`; `device` is the
    device that `auto` selected. A session of collectives has one row per size and form instead, with the columns of
    `collectives.bus.CALL_COLUMNS`. Unknown numbers are NaN, unknown fields `None`.
    All columns are explained in docs/reference/numbers.md.
    """
    kinds = {session.kind for session in sessions}
    gpus = _machines(results, sessions)
    own = results.of(gpus)
    table = own.launch[list(_STORED)].rename(columns=_STORED)
    if kinds == {CollectiveCase.kind}:
        from parabench.analysis.collectives.bus import call_numbers

        return call_numbers(table, own, sessions[0])
    table = table.join(_case_fields(table, gpus))
    table = table.join(step_numbers(own.steps, table.set_index("launch_id")["device"]), on="launch_id")
    table = table.assign(n_steps=table["n_steps"].fillna(0).astype(int), **_watched(table))
    table = _interleaved(table, own.steps)
    chosen = {session.id: session.interleaved.get("side", "") for session in sessions}
    table = table[table["session"].isin(list(chosen))].reset_index(drop=True)
    readings = own.read("device_sample", LAUNCH_NUMBERS["device_sample"])
    used = readings[readings["metric"] == "used_bytes"].groupby("launch_id")["value"].max()
    tokens = (table["global_batch"] * table["seq_len"]).mask(table["case"].isin(_found(own, BATCH_UNSEEN, "case_id")))
    energy = launch_energy(table, readings)
    # A session's energy per token is from one source: the energy counter, if any launch has it.
    counter = energy["joules_source"] == COUNTER
    joules = energy["joules_per_step"].where(counter | ~counter.groupby(table["session"]).transform("any"))
    table = table.assign(
        variant=table["session"].map(chosen),
        verified=~table["launch_id"].isin(_found(own, UNVERIFIED, "launch_id")),
        tokens_per_s=tokens / table["step_s"],
        token_s=table["step_s"] / tokens,
        **_parts(own.medians, table),
        **_rank_numbers(own.whole, table["launch_id"]),
        # Configurations that share a launch share the memory of its devices.
        used_bytes=table["launch_id"].map(used).astype(float).mask(table["in_turns"]),
        **{str(name): energy[name] for name in energy},
        token_j=joules / tokens,
    )
    # Selecting rows is much faster from the copy, which has one block of memory per type.
    return _with_peak_memory(table)[[*COLUMNS, *DEFAULTS]].copy()


def _machines(results: Results, sessions: Iterable[Session]) -> dict[int, bool]:
    """Return {session id: whether its machine had GPUs} for sessions and the variants interleaved with them."""
    found = {session.id: bool(session.environment.get("gpus")) for session in sessions}
    runs = {session.interleaved["run"] for session in sessions if session.interleaved}
    if runs:
        table = results.whole_store.session
        for at, environment, tied in zip(table["id"], table["environment"], table["interleaved"], strict=True):
            if json_text.parsed(tied).get("run") in runs:
                found[at] = bool(json_text.parsed(environment).get("gpus"))
    return found


def _found(results: Results, code: str, column: str) -> pd.Series[Any]:
    """Return the cells of `column` (launch or configuration ids) of the stored warnings with this code."""
    return results.finding.loc[results.finding["code"] == code, column]


def _case_fields(launches: pd.DataFrame, gpus: Mapping[int, bool]) -> pd.DataFrame:
    """Return the fields of each launch's configuration, its `label` and its `statistic`.

    `gpus` has by session id whether the machine had GPUs, which decides the device if it is `auto`.
    """
    pairs = list(zip(launches["case_json"], launches["session"].map(gpus), strict=True))
    cases = {pair: trained_case_of(pair[0]) for pair in dict.fromkeys(pairs)}
    labels = unique_labels({case.id: case for case in cases.values()})
    fields = {}
    for pair, case in cases.items():
        device = case.device if case.device != "auto" else accelerator.TYPE if pair[1] else "cpu"
        fields[pair] = {**case.cells(), "device": device, "label": labels[case.id], "statistic": STATISTIC[device]}
    names = (*DEFAULTS, "label", "statistic")
    return pd.DataFrame([fields[pair] for pair in pairs], index=launches.index, columns=names)


@cache
def trained_case_of(text: str) -> Case | RecordedCase:
    """Return the configuration in the `case_json` of a launch."""
    values = json_text.parsed(text)
    return RecordedCase.from_dict(values) if values.get("kind") == RecordedCase.kind else Case.from_dict(values)


def case_of(text: str) -> Case:
    """Return the configuration of a launch from its `case_json`.

    Raises UsageError if another tool recorded the training run: its axes are unknown.
    """
    case = trained_case_of(text)
    if isinstance(case, RecordedCase):
        raise UsageError(f"{case.label} was recorded, not configured by parabench, so its configuration is unknown")
    return case


def case_type(kind: object) -> type[Case | CollectiveCase | RecordedCase]:
    """Return the class of the configurations in sessions of this kind (`Session.kind`)."""
    types = (CollectiveCase, RecordedCase)
    return next((each for each in types if each.kind == kind), Case)


def step_numbers(steps: pd.DataFrame, device: pd.Series[str]) -> pd.DataFrame:
    """Return `step_s`, `p90_s`, `drift` and `n_steps` by launch id, from `Results.steps`.

    `device` is the device by launch id. Steps of unknown length do not count. Launches without steps have no row.
    """
    steps = steps[np.isfinite(steps["step_s"].astype(float)) & steps["launch_id"].isin(device.index)]
    found = [pd.DataFrame(columns=["step_s", "p90_s", "drift", "n_steps"], dtype=float)]
    for q, own in steps.groupby(steps["launch_id"].map(device).map(QUANTILE)):
        of_launch = own.groupby("launch_id")["step_s"]
        place, size = of_launch.cumcount(), of_launch.transform("size")
        third = size // 3
        early, late = (
            own[(third >= 3) & part].groupby("launch_id")["step_s"].quantile(q)  # one or two steps say nothing
            for part in (place < third, place >= size - third)
        )
        columns = {"step_s": of_launch.quantile(q), "p90_s": of_launch.quantile(0.9)}
        columns |= {"drift": late / early.where(early > 0) - 1, "n_steps": of_launch.size()}
        found.append(pd.DataFrame(columns))
    return pd.concat(found[1:] or found)


def _watched(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the columns `step_s`, `undisturbed_s` and `statistic`, which differ for watched loops.

    Their `step_s` is the mean step, wall time over steps, because their expensive steps are part of the answer.
    """
    loops = loop_times(table["facts"])
    watched = pd.Series([each is not None for each in loops], table.index, dtype=bool)
    means = pd.Series([np.nan if each is None else each.step_s for each in loops], table.index, dtype=float)
    known = watched & table["step_s"].notna()
    return {
        "step_s": table["step_s"].mask(known, means),
        "undisturbed_s": table["step_s"].where(known),
        "statistic": table["statistic"].mask(watched, MEAN),
    }


def _interleaved(table: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the table with `in_turns`, `shared_launch`, `turns`, `counted` and `timed`, and with corrected `step_s`.

    Interleaved configurations are compared round by round: first inside a shared launch, then with the same
    configuration of the other variant of an `ab`.

    If a configuration succeeded together with another one, its shared launches are `timed`, because differences between
    launches cancel there. Otherwise its separate launches are, if it has some.
    """
    interleaving = turns_of(table["facts"])
    in_turns = shares_launch(interleaving, table["repetition"])
    found = table.assign(in_turns=in_turns, shared_launch=table["launch_id"], turns=1.0)
    paired = pd.Series([each is not None and "pair" in each for each in interleaving], table.index, dtype=bool)
    if in_turns.any():
        # Launches with the same key share processes, or are a pair of the two variants of an `ab`.
        mine = [each if shared else {} for each, shared in zip(interleaving, in_turns, strict=True)]
        rows = list(zip(mine, table["session"], table["repetition"], table["case"], strict=True))
        launches = [(at, number, *each["cases"]) if each else None for each, at, number, _ in rows]
        pairs = [(each["pair"]["run"], number, case) if "pair" in each else None for each, _, number, case in rows]
        own, pair = (pd.Series(keys, table.index, dtype=object) for keys in (launches, pairs))
        rounds = step_turns(interleaving[in_turns], table["launch_id"], steps)
        first = table["launch_id"].groupby(own).transform("first")
        found = found.assign(
            shared_launch=first.fillna(table["launch_id"]).astype(int),
            turns=[float(each["protocol"]["rounds"]) if each else 1.0 for each in mine],
            step_s=in_rounds(in_rounds(table["step_s"], own, rounds), pair, rounds),
        )
    counted = (found["repetition"] >= FIRST_REPETITION) & (found["status"] == Status.OK) & (found["step_s"] > 0)
    shared = counted.groupby(found["shared_launch"]).transform("sum") > 1
    together = counted & in_turns & (shared | paired)
    by = [found["session"], found["case"]]
    has_together, has_alone = (each.groupby(by).transform("any") for each in (together, counted & ~in_turns))
    return found.assign(counted=counted, timed=counted & ((has_together | ~has_alone) == in_turns))


def _parts(medians: pd.DataFrame, table: pd.DataFrame) -> dict[str, pd.Series[float]]:
    """Return the seconds of each part of the step, one value per launch.

    These are medians on the slowest rank, the rank with the longest median step. Watched loops have means.
    """
    of_rank = medians.pivot(index=["launch_id", "rank"], columns="metric", values="value")
    of_rank = of_rank.reindex(columns=["step_s", *STEP_PARTS]).dropna(subset=["step_s"]).reset_index()
    slowest = of_rank.sort_values(["step_s", "rank"], ascending=[False, True]).drop_duplicates("launch_id")
    parts = slowest.set_index("launch_id").reindex(table["launch_id"])[list(STEP_PARTS)].set_axis(table.index)
    for at, loop in zip(table.index, loop_times(table["facts"]), strict=True):
        if loop is not None:
            parts.loc[at] = [loop.part_s(name) for name in STEP_PARTS]
    return {name: parts[name] for name in STEP_PARTS}


def _rank_numbers(whole: pd.DataFrame, ids: pd.Series[int]) -> dict[str, pd.Series[float]]:
    """Return memory peaks (the maximum over ranks, NaN if one is unknown) and staleness of the launches in `ids`.

    The mean staleness is over the ranks that recorded it, because all send equally many gradients.
    """
    metrics = [*PEAKS, "staleness_mean", "staleness_max"]
    whole = whole[(whole["phase"] != Phase.INSTRUMENT) & whole["metric"].isin(metrics)]
    found = whole.groupby(["metric", "launch_id"])["value"].agg(["max", "mean", "count", "size"])
    largest = found["max"].where((found["count"] == found["size"]) | ~found.index.isin(PEAKS, 0))
    of = {name: found["mean"] if name == "staleness_mean" else largest for name in metrics}
    known = set(found.index.unique(0))
    return {name: ids.map(of[name].loc[name]) if name in known else ids.map({}).astype(float) for name in metrics}


def _with_peak_memory(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with `peak_memory_bytes`, the peak that the device of each row has."""
    peak = table["peak_rss_bytes"].where(table["device"] == "cpu", table["peak_allocated_bytes"])
    return table.assign(peak_memory_bytes=peak)


def levels(launches: pd.DataFrame, number: str) -> dict[str, float]:
    """Return the level of each configuration: the geometric mean of `number` over its launches, in the number's unit.

    It is for the display of single configurations. Ratios are from `contrasts.fit`, which removes differences between
    launches and repetitions.
    """
    logs = pd.Series(np.log(launches[number].astype(float)), launches.index)
    return dict(np.exp(logs.groupby(launches["case"], sort=False).mean()))


# The numbers of a configuration's launches in base and in candidate, each as `by_case` returns them.
Launches = tuple["pd.Series[float]", "pd.Series[float]"]


def by_case(launches: pd.DataFrame, number: str) -> dict[str, pd.Series[float]]:
    """Return a number of the launches of each configuration, indexed by repetition and launch id, in this order."""
    ordered = launches.sort_values(["case", "repetition"], kind="stable").set_index(["repetition", "launch_id"])
    return {str(case): own.astype(float) for case, own in ordered[number].groupby(ordered["case"])}


_NONE = pd.Series(index=pd.MultiIndex.from_tuples([], names=["repetition", "launch_id"]), dtype=float)


def of_pair(
    pair: tuple[str, str], base: Mapping[str, pd.Series[float]], other: Mapping[str, pd.Series[float]], paired: bool
) -> Launches:
    """Return the launches of the configuration with the ids `pair`; if `paired`, only those in common repetitions."""
    first, second = base.get(pair[0], _NONE), other.get(pair[1], _NONE)
    if not paired:
        return first, second
    both = first.index.unique(0).intersection(second.index.unique(0))
    return first[first.index.isin(both, 0)], second[second.index.isin(both, 0)]


def launch_ids(launches: pd.Series[float]) -> tuple[int, ...]:
    """Return the launch ids of a series from `by_case`."""
    return tuple(launches.index.get_level_values("launch_id").tolist())


def case_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per configuration, fastest first; configurations without a number are last.

    `step_time_s` is the level of the `timed` launches, `low_s` and `high_s` are their extremes. `status` is 'ok', or
    counts such as '2 ok, 1 oom'. Parts of the step are medians, memory peaks maxima.
    """
    own = table[table["repetition"] >= FIRST_REPETITION]
    timed = own[own["timed"]]
    every, counted = (of.groupby("case", sort=False) for of in (own, own[own["counted"]]))
    seconds = timed.groupby("case", sort=False)["step_s"]
    found = (
        own.drop_duplicates("case")
        .set_index("case")[["label", *DEFAULTS, "statistic"]]
        .assign(
            status=every["status"].agg(status_counts),
            error=every["error"].first(),
            n_ok=counted.size(),
            n_launches=every.size(),
            step_time_s=pd.Series(levels(timed, "step_s"), dtype=float),
            low_s=seconds.min(),
            high_s=seconds.max(),
            spread=(seconds.max() / seconds.min() - 1).where(seconds.size() > 1),
            p90_s=pd.Series(levels(timed, "p90_s"), dtype=float),
            **{name: counted[name].median() for name in STEP_PARTS},
            **{name: counted[name].max() for name in MEMORY},
            staleness_mean=counted["staleness_mean"].mean(),
            staleness_max=counted["staleness_max"].max(),
        )
    )
    found["error"] = found["error"].astype(object).where(found["error"].notna(), None)
    found = found.assign(**{name: found[name].fillna(0).astype(int) for name in ("n_ok", "n_launches")})
    tokens = found["global_batch"] * found["seq_len"] / found["step_time_s"]
    found = found.assign(tokens_per_s=tokens.where(counted["tokens_per_s"].max().reindex(found.index).notna()))
    found = _with_peak_memory(found).sort_values("step_time_s", kind="stable")
    return found.rename_axis("case_id").reset_index().copy()


def only_ranked(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the launches of ranked strategies. Baselines without communication, for example, are not ranked."""
    return launches[np.array([entry_of(str(name)).ranked for name in launches["strategy"]], dtype=bool)]


def same_work(table: pd.DataFrame, work: Sequence[str] = WORK) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Return (the fields `work` of a workload, its rows of the table) for each workload, in order of appearance."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for at, row in enumerate(records(table, work)):
        places.setdefault(tuple(None if value != value else value for value in row.values()), []).append(at)
    return [(dict(zip(work, values, strict=True)), table.iloc[own]) for values, own in places.items()]


def work_text(work: Mapping[str, Any]) -> str:
    """Return the fields of a workload as text: 'model=gpt-nano, global_batch=16'."""
    return ", ".join(f"{name}={value}" for name, value in work.items() if value is not None)


def status_counts(statuses: Iterable[str]) -> str:
    """Return the common status of launches, or the number of each status: '2 ok, 1 oom'."""
    counts = Counter(statuses)
    return ", ".join(f"{n} {status}" for status, n in counts.items()) if len(counts) > 1 else next(iter(counts))


def unique_labels(cases: Mapping[str, Case | RecordedCase]) -> dict[str, str]:
    """Return {case id: label}. If labels are equal, the fields that differ are added to them."""
    labels = {key: case.label for key, case in cases.items()}
    alike: dict[str, list[str]] = {}
    for key, label in labels.items():
        alike.setdefault(label, []).append(key)
    for label, keys in alike.items():
        if len(keys) > 1:
            same = {key: cases[key].cells() for key in keys}
            differing = [name for name in DEFAULTS if len({values[name] for values in same.values()}) > 1]
            for key, values in same.items():
                texts = ((name.replace("_", " "), values[name]) for name in differing)
                more = (f"{name} {'default' if value is None else value}" for name, value in texts)
                labels[key] = f"{label} ({', '.join(more)})"
    return labels
