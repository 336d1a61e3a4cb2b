"""Least squares of a number = case + block, whichever cases were launched in which blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from parabench.analysis.stats.quantiles import Numbers

Places = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Layout:
    """Which case was launched in which block, and what least squares of case + block makes of it.

    `counts` has shape (cases, blocks): how many launches, or the sum of their weights where some say more than others.
    Cases are many and blocks are few, so cases are eliminated: what is left to
    solve is the `reduced` system of blocks, symmetric, with a null space that is known (the level of each component of
    cases and blocks that launches connect), so that no rank is guessed. With every case in every block this is
    centring. J. A. John and E. R. Williams, "Cyclic and Computer Generated Designs" (1995), section 1.3.
    """

    counts: Numbers
    component: Places

    @classmethod
    def of(cls, case: np.ndarray, block: np.ndarray, weight: Numbers) -> Layout:
        """The layout of launches with these places of their cases and blocks: one of twice the weight has half the
        variance."""
        k, b = int(case.max()) + 1, int(block.max()) + 1
        counts = np.zeros((k, b))
        np.add.at(counts, (case, block), weight)
        # Blocks are of one component where cases connect them, through other blocks too.
        joined = counts.T @ counts > 0
        while (further := joined @ joined).sum() > joined.sum():
            joined = further
        of_block = np.unique(joined.argmax(axis=1), return_inverse=True)[1]
        return cls(counts, np.concatenate([of_block[counts.argmax(axis=1)], of_block]))

    @cached_property
    def n(self) -> Numbers:
        """Launches of each case, by weight."""
        total: Numbers = self.counts.sum(axis=1)
        return total

    @cached_property
    def shares(self) -> Numbers:
        """The share of each case's launches that lies in each block."""
        return self.counts / self.n[:, None]

    @cached_property
    def reduced(self) -> Numbers:
        """The pseudo-inverse of the blocks' system when cases are eliminated, of shape (blocks, blocks)."""
        system = np.diag(self.counts.sum(axis=0)) - self.counts.T @ self.shares
        component = self.component[len(self.counts) :]
        alike = component[:, None] == component
        null = alike / alike.sum(axis=0)  # projects onto the level of each component
        inverse: Numbers = np.linalg.inv(system + null) - null
        return inverse

    @property
    def rank(self) -> int:
        """Of the design matrix: each component's level is in its cases and in its blocks."""
        return len(self.component) - int(self.component.max()) - 1

    def solve(self, y: Numbers, case: np.ndarray, block: np.ndarray, weight: Numbers) -> tuple[Numbers, Numbers]:
        """(case effects, block effects) of least squares with the least norm."""
        own = np.bincount(case, weight * y) / self.n
        blocks: Numbers = self.reduced @ (np.bincount(block, weight * y) - self.counts.T @ own)
        cases: Numbers = own - self.shares @ blocks
        effects = np.concatenate([cases, blocks])
        sign = np.repeat([1.0, -1.0], self.counts.shape)
        shift = -np.bincount(self.component, sign * effects) / np.bincount(self.component)
        effects += sign * shift[self.component]
        return effects[: len(cases)], effects[len(cases) :]

    def leverages(self, case: np.ndarray, block: np.ndarray, weight: Numbers) -> Numbers:
        """Of each launch: the diagonal of the matrix that makes fitted numbers of measured ones."""
        spread = self.shares @ self.reduced
        own = 1 / self.n + np.einsum("ij,ij->i", spread, self.shares)
        found: Numbers = weight * (own[case] - 2 * spread[case, block] + self.reduced.diagonal()[block])
        return found

    def noise(self, variances: Numbers) -> Numbers:
        """The covariance of the right side of the blocks' system, of shape (blocks, blocks), where a launch of
        weight 1 has a variance of its case's, of `variances`."""
        total: Numbers = np.diag(variances @ self.counts) - (self.counts * variances[:, None]).T @ self.shares
        return total

    def scales(self, at: int, own: Numbers, noise: Numbers) -> Numbers:
        """The standard error of the case at place `at` minus each case, over the square root of 2, where each case's
        mean has a variance of its `own` and blocks add their `noise`; infinite where the launches cannot compare the
        two."""
        apart = (self.shares - self.shares[at]) @ self.reduced
        squared = own + own[at] + np.einsum("ij,ij->i", apart @ noise, apart)
        component = self.component[: len(own)]
        scales: Numbers = np.where(component == component[at], np.sqrt(np.maximum(0.0, squared) / 2), np.inf)
        return scales
