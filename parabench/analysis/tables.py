"""From stored rows to tidy tables: one row per step, per launch, per case.

The replication unit is the launch: steps become one number per launch before anything is averaged or
compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parabench.analysis.launch_number import QUANTILE, STATISTIC, device_of, quantile
from parabench.analysis.loop_time import MEAN, loop_times, mean_parts
from parabench.analysis.stored import environment_of, interleaved_of, trained_case_of
from parabench.analysis.turns import (
    pair_launches,
    paired_numbers,
    shared_launches,
    turn_counts,
    turns_told,
)
from parabench.plan.case import Case, RecordedCase
from parabench.store.columns import Array, Columns, R, Rows, coded, medians, places, records, reduced
from parabench.store.metrics import STEP_PARTS
from parabench.store.record import BATCH_UNSEEN, FIRST_BLOCK, TWIN_BLOCK, UNVERIFIED, Phase, Status
from parabench.store.results import Results
from parabench.strategies import entry_of

if TYPE_CHECKING:
    import pandas as pd

    from parabench.analysis.session import Session

# Two cases do the same work, and may be ranked against each other, when these fields agree. `split` is none of them:
# it changes which samples come in which step, not how much there is to compute. `vocabulary` changes what a token is.
WORK = ("model", "data", "vocabulary", "global_batch", "seq_len", "precision", "device")
PEAKS = ("peak_rss_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
MEMORY = (*PEAKS, "used_bytes")
STALENESS = ("staleness_mean", "staleness_max")

# What of a store `results.load` has to read for less than a report, as SQL conditions: no readings and calls at all; or
# those that numbers of launches are made of.
STEP_TIMES = dict.fromkeys(("collective", "device_sample", "host_sample", "span"), "FALSE")
LAUNCH_NUMBERS = {
    "device_sample": "rank IS NULL AND metric IN ('used_bytes', 'energy_j', 'power_w')",
    # What `parabench collectives` measured; calls of a training's instrumented steps stay out.
    "collective": f"phase IS NOT '{Phase.INSTRUMENT}'",
    "host_sample": "FALSE",
    "span": "FALSE",
}


def launch_table(results: Results, session: Session) -> pd.DataFrame:
    """`launch_columns` as a DataFrame."""
    return launch_columns(results, session).frame()


def launch_columns(results: Results, session: Session) -> Columns:
    """Return one row per launch of the session, including the reference launch (`block` is -1).

    Besides the stored columns and the case's fields, a row has:

    - `label`, unique among cases, and `verified`, whether its losses were compared with one device's;
    - `launch_step_s`, the per-launch `statistic`; `undisturbed_s`, as `_loop_numbers` returns it; `p90_s`; `drift`, the
      last third of the steps against the first, as a fraction; `n_steps`; `tokens_per_s`;
    - the parts of a step in seconds: the median on the slowest rank, or the mean over a watched loop;
    - memory peaks in bytes, the maximum over ranks or devices; `peak_memory_bytes` is the peak that answers are about;
    - `staleness_mean` over ranks and `staleness_max` of all ranks.

    Unknown is NaN.
    Raises UsageError for a session that trained nothing.
    """
    if session.kind != RecordedCase.kind:
        session.require("training", results.path)
    gpus = {session.id: bool(session.environment.get("gpus"))} | _gpus_of_partner(results, session)
    results = results.of(gpus)
    launches = results.launch_columns
    both = numbered(launches.assign(launch_id=launches["id"]), results.steps_columns, gpus)
    table: Columns = both[launches["session_id"] == session.id]
    ids = table["launch_id"]
    warned = set(results.finding_columns[results.finding_columns["code"] == UNVERIFIED]["launch_id"].tolist())
    tokens = table["global_batch"] * table["seq_len"] / table["launch_step_s"]
    uncounted = set(results.finding_columns[results.finding_columns["code"] == BATCH_UNSEEN]["case_id"].tolist())
    tokens = np.where([case in uncounted for case in table["case_id"].tolist()], np.nan, tokens)
    table = table.assign(verified=np.array([at not in warned for at in ids.tolist()], dtype=bool), tokens_per_s=tokens)
    whole = results.whole_columns
    used = results.columns("device_sample", "rank IS NULL AND metric = 'used_bytes'")
    most_used = reduced(np.fmax, used["value"].astype(float), places(used["launch_id"], ids), len(ids))
    table = table.assign(
        **mean_parts(loop_times(table["facts"]), _parts(results.medians_columns, ids)),
        **_peaks(whole, ids),
        # What cases that share a launch hold of a device is no one's.
        used_bytes=np.where(table["in_turns"].astype(bool), np.nan, most_used),
        **_staleness(whole, ids),
    )
    return table.assign(peak_memory_bytes=_peak_memory(table))


def _gpus_of_partner(results: Results, session: Session) -> dict[int, bool]:
    """{id: whether its machine had GPUs} of the other side of the session, where that is a side of an `ab`."""
    if not session.interleaved:
        return {}
    return {
        row["id"]: bool(environment_of(results, row).get("gpus"))
        for row in records(results.whole_store.session_columns, ("id", "environment", "interleaved"))
        if interleaved_of(results, row).get("run") == session.interleaved["run"]
    }


def numbered(launches: Rows, steps: Rows, gpus: Mapping[int, bool]) -> Columns:
    """Return launches with the fields of their case, `label`, `statistic` and `n_steps`.

    Further columns are `in_turns` (it shared its ranks with other cases), `shared_launch` (the first of those that
    did), `turns` (how many its number is made of), `timed` (its step time is compared, as `_timed` chooses),
    `launch_step_s`, `p90_s` and `drift`.

    `launches` are rows of the store of any sessions, of an `ab` of both sides, by rising `launch_id`; `steps` is
    `Results.steps`; `gpus` tells of each session whether its machine had some.
    """
    ids = np.asarray(launches["launch_id"])
    fields = _case_fields(launches["case_json"], [gpus[session] for session in launches["session_id"]])
    table = Columns({name: np.asarray(launches[name]) for name in _KEPT}).assign(**fields)
    table = table.assign(**step_numbers(steps, ids, table["device"]))
    table = table.assign(**_loop_numbers(table))
    told = turns_told(table["facts"])
    # What a second copy of a case measured is compared with the first, and with nothing else.
    in_turns = np.array([each is not None for each in told], dtype=bool) & (table["block"] != TWIN_BLOCK)
    first, numbers, turns = ids, table["launch_step_s"], np.ones(len(ids))
    paired = np.array([each is not None and "pair" in each for each in told], dtype=bool)
    if in_turns.any():
        first = shared_launches(ids, in_turns, launches["session_id"], table["block"], told)
        numbers = paired_numbers(ids, in_turns, first, numbers, told, steps)
        pair = pair_launches(ids, table["case_id"], table["block"], told)
        if (pair != ids).any():
            numbers = paired_numbers(ids, in_turns, pair, numbers, told, steps)
        turns = turn_counts(in_turns, told)
    table = table.assign(in_turns=in_turns, shared_launch=first, turns=turns, launch_step_s=numbers)
    return table.assign(timed=_timed(table, launches["session_id"], paired))


def _loop_numbers(table: Columns) -> dict[str, Array]:
    """Return `launch_step_s`, `undisturbed_s` and `statistic` of each launch. The number of a watched loop is its mean
    step, wall time over steps, because its expensive steps are part of the answer. The quantile of its steps is
    `undisturbed_s`, which is NaN for all other launches."""
    loops = loop_times(table["facts"])
    watched = np.array([each is not None for each in loops], dtype=bool)
    means = np.array([np.nan if each is None else each.step_s for each in loops], dtype=float)
    known = watched & np.isfinite(table["launch_step_s"])
    return {
        "launch_step_s": np.where(known, means, table["launch_step_s"]),
        "undisturbed_s": np.where(known, table["launch_step_s"], np.nan),
        "statistic": np.where(watched, MEAN, table["statistic"]).astype(object),
    }


def _case_fields(stored: Iterable[str], gpus: Iterable[bool]) -> dict[str, Array]:
    """For each launch its case's fields, with the device that `auto` meant, its `label`, and its `statistic`."""
    # One by one in Python: numpy would make arrays of pairs.
    of: dict[tuple[str, bool], int] = {}
    codes = [of.setdefault(pair, len(of)) for pair in zip(stored, gpus, strict=True)]
    cases = [trained_case_of(text) for text, _ in of]
    ids = [case.id for case in cases]
    labels = unique_labels(dict(zip(ids, cases, strict=True)))
    rows = []
    for at, case, (_, there) in zip(ids, cases, of, strict=True):
        device = device_of(case.device, there)
        rows.append((*(case.cells() | {"device": device}).values(), labels[at], STATISTIC[device]))
    names = (*Case().to_dict(), "label", "statistic")
    fields = Columns.of(names, rows)[np.array(codes, dtype=np.int64)]
    return {name: fields[name] for name in names}


