"""The point-to-point interface that every algorithm is written against, over the real backend's send and recv."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import Work

# Large messages travel in pieces of at most this many bytes, so that a rank can add one piece while the next arrives.
# On gloo every piece costs a wake-up or two of a thread, so smaller ones are slower.
PIECE_BYTES = 1 << 21

# Keeps our messages apart from a user's own sends on the same group.
_TAG = 0x7062


class Backend(Protocol):
    """What a wire needs of a c10d backend."""

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> Work: ...  # noqa: N803
    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> Work: ...  # noqa: N803


class Message(Protocol):
    """A message on its way. It may be waited for once."""

    def wait(self) -> object:
        """Return when it has arrived or left; raises RuntimeError when the peer is gone or late."""


class _Nothing:
    def wait(self) -> None:
        pass


_NOTHING = _Nothing()


class Wire:
    """This rank's place in a group of `size` ranks, with `send` to and `recv` from any of them.

    `ranks` maps this wire's ranks to the backend's, so that an algorithm for n ranks runs unchanged among some.
    The backend keeps the group's timeout. `empty` makes buffers, as torch.empty does.
    """

    def __init__(
        self,
        backend: Backend,
        ranks: Sequence[int],
        rank: int,
        *,
        scratch: dict[tuple[str, torch.dtype, torch.device, bool], Tensor] | None = None,
        empty: Callable[..., Tensor] = torch.empty,
    ) -> None:
        self.rank = rank
        self.size = len(ranks)
        self._backend = backend
        self._ranks = tuple(ranks)
        self._scratch = {} if scratch is None else scratch
        self._empty = empty
        self._subsets: dict[tuple[int, ...], Wire] = {}

    # Whether messages travel from when they are posted. Where they don't, pieces gain nothing, and there are no
    # channels.
    eager = True

    def among(self, ranks: Sequence[int]) -> Wire:
        """The wire between these ranks of this wire, in that order; this rank must be one of them."""
        key = tuple(ranks)
        if key not in self._subsets:
            peers = [self._ranks[rank] for rank in key]
            self._subsets[key] = type(self)(
                self._backend, peers, key.index(self.rank), scratch=self._scratch, empty=self._empty
            )
        return self._subsets[key]

    def send(self, tensor: Tensor, peer: int, channel: int = 0) -> Message:
        """Start sending a flat, contiguous tensor. What two ranks send on one channel arrives in that order."""
        if not tensor.numel():
            return _NOTHING
        message: Message = self._backend.send([tensor], self._ranks[peer], _TAG + channel)
        return message

    def recv(self, tensor: Tensor, peer: int, channel: int = 0) -> Message:
        """Start receiving into a flat, contiguous tensor.

        Post it before the first send to that peer: a message waits for the news of its receive, and that waits behind
        what is being sent. It may be posted into memory that is still being sent from, if what arrives is made from
        what was sent.
        """
        if not tensor.numel():
            return _NOTHING
        message: Message = self._backend.recv([tensor], self._ranks[peer], _TAG + channel)
        return message

    def scratch(self, purpose: str, like: Tensor, numel: int, *, pinned: bool = False) -> Tensor:
        """A flat buffer of `numel` elements of `like`'s type, kept between calls; `pinned` in host memory that a device
        copies to and from by itself. Its content is undefined."""
        key = (purpose, like.dtype, like.device, pinned)
        buffer = self._scratch.get(key)
        if buffer is None or buffer.numel() < numel:
            buffer = self._scratch[key] = self._empty(numel, dtype=like.dtype, device=like.device, pin_memory=pinned)
        return buffer[:numel]


class StreamWire(Wire):
    """A wire over a backend whose messages are kernels on a stream (NCCL).

    Such sends and receives block one another unless they start as one group. So they are kept until one of them is
    waited for: then all sends so far and that receive start together, and whatever comes later on the stream comes
    after them.
    """

    eager = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sends: list[_Kept] = []

    def send(self, tensor: Tensor, peer: int, channel: int = 0) -> Message:
        """Keep it for the next group."""
        kept = _Kept(self, self._backend.send, tensor, self._ranks[peer])
        self._sends.append(kept)
        return kept

    def recv(self, tensor: Tensor, peer: int, channel: int = 0) -> Message:
        """Keep it until it is waited for."""
        return _Kept(self, self._backend.recv, tensor, self._ranks[peer])

    def start(self, message: _Kept) -> None:
        """Start `message` with every send that was kept, as one group."""
        group = [*self._sends, *([] if message in self._sends else [message])]
        self._sends.clear()
        backend: Any = self._backend
        backend._start_coalescing()
        for each in group:
            each.begin()
        backend._end_coalescing().wait()


class _Kept:
    """A message of a StreamWire that has not begun, or has."""

    def __init__(self, wire: StreamWire, call: Callable[..., Work], tensor: Tensor, peer: int) -> None:
        self._wire, self._call, self._tensor, self._peer = wire, call, tensor, peer
        self._begun = not tensor.numel()

    def begin(self) -> None:
        if not self._begun:
            self._call([self._tensor], self._peer, 0)
        self._begun = True

    def wait(self) -> None:
        if not self._begun:
            self._wire.start(self)


def finish(messages: Iterable[Message]) -> None:
    """Wait for all of them."""
    for message in messages:
        message.wait()


def split(flat: Tensor, parts: int) -> list[Tensor]:
    """`flat` in `parts` views whose sizes differ by at most one element; some are empty when it is short."""
    bounds = [flat.numel() * i // parts for i in range(parts + 1)]
    return [flat[a:b] for a, b in itertools.pairwise(bounds)]


def pieces_of(nbytes: int) -> int:
    """How many pieces of at most PIECE_BYTES so many bytes make; one (empty) for none."""
    return max(1, -(-nbytes // PIECE_BYTES))


def pieces(flat: Tensor) -> list[Tensor]:
    """`flat` in views of at most PIECE_BYTES."""
    return split(flat, pieces_of(flat.nbytes))
