"""Simulate launches with a known truth.

A step of launch `l` of case `c` in repetition `b` of session `s` takes
    truth[c] * exp(session[s] + drift[b] + launch[l] + step) * (1 + an occasional spike)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from parabench.analysis.launch_number import STATISTIC
from parabench.analysis.numbers import MEMORY
from parabench.metrics import STEP_PARTS
from parabench.plan.case import Case
from parabench.store.record import Status

Seconds = np.ndarray


@dataclass(frozen=True)
class Noise:
    """Standard deviations of logarithms. `launch` is that deviation of a typical case; cases differ by exp(`unlike` z).

    `drift` is a random walk over repetitions, which interleaved variants share; `session` is drawn once per session. A
    launch is an outlier with probability `outliers`, and then slower by an exponential of mean `outlier_size`. Steps
    have `spikes` and `spike_size` for the same.
    """

    launch: float = 0.01
    unlike: float = 0.3
    drift: float = 0.01
    session: float = 0.0
    step: float = 0.03
    outliers: float = 0.02
    outlier_size: float = 0.10
    spikes: float = 0.02
    spike_size: float = 0.5


# A dedicated GPU, shared cores, and noise without drift, steps and outliers (docs/explanation/certainty.md).
QUIET = Noise(launch=0.004, drift=0.003, step=0.01, outliers=0.01, outlier_size=0.03)
SHARED = Noise(launch=0.025, unlike=0.5, drift=0.03, step=0.08, outliers=0.05, outlier_size=0.2)
PURE = Noise(launch=0.02, unlike=0.0, drift=0.0, step=0.0, outliers=0.0, spikes=0.0)
UNLIKE = replace(PURE, unlike=1.0)


# The measured steps of a launch, and the quantile of them that is the per-launch statistic.
STEPS, QUANTILE = 40, 0.1


class Machine:
    """Simulates sessions."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self.noise = noise
        self._random = np.random.default_rng(seed)

    def loudness(self, cases: int) -> Seconds:
        """Return the standard deviation of the launches of each case."""
        return self.noise.launch * np.exp(self.noise.unlike * self._random.standard_normal(cases))

    def mood(self, repetitions: int) -> Seconds:
        """Return the level of each repetition of a session: the level of the session plus the drift."""
        walk = np.cumsum(self.noise.drift * self._random.standard_normal(repetitions))
        return walk + self.noise.session * self._random.standard_normal()

    def session(self, truth: Seconds, loudness: Seconds, mood: Seconds) -> Seconds:
        """Return per-launch statistics (s) of shape (cases, repetitions). `mood` has one row, or one per case."""
        noise, draw = self.noise, self._random
        shape = len(truth), mood.shape[-1]
        launch = loudness[:, None] * draw.standard_normal(shape)
        launch += (draw.random(shape) < noise.outliers) * draw.exponential(noise.outlier_size or 1.0, shape)
        each = (*shape, STEPS)
        step = noise.step * draw.standard_normal(each)
        step += np.log1p((draw.random(each) < noise.spikes) * draw.exponential(noise.spike_size or 1.0, each))
        seconds = truth[:, None, None] * np.exp(np.atleast_2d(mood)[:, :, None] + launch[:, :, None] + step)
        return np.quantile(seconds, QUANTILE, axis=-1)


def launch_frame(numbers: Seconds) -> pd.DataFrame:
    """Return numbers of shape (cases, repetitions) as rows `case, repetition, step_s`, for `contrasts.fit`."""
    rows = [(f"{case:02d}", repetition, number) for (case, repetition), number in np.ndenumerate(numbers)]
    return pd.DataFrame(rows, columns=["case", "repetition", "step_s"])


def numbers(rows: list[tuple[Case, int, float]]) -> pd.DataFrame:
    """Return (case, repetition, seconds) as the table `analysis.numbers.numbers`; other numbers are unknown."""
    names = (*STEP_PARTS, *MEMORY, "peak_memory_bytes", "staleness_mean", "staleness_max", "drift")
    table = []
    for at, (case, repetition, seconds) in enumerate(rows):
        tokens = case.global_batch * case.seq_len
        known = {
            "launch_id": at, "case": case.id, "case_json": json.dumps(case.to_dict()), "label": case.label,
            "repetition": repetition, "position": 0, "status": Status.OK, "error": None,
            "statistic": STATISTIC[case.device], "verified": True, "in_turns": False, "counted": True, "timed": True,
            "step_s": seconds, "p90_s": seconds, "tokens_per_s": tokens / seconds, "token_s": seconds / tokens,
        }  # fmt: skip
        table.append(case.to_dict() | dict.fromkeys(names, np.nan) | known)
    return pd.DataFrame(table)