def step_numbers(steps: Rows, ids: Array, devices: Array) -> dict[str, Array]:
    """Of each launch launch_step_s, p90_s, drift and n_steps; `steps` as `Results.steps` has them."""
    seconds, place = np.asarray(steps["step_s"], dtype=float), places(np.asarray(steps["launch_id"]), ids)
    # A step without end has no known length either.
    known = np.isfinite(seconds) & (place >= 0)
    seconds, place = seconds[known], place[known]
    first = np.flatnonzero(np.append(True, place[1:] != place[:-1])[: len(place)])
    counts = np.diff(np.append(first, len(place)))
    quantiles = np.array([QUANTILE[device] for device in devices], dtype=float)[place[first]]
    found = {name: np.full(len(ids), np.nan) for name in ("launch_step_s", "p90_s", "drift")}
    found["n_steps"] = np.bincount(place, minlength=len(ids))
    # Launches of as many steps are the columns of one matrix: a thousand quantiles at once.
    for n, q in sorted(set(zip(counts.tolist(), quantiles.tolist(), strict=True))):
        own = first[(counts == n) & (quantiles == q)]
        matrix = seconds[own + np.arange(n)[:, None]]  # a column a launch
        third = n // 3
        drift = np.full(len(own), np.nan)
        if third >= 3:  # the quantile of one or two steps says nothing
            late, early = (quantile(np.sort(part, axis=0), q) for part in (matrix[-third:], matrix[:third]))
            np.divide(late, early, out=drift, where=early > 0)
            drift -= 1
        ordered = np.sort(matrix, axis=0)
        found["launch_step_s"][place[own]] = quantile(ordered, q)
        found["p90_s"][place[own]] = quantile(ordered, 0.9)
        found["drift"][place[own]] = drift
    return found


