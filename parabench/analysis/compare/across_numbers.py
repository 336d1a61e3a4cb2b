"""The numbers of launches by which two machines are compared, and why a case has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from parabench.analysis.efficiency import COUNTER, launch_joules
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.store.record import GB


@dataclass(frozen=True)
class Known:
    """A number of launches: columns `launch_id, case_id, block, value`; where a case has none, why. `cases` are the
    cases' own numbers in their session where those are more than a mean of their launches."""

    launches: pd.DataFrame
    why: dict[str, str]
    cases: Mapping[str, float] = field(default_factory=dict)


def latencies(side: SessionData) -> Known:
    """Step latency, s."""
    good = side.good[["launch_id", "case_id", "block"]].assign(value=side.good["number_s"])
    status = side.cases_by_id.loc[~side.cases_by_id.index.isin(good["case_id"]), "status"]
    why = {str(case): f"its launches ended {said}" for case, said in status.items()}
    return Known(good, why, side.step_times)


def tokens_per_gb(side: SessionData) -> Known:
    """Tokens/s (samples/s without sequences) per GB of peak memory of the rank that holds most."""
    good = side.good
    per_gb = good["tokens_per_s"] / (good["peak_memory_bytes"] / GB)
    found = good[["launch_id", "case_id", "block"]].assign(value=per_gb)
    return Known(found[found["value"] > 0], latencies(side).why | _none(found, "peak memory was not recorded"))


def _none(launches: pd.DataFrame, reason: str) -> dict[str, str]:
    there = set(launches.loc[launches["value"] > 0, "case_id"])
    return {str(case): reason for case in launches["case_id"].unique() if case not in there}


def tokens_per_joule(side: SessionData) -> Known:
    """Tokens (samples without sequences) per joule of all devices in the measured steps."""
    energies = _energies(side)
    good = side.good
    keys = good["launch_id"]
    # Numbers of two kinds are not mixed: a case's are of one source.
    counted = {case for case, key in zip(good["case_id"], keys, strict=True) if energies[key][1] == COUNTER}
    joules = [
        energies[key][0] if case not in counted or energies[key][1] == COUNTER else np.nan
        for case, key in zip(good["case_id"], keys, strict=True)
    ]
    tokens = good["global_batch"] * good["seq_len"]
    found = good[["launch_id", "case_id", "block"]].assign(value=tokens / pd.Series(joules, good.index, dtype=float))
    why = latencies(side).why
    for case, key in zip(good["case_id"], keys, strict=True):
        if not format.known(energies[key][0]):
            why.setdefault(str(case), energies[key][1])
    return Known(found[found["value"] > 0], why)


def _energies(side: SessionData) -> dict[int, tuple[float, str]]:
    return side.once(launch_joules)


def sources(base: SessionData, candidate: SessionData) -> tuple[str, str]:
    """Where each side's joules are from; empty where it has none."""
    found = [
        Counter(source for joules, source in _energies(side).values() if format.known(joules))
        for side in (base, candidate)
    ]
    return tuple(" and ".join(sorted(each)) for each in found)  # type: ignore[return-value]
