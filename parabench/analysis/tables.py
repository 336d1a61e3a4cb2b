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
import pandas as pd

from parabench.analysis.launch_number import QUANTILE, STATISTIC, device_of
from parabench.analysis.loop_time import MEAN, loop_times, mean_parts
from parabench.analysis.stored import trained_case_of
from parabench.analysis.turns import (
    pair_launches,
    paired_numbers,
    shared_launches,
    turn_counts,
    turns_told,
)
from parabench.plan.case import Case, RecordedCase
from parabench.store import json_text
from parabench.store.frames import Array, records
from parabench.store.metrics import STEP_PARTS
from parabench.store.record import BATCH_UNSEEN, FIRST_BLOCK, TWIN_BLOCK, UNVERIFIED, Phase, Status
from parabench.store.results import Results
from parabench.strategies import entry_of

if TYPE_CHECKING:
    from parabench.analysis.session import Session

# Two cases do the same work, and may be ranked against each other, when these fields agree. `split` is none of them:
# it changes which samples come in which step, not how much there is to compute. `vocabulary` changes what a token is.
WORK = ("model", "data", "vocabulary", "global_batch", "seq_len", "precision", "device")
PEAKS = ("peak_rss_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
MEMORY = (*PEAKS, "used_bytes")

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
    launches, finding = results.launch.rename(columns={"id": "launch_id"}), results.finding
    table = numbered(launches, results.steps, gpus)[launches["session_id"] == session.id].reset_index(drop=True)
    uncounted = table["case_id"].isin(finding.loc[finding["code"] == BATCH_UNSEEN, "case_id"])
    unverified = table["launch_id"].isin(finding.loc[finding["code"] == UNVERIFIED, "launch_id"])
    tokens = table["global_batch"] * table["seq_len"] / table["launch_step_s"]
    used = results.read("device_sample", "rank IS NULL AND metric = 'used_bytes'").groupby("launch_id")["value"].max()
    table = table.assign(
        verified=~unverified,
        tokens_per_s=tokens.mask(uncounted),
        **mean_parts(loop_times(table["facts"]), _parts(results.medians, table["launch_id"])),
        **rank_numbers(results.whole, table["launch_id"]),
        # Configurations that share a launch share the memory of its devices.
        used_bytes=table["launch_id"].map(used).astype(float).mask(table["in_turns"]),
    )
    return table.assign(peak_memory_bytes=peak_memory(table))


def _gpus_of_partner(results: Results, session: Session) -> dict[int, bool]:
    """Return {session id: whether its machine had GPUs} of the other variant, if the session is one of an `ab`."""
    if not session.interleaved:
        return {}
    sessions = results.whole_store.session
    return {
        at: bool(json_text.parsed(environment).get("gpus"))
        for at, environment, tied in zip(sessions["id"], sessions["environment"], sessions["interleaved"], strict=True)
        if json_text.parsed(tied).get("run") == session.interleaved["run"]
    }


def numbered(launches: pd.DataFrame, steps: pd.DataFrame, gpus: Mapping[int, bool]) -> pd.DataFrame:
    """Return launches with the fields of their case, `label`, `statistic` and `n_steps`.

    Further columns are `in_turns` (it shared its ranks with other cases), `shared_launch` (the first of those that
    did), `turns` (how many its number is made of), `timed` (its step time is compared, as `_timed` chooses),
    `launch_step_s`, `p90_s` and `drift`.

    `launches` are rows of the store of any sessions, of an `ab` of both sides, by rising `launch_id`; `steps` is
    `Results.steps`; `gpus` tells of each session whether its machine had some. The rows keep their index.
    """
    table = launches[list(_KEPT)].join(_case_fields(launches, gpus))
    table = table.join(step_numbers(steps, table.set_index("launch_id")["device"]), on="launch_id")
    table["n_steps"] = table["n_steps"].fillna(0).astype(int)
    table = table.assign(**_loop_numbers(table))
    ids, session = table["launch_id"].to_numpy(), launches["session_id"].to_numpy()
    block, numbers, told = table["block"].to_numpy(), table["launch_step_s"].to_numpy(), turns_told(table["facts"])
    # What a second copy of a case measured is compared with the first, and with nothing else.
    in_turns = np.array([each is not None for each in told], dtype=bool) & (block != TWIN_BLOCK)
    first, turns = ids, np.ones(len(ids))
    paired = np.array([each is not None and "pair" in each for each in told], dtype=bool)
    if in_turns.any():
        first = shared_launches(ids, in_turns, session, block, told)
        numbers = paired_numbers(ids, in_turns, first, numbers, told, steps)
        pair = pair_launches(ids, table["case_id"].to_numpy(), block, told)
        if (pair != ids).any():
            numbers = paired_numbers(ids, in_turns, pair, numbers, told, steps)
        turns = turn_counts(in_turns, told)
    table = table.assign(in_turns=in_turns, shared_launch=first, turns=turns, launch_step_s=numbers)
    return table.assign(timed=_timed(table, session, paired))


def _loop_numbers(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return `launch_step_s`, `undisturbed_s` and `statistic` of each launch. The number of a watched loop is its mean
    step, wall time over steps, because its expensive steps are part of the answer. The quantile of its steps is
    `undisturbed_s`, which is NaN for all other launches."""
    loops = loop_times(table["facts"])
    watched = pd.Series([each is not None for each in loops], table.index, dtype=bool)
    means = pd.Series([np.nan if each is None else each.step_s for each in loops], table.index, dtype=float)
    known = watched & table["launch_step_s"].notna()
    return {
        "launch_step_s": table["launch_step_s"].mask(known, means),
        "undisturbed_s": table["launch_step_s"].where(known),
        "statistic": table["statistic"].mask(watched, MEAN),
    }


def _case_fields(launches: pd.DataFrame, gpus: Mapping[int, bool]) -> pd.DataFrame:
    """Return for each launch its case's fields, with the device that `auto` meant, its `label` and its `statistic`."""
    pairs = list(zip(launches["case_json"], launches["session_id"].map(gpus), strict=True))
    cases = {pair: trained_case_of(pair[0]) for pair in dict.fromkeys(pairs)}
    labels = unique_labels({case.id: case for case in cases.values()})
    fields = {}
    for pair, case in cases.items():
        device = device_of(case.device, pair[1])
        fields[pair] = {**case.cells(), "device": device, "label": labels[case.id], "statistic": STATISTIC[device]}
    names = (*Case().to_dict(), "label", "statistic")
    return pd.DataFrame([fields[pair] for pair in pairs], index=launches.index, columns=names)


def step_numbers(steps: pd.DataFrame, device: pd.Series[str]) -> pd.DataFrame:
    """Return `launch_step_s`, `p90_s`, `drift` and `n_steps` by launch id, from `Results.steps`.

    `device` is the device by launch id. Steps of unknown length do not count. Launches without steps have no row.
    """
    steps = steps[np.isfinite(steps["step_s"].astype(float)) & steps["launch_id"].isin(device.index)]
    quantiles = steps["launch_id"].map(device).map(QUANTILE)
    found = [_of_steps(own, q) for q, own in steps.groupby(quantiles)]
    return pd.concat(found) if found else pd.DataFrame(columns=list(_OF_STEPS), dtype=float)


_OF_STEPS = ("launch_step_s", "p90_s", "drift", "n_steps")


def _of_steps(steps: pd.DataFrame, q: float) -> pd.DataFrame:
    """Return the numbers of launches whose statistic is the quantile `q`."""
    of_launch = steps.groupby("launch_id")["step_s"]
    place, size = of_launch.cumcount(), of_launch.transform("size")
    third = size // 3
    early, late = (
        steps[(third >= 3) & part].groupby("launch_id")["step_s"].quantile(q)  # of one or two steps it says nothing
        for part in (place < third, place >= size - third)
    )
    numbers = (of_launch.quantile(q), of_launch.quantile(0.9), late / early.where(early > 0) - 1, of_launch.size())
    return pd.DataFrame(dict(zip(_OF_STEPS, numbers, strict=True)))


def peak_memory(table: pd.DataFrame) -> pd.Series[float]:
    """Bytes on the rank that holds most: of its process on the CPU, on CUDA what is allocated of its device."""
    return table["peak_rss_bytes"].where(table["device"] == "cpu", table["peak_allocated_bytes"])


_KEPT = (
    "launch_id", "case_id", "case_json", "block", "position", "status", "error", "failed_rank", "failed_signal",
    "traceback", "started_utc", "wall_s", "facts",
)  # fmt: skip


def valid_launches(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the launches that count: succeeded, with a number, and not the session's reference."""
    return launches[_counts(launches)]


def _counts(launches: pd.DataFrame) -> pd.Series[bool]:
    return (launches["block"] >= FIRST_BLOCK) & (launches["status"] == Status.OK) & (launches["launch_step_s"] > 0)


def timed_launches(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the launches whose step times are compared, as `_timed` chooses them."""
    return launches[launches["timed"]]


def _timed(launches: pd.DataFrame, session: Array, paired: Array) -> pd.Series[bool]:
    """Return for each launch whether its step time is compared; `paired` launches share with the other side of an `ab`.

    If a case succeeded in a shared launch together with another case, or with the other side, its shared launches
    count: differences between launches cancel there. Otherwise its own launches count, and if it has none, its shared
    launches. So cases whose partners failed are compared by common repetitions.
    """
    valid, in_turns = _counts(launches), launches["in_turns"].astype(bool)
    together = valid & in_turns & ((valid.groupby(launches["shared_launch"]).transform("sum") > 1) | paired)
    of_case = [session, launches["case_id"]]
    shared, own = (pd.Series(each).groupby(of_case).transform("any") for each in (together, valid & ~in_turns))
    return valid & ((shared | ~own) == in_turns)


def levels(launches: pd.DataFrame, number: str) -> dict[str, float]:
    """Return the level of each case: the geometric mean of `number` over its launches, in the number's unit.

    It is what is shown for a case. Ratios between cases are those of `block_model.fit`, which removes differences
    between launches and repetitions.
    """
    logs = pd.Series(np.log(launches[number].astype(float)), launches.index)
    return dict(np.exp(logs.groupby(launches["case_id"], sort=False).mean()))


def case_table(launches: pd.DataFrame) -> pd.DataFrame:
    """Return one row per case, fastest first, those without a number last; the reference launch is left out.

    `step_time_s` is the case's step time, wherever one is shown: the level of the launches whose step times are
    compared (`timed_launches`). `low_s` and `high_s` are the extreme launches, `spread` = high / low - 1
    (NaN for fewer than two launches). `n_ok` of its `n_launches` count. `status` tells how they ended, 'ok' or a count
    such as '2 ok, 1 oom'; `error` the first error. Parts are medians over the launches that count, peaks maxima."""
    own = launches[launches["block"] >= FIRST_BLOCK]
    everything, counted, timed = (
        of.groupby("case_id", sort=False) for of in (own, valid_launches(own), timed_launches(own))
    )
    seconds = timed["launch_step_s"]
    table = (
        own.drop_duplicates("case_id")
        .set_index("case_id")[["label", *Case().to_dict(), "statistic"]]
        .assign(
            status=everything["status"].agg(status_counts),
            error=everything["error"].first(),
            n_ok=counted.size(),
            n_launches=everything.size(),
            step_time_s=pd.Series(levels(timed_launches(own), "launch_step_s"), dtype=float),
            low_s=seconds.min(),
            high_s=seconds.max(),
            spread=(seconds.max() / seconds.min() - 1).where(seconds.size() > 1),
            p90_s=pd.Series(levels(timed_launches(own), "p90_s"), dtype=float),
            **{name: counted[name].median() for name in STEP_PARTS},
            **{name: counted[name].max() for name in MEMORY},
            staleness_mean=counted["staleness_mean"].mean(),
            staleness_max=counted["staleness_max"].max(),
        )
    )
    table["status"] = table["status"].fillna(Status.OK)
    table["error"] = table["error"].astype(object).where(table["error"].notna(), None)
    table = table.assign(**{name: table[name].fillna(0).astype(int) for name in ("n_ok", "n_launches")})
    tokens = table["global_batch"] * table["seq_len"] / table["step_time_s"]
    table = table.assign(tokens_per_s=tokens.where(counted["tokens_per_s"].max().reindex(table.index).notna()))
    table = table.assign(peak_memory_bytes=peak_memory(table))
    return table.sort_values("step_time_s", kind="stable").reset_index()


def mean_peaks(launches: pd.DataFrame) -> dict[str, float]:
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


def only_ranked(launches: pd.DataFrame) -> pd.DataFrame:
    """Leave out what is not ranked, such as training without communication."""
    return launches[np.array([entry_of(str(name)).ranked for name in launches["strategy"]], dtype=bool)]


def same_work(table: pd.DataFrame, work: Sequence[str] = WORK) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Return the rows of each workload, in order of appearance, with the fields that define it."""
    fields = [tuple(None if value != value else value for value in row.values()) for row in records(table, work)]
    groups = table.groupby(pd.Series(fields, table.index, dtype=object), sort=False)
    return [(dict(zip(work, values, strict=True)), own) for values, own in groups]


def status_counts(statuses: Iterable[str]) -> str:
    """One status where all have it, else how many have which: '2 ok, 1 oom'."""
    counts = Counter(statuses)
    return ", ".join(f"{n} {status}" for status, n in counts.items()) if len(counts) > 1 else next(iter(counts))


def _parts(medians: pd.DataFrame, ids: pd.Series[int]) -> pd.DataFrame:
    """Return for each launch in `ids` each part on the rank whose median step is longest, with the index of `ids`."""
    of_rank = medians.pivot(index=["launch_id", "rank"], columns="metric", values="value")
    of_rank = of_rank.reindex(columns=["step_s", *STEP_PARTS]).dropna(subset=["step_s"]).reset_index()
    slowest = of_rank.sort_values(["step_s", "rank"], ascending=[False, True]).drop_duplicates("launch_id")
    return slowest.set_index("launch_id").reindex(ids)[list(STEP_PARTS)].set_axis(ids.index)


def rank_numbers(whole: pd.DataFrame, ids: pd.Series[int]) -> dict[str, pd.Series[float]]:
    """Return memory peaks (the maximum over ranks, NaN if one is unknown) and staleness of the launches in `ids`.

    The mean of the staleness is over the ranks that know it, because each sends as many gradients."""
    whole = whole[whole["phase"] != Phase.INSTRUMENT]

    def over_ranks(metric: str, how: str, *, all_known: bool = False) -> pd.Series[float]:
        of_metric = whole[whole["metric"] == metric].groupby("launch_id")["value"]
        found = of_metric.agg(how)
        return ids.map(found.where(of_metric.count() == of_metric.size()) if all_known else found).astype(float)

    return {name: over_ranks(name, "max", all_known=True) for name in PEAKS} | {
        "staleness_mean": over_ranks("staleness_mean", "mean"),
        "staleness_max": over_ranks("staleness_max", "max"),
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