def _peak_memory(table: Columns) -> Array:
    """Bytes on the rank that holds most: of its process on the CPU, on CUDA what is allocated of its device."""
    peak: Array = np.where(table["device"] == "cpu", table["peak_rss_bytes"], table["peak_allocated_bytes"])
    return peak


_KEPT = (
    "launch_id", "case_id", "case_json", "block", "position", "status", "error", "failed_rank", "failed_signal",
    "traceback", "started_utc", "wall_s", "facts",
)  # fmt: skip


def valid_launches(launches: R) -> R:
    """The launches that count: succeeded, with a number, and not the session's reference."""
    of = launches["status"] == Status.OK
    good: R = launches[(launches["block"] >= FIRST_BLOCK) & of & (launches["launch_step_s"] > 0)]
    return good


def timed_launches(launches: R) -> R:
    """Return the launches whose step times are compared, as `_timed` chooses them."""
    timed: R = launches[np.asarray(launches["timed"], dtype=bool)]
    return timed


def _timed(launches: Columns, session: Any, paired: Array) -> Array:
    """Return for each launch whether its step time is compared; `paired` launches share with the other side of an `ab`.

    If a case succeeded in a shared launch together with another case, or with the other side, its shared launches
    count: differences between launches cancel there. Otherwise its own launches count, and if it has none, its shared
    launches. So cases whose partners failed are compared by common repetitions.
    """
    valid = (launches["block"] >= FIRST_BLOCK) & (launches["status"] == Status.OK) & (launches["launch_step_s"] > 0)
    _, launch = np.unique(launches["shared_launch"], return_inverse=True)
    together = launches["in_turns"] & ((np.bincount(launch, valid, len(launch))[launch] > 1) | paired)
    cases = list(zip(np.asarray(session).tolist(), launches["case_id"].tolist(), strict=True))
    shared = {case for case, there in zip(cases, (valid & together).tolist(), strict=True) if there}
    own = {case for case, there in zip(cases, (valid & ~launches["in_turns"]).tolist(), strict=True) if there}
    uses_shared = np.array([case in shared or case not in own for case in cases], dtype=bool)
    timed: Array = valid & (uses_shared == launches["in_turns"])
    return timed


def levels(launches: Rows, number: str) -> dict[str, float]:
    """Return the level of each case: the geometric mean of `number` over its launches, in the number's unit.

    It is what is shown for a case. Ratios between cases are those of `block_model.fit`, which removes differences
    between launches and repetitions.
    """
    case, cases = coded(launches["case_id"])
    logs = np.log(np.asarray(launches[number], dtype=float))
    means = np.exp(np.bincount(case, logs, len(cases)) / np.bincount(case, minlength=len(cases)))
    return dict(zip(cases, means.tolist(), strict=True))


