"""The point-to-point interface that every algorithm is written against, over the real backend's send and recv."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import Work

# Messages travel in pieces of this many bytes, so that a rank can add one piece while the next arrives.
# A choice, not a measured optimum.
PIECE_BYTES = 1 << 20

# Keeps our messages apart from a user's own sends on the same group.
_TAG = 0x7062


class Backend(Protocol):
    """What a wire needs of a c10d backend."""

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> Work: ...  # noqa: D102, N803
    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> Work: ...  # noqa: D102, N803


class Pending:
    """Messages on their way."""

    def __init__(self, works: list[Work], timeout: timedelta | None) -> None:
        self._works = works
        self._timeout = timeout

    def wait(self) -> None:
        """Return when all of them have arrived or left; raises RuntimeError when a peer is gone or late."""
        # gloo waits for ever when it is asked twice for one message.
        works, self._works = self._works, []
        for work in works:
            work.wait() if self._timeout is None else work.wait(self._timeout)


class Wire:
    """This rank's place in a group of `size` ranks, with `send` and `recv` to any of them.

    `ranks` maps this wire's ranks to the backend's, so that an algorithm for n ranks runs unchanged among some.
    """

    def __init__(
        self,
        backend: Backend,
        ranks: Sequence[int],
        rank: int,
        timeout: timedelta | None,
        *,
        grouped: bool = False,
        scratch: dict[tuple[str, torch.dtype, torch.device], Tensor] | None = None,
    ) -> None:
        self.rank = rank
        self.size = len(ranks)
        self._backend = backend
        self._ranks = tuple(ranks)
        self._timeout = timeout
        self._grouped = grouped
        self._scratch = {} if scratch is None else scratch

    def among(self, ranks: Sequence[int]) -> Wire:
        """The wire between these ranks of this wire, in that order; this rank must be one of them."""
        return Wire(
            self._backend,
            [self._ranks[r] for r in ranks],
            list(ranks).index(self.rank),
            self._timeout,
            grouped=self._grouped,
            scratch=self._scratch,
        )

    def exchange(self, sends: Sequence[tuple[Tensor, int]] = (), recvs: Sequence[tuple[Tensor, int]] = ()) -> Pending:
        """Start sending and receiving `(tensor, peer)` pairs at once. Tensors are flat, contiguous views.

        Messages between two ranks arrive in the order in which they were started.
        """
        start = getattr(self._backend, "_start_coalescing", None) if self._grouped else None
        # NCCL's sends and receives block one another unless they are started as one group.
        if start is not None:
            start()
        works = [self._backend.recv([t], self._ranks[peer], _TAG) for t, peer in recvs if t.numel()]
        works += [self._backend.send([t], self._ranks[peer], _TAG) for t, peer in sends if t.numel()]
        if start is not None:
            works = [self._backend._end_coalescing()] if works else []  # type: ignore[attr-defined]
        return Pending(works, self._timeout)

    def scratch(self, purpose: str, like: Tensor, numel: int) -> Tensor:
        """A flat buffer of `numel` elements of `like`'s type, kept between calls. Its content is undefined."""
        key = (purpose, like.dtype, like.device)
        buffer = self._scratch.get(key)
        if buffer is None or buffer.numel() < numel:
            buffer = self._scratch[key] = torch.empty(numel, dtype=like.dtype, device=like.device)
        return buffer[:numel]


def split(flat: Tensor, parts: int) -> list[Tensor]:
    """`flat` in `parts` views whose sizes differ by at most one element; some are empty when it is short."""
    bounds = [flat.numel() * i // parts for i in range(parts + 1)]
    return [flat[a:b] for a, b in itertools.pairwise(bounds)]


def pieces(flat: Tensor) -> list[Tensor]:
    """`flat` in views of at most PIECE_BYTES; one (empty) piece when it is empty."""
    return split(flat, max(1, -(-flat.numel() * flat.element_size() // PIECE_BYTES)))
