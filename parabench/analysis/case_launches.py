"""The launches of one case as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from parabench.analysis.stats.geometric import Logs
from parabench.analysis.stats.ttest import Numbers, logs_of
from parabench.store.frames import Array

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class CaseLaunches:
    """Launches of a case, in the order of their blocks, each with one number: arrays of one length. `launch_id` is the
    id in table `launch`."""

    launch_id: Array
    block: Array
    value: Numbers

    def __len__(self) -> int:
        return len(self.launch_id)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.launch_id.tolist())

    @property
    def logs(self) -> Logs:
        return Logs(self.block, logs_of(self.value))

    def of_blocks(self, blocks: Array) -> CaseLaunches:
        """Those of these blocks."""
        there = np.isin(self.block, blocks)
        return CaseLaunches(self.launch_id[there], self.block[there], self.value[there])


NO_LAUNCHES = CaseLaunches(np.array([], dtype=np.int64), np.array([], dtype=np.int64), np.array([], dtype=float))

# Of one case on two sides.
Launches = tuple[CaseLaunches, CaseLaunches]


def by_case(launches: pd.DataFrame, value: str) -> dict[str, CaseLaunches]:
    """Each case's launches with the number in column `value`; `launches` has `case_id`, `launch_id` and `block` too."""
    if launches.empty:
        return {}
    ordered = launches.sort_values(["case", "repetition"], kind="stable")
    cases = ordered["case"].to_numpy()
    starts = np.flatnonzero(np.concatenate([[True], cases[1:] != cases[:-1]]))
    columns = [
        np.split(ordered[name].to_numpy(dtype=dtype), starts[1:])
        for name, dtype in (("launch_id", np.int64), ("repetition", np.int64), (value, float))
    ]
    return {str(cases[at]): CaseLaunches(*own) for at, *own in zip(starts, *columns, strict=True)}


def in_turns(sides: Launches) -> Launches:
    """Both sides' launches of the blocks that both have."""
    first, other = sides
    if np.array_equal(first.block, other.block):
        return sides
    both = np.intersect1d(first.block, other.block)
    return first.of_blocks(both), other.of_blocks(both)