def case_table(launches: Rows) -> pd.DataFrame:
    """`case_columns` as a DataFrame."""
    return case_columns(launches).frame()


def case_columns(launches: Rows) -> Columns:
    """One row per case, fastest first, those without a number last; the reference launch is left out.

    `step_time_s` is the case's step time, wherever one is shown: the level of the launches whose step times are
    compared (`timed_launches`). `low_s` and `high_s` are the extreme launches, `spread` = high / low - 1
    (NaN for fewer than two launches). `n_ok` of its `n_launches` count. `status` tells how they ended, 'ok' or a count
    such as '2 ok, 1 oom'; `error` the first error. Parts are medians over the launches that count, peaks maxima."""
    own = launches[launches["block"] >= FIRST_BLOCK]
    case, cases = coded(own["case_id"])
    n = len(cases)
    valid, timed = valid_launches(own), timed_launches(own)
    place = dict(zip(cases, range(n), strict=True))
    of_valid, of_timed = (
        np.array([place[each] for each in some["case_id"]], dtype=np.int64) for some in (valid, timed)
    )
    statuses: list[list[str]] = [[] for _ in cases]
    errors: list[str | None] = [None] * n
    for at, status, error in zip(case.tolist(), own["status"], own["error"], strict=True):
        statuses[at].append(status)
        if errors[at] is None and isinstance(error, str):
            errors[at] = error

    def over_launches(ufunc: np.ufunc, name: str) -> Array:
        return reduced(ufunc, np.asarray(valid[name], dtype=float), of_valid, n)

    def timed_levels(name: str) -> Array:
        found = levels(timed, name)
        return np.array([found.get(each, np.nan) for each in cases], dtype=float)

    counted, n_launches = np.bincount(of_valid, minlength=n), np.bincount(case, minlength=n)
    seconds = np.asarray(timed["launch_step_s"], dtype=float)
    low, high = (reduced(ufunc, seconds, of_timed, n) for ufunc in (np.fmin, np.fmax))
    first = np.unique(case, return_index=True)[1]
    stale = np.asarray(valid["staleness_mean"], dtype=float)
    told = np.bincount(of_valid, ~np.isnan(stale), n)
    table = Columns(
        {
            "case_id": np.array(cases, dtype=object),
            **{name: np.asarray(own[name])[first] for name in ("label", *Case().to_dict(), "statistic")},
            "status": np.array([status_counts(each) for each in statuses], dtype=object),
            "error": np.array(errors, dtype=object),
            "n_ok": counted,
            "n_launches": n_launches,
            "step_time_s": timed_levels("launch_step_s"),
            "low_s": low,
            "high_s": high,
            "spread": np.where(np.bincount(of_timed, minlength=n) > 1, high / low - 1, np.nan),
            "p90_s": timed_levels("p90_s"),
            **{name: medians(np.asarray(valid[name], dtype=float), of_valid, n) for name in STEP_PARTS},
            **{name: over_launches(np.fmax, name) for name in MEMORY},
            "staleness_mean": np.bincount(of_valid, np.nan_to_num(stale), n) / np.where(told > 0, told, np.nan),
            "staleness_max": over_launches(np.fmax, "staleness_max"),
        }
    )
    tokens = table["global_batch"] * table["seq_len"] / table["step_time_s"]
    counted_tokens = np.isfinite(over_launches(np.fmax, "tokens_per_s"))
    table = table.assign(tokens_per_s=np.where(counted_tokens, tokens, np.nan))
    table = table.assign(peak_memory_bytes=_peak_memory(table))
    ordered: Columns = table[np.argsort(table["step_time_s"], kind="stable")]
    return ordered


def mean_peaks(launches: Rows) -> dict[str, float]:
    """Return {case id: bytes}, the level of the peak memory over the launches that count."""
    good = valid_launches(launches)
    return levels(good[good["peak_memory_bytes"] > 0], "peak_memory_bytes")


def from_case(launches: pd.DataFrame, cases: pd.DataFrame) -> pd.Series[float]:
    """How far each launch's number is from its case's step time, as a fraction; NaN for the only launch of a case."""
    known = cases.set_index("case_id")
    seconds = known["step_time_s"].astype(float).where(known["n_ok"] > 1)
    return launches["launch_step_s"] / launches["case_id"].map(seconds) - 1


def block_medians(launches: pd.DataFrame, deviation: pd.Series[float]) -> pd.Series[float]:
    """By block: the median of how far its launches are from their cases, `from_case` of them; no entry where none is
    known. A trend of it is the machine's, for every block has its cases in an order of its own."""
    return deviation.groupby(launches["block"]).median().dropna()


def only_ranked(launches: R) -> R:
    """Without what is not ranked, such as training without communication."""
    ranked: R = launches[np.array([entry_of(str(name)).ranked for name in launches["strategy"]], dtype=bool)]
    return ranked


def same_work(table: R, work: Sequence[str] = WORK) -> list[tuple[dict[str, Any], R]]:
    """The rows of each work, in the order in which the works first appear, with the fields that define it."""
    at: dict[tuple[Any, ...], int] = {}
    # NaN, a number that is unknown, is not equal to itself.
    known = [tuple(None if value != value else value for value in row.values()) for row in records(table, work)]
    codes = np.array([at.setdefault(values, len(at)) for values in known], dtype=np.int64)
    return [(dict(zip(work, values, strict=True)), table[codes == place]) for values, place in at.items()]


def status_counts(statuses: Iterable[str]) -> str:
    """One status where all have it, else how many have which: '2 ok, 1 oom'."""
    counts = Counter(statuses)
    return ", ".join(f"{n} {status}" for status, n in counts.items()) if len(counts) > 1 else next(iter(counts))


def _parts(by_rank: Columns, ids: Array) -> dict[str, Array]:
    """Per launch, each part on the rank whose median step is longest."""
    place = places(by_rank["launch_id"], ids)
    rank, metric, value = (by_rank[name] for name in ("rank", "metric", "value"))
    own = np.flatnonzero((metric == "step_s") & (place >= 0) & ~np.isnan(value))
    own = own[np.lexsort((rank[own], -value[own], place[own]))]
    there, first = np.unique(place[own], return_index=True)
    slowest = np.full(len(ids), -1)
    slowest[there] = rank[own][first]
    found = {name: np.full(len(ids), np.nan) for name in STEP_PARTS}
    of_slowest = place >= 0
    of_slowest[of_slowest] = rank[of_slowest] == slowest[place[of_slowest]]
    for name, values in found.items():
        rows = of_slowest & (metric == name)
        values[place[rows]] = value[rows]
    return found


def _peaks(whole: Columns, ids: Array) -> dict[str, Array]:
    """Each launch's peaks: the maximum over ranks, NaN when one is unknown."""
    steady = whole["phase"] != Phase.INSTRUMENT
    return {name: _of_ranks(np.maximum, whole[steady & (whole["metric"] == name)], ids) for name in PEAKS}


def _of_ranks(ufunc: np.ufunc, rows: Columns, ids: Array) -> Array:
    return reduced(ufunc, rows["value"], places(rows["launch_id"], ids), len(ids))


def _staleness(whole: Columns, ids: Array) -> dict[str, Array]:
    """Each launch's mean over the ranks that tell it (each sends as many gradients), and the largest."""
    known = ~np.isnan(whole["value"])
    mean, largest = (whole[known & (whole["metric"] == name)] for name in STALENESS)
    count = np.bincount(np.maximum(places(mean["launch_id"], ids), 0), minlength=max(1, len(ids)))[: len(ids)]
    return {
        "staleness_mean": _of_ranks(np.add, mean, ids) / np.maximum(count, 1),
        "staleness_max": _of_ranks(np.fmax, largest, ids),
    }


def unique_labels(cases: Mapping[str, Case | RecordedCase]) -> dict[str, str]:
    """A label per case id; where two would read the same, the fields that tell them apart are added."""
    labels = {key: case.label for key, case in cases.items()}
    alike: dict[str, list[str]] = {}
    for key, label in labels.items():
        alike.setdefault(label, []).append(key)
    for label, keys in alike.items():
        if len(keys) > 1:
            same = {key: cases[key].cells() for key in keys}
            differing = [name for name in Case().to_dict() if len({values[name] for values in same.values()}) > 1]
            for key, values in same.items():
                labels[key] = f"{label} ({', '.join(_field(name, values[name]) for name in differing)})"
    return labels


def _field(name: str, value: Any) -> str:
    return f"{re.sub('_', ' ', name)} {'default' if value is None else value}"
