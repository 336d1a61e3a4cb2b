"""Point-to-point messages for algorithms, over send and recv of the real backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import Work

# Large messages are sent in pieces of up to this size, so that a rank can add one piece while the next arrives. With
# gloo, smaller pieces are slower, because each wakes a thread.
PIECE_BYTES = 1 << 21

# Separates these messages from a user's sends in the same group.
_TAG = 0x7062


class Message(Protocol):
    """A message that is being sent or received. Wait for it once."""

    def wait(self) -> object:
        """Wait for its end. Raises RuntimeError if the peer has ended or is late."""


class _Nothing:
    """A message without elements, which is never sent."""

    def wait(self) -> None:
        pass


_NOTHING = _Nothing()


class Wire:
    """The connection of this rank to the `size` ranks of a group, over `send` and `recv` of a c10d `backend`.

    `ranks` maps ranks of this wire to ranks of the backend. `empty` creates buffers, like torch.empty.
    """

    def __init__(
        self,
        backend: Any,
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

    # True if messages start when they are posted. If not, pieces are useless, and channels do not exist.
    eager = True

    def among(self, ranks: Sequence[int]) -> Wire:
        """Return the wire between some ranks of this wire, including this rank."""
        key = tuple(ranks)
        if key not in self._subsets:
            peers = [self._ranks[rank] for rank in key]
            self._subsets[key] = type(self)(
                self._backend, peers, key.index(self.rank), scratch=self._scratch, empty=self._empty
            )
        return self._subsets[key]

    def send(self, tensor: Tensor, peer: int, channel: int = 0) -> Message:
        """Start sending a flat, contiguous tensor. Messages between two ranks on one channel keep their order."""
        if not tensor.numel():
            return _NOTHING
        message: Message = self._backend.send([tensor], self._ranks[peer], _TAG + channel)
        return message

    def recv(self, tensor: Tensor, peer: int, channel: int = 0) -> Message:
        """Start receiving into a flat, contiguous tensor.

        Post it before the first send to this peer, because notices of receives wait behind messages. The memory may
        still be in use by a send, if the received data depends on that send.
        """
        if not tensor.numel():
            return _NOTHING
        message: Message = self._backend.recv([tensor], self._ranks[peer], _TAG + channel)
        return message

    def scratch(self, purpose: str, like: Tensor, numel: int, *, pinned: bool = False) -> Tensor:
        """Return a flat buffer of `numel` elements of `like`'s type, which is reused between calls.

        With `pinned`, it is in pinned host memory. Its content is undefined.
        """
        key = (purpose, like.dtype, like.device, pinned)
        buffer = self._scratch.get(key)
        if buffer is None or buffer.numel() < numel:
            buffer = self._scratch[key] = self._empty(numel, dtype=like.dtype, device=like.device, pin_memory=pinned)
        return buffer[:numel]


class StreamWire(Wire):
    """A wire over a backend whose messages are kernels on a stream (NCCL).

    Sends and receives are kept until a wait, and then start as one group, because single ones block each other.
    """

    eager = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sends: list[_Kept] = []

    def send(self, tensor: Tensor, peer: int, channel: int = 0) -> Message:
        """Keep the send for the next group."""
        kept = _Kept(self, self._backend.send, tensor, self._ranks[peer])
        self._sends.append(kept)
        return kept

    def recv(self, tensor: Tensor, peer: int, channel: int = 0) -> Message:
        """Keep the receive until a wait."""
        return _Kept(self, self._backend.recv, tensor, self._ranks[peer])

    def start(self, message: _Kept) -> None:
        """Start `message` and all kept sends as one group."""
        group = [*self._sends, *([] if message in self._sends else [message])]
        self._sends.clear()
        self._backend._start_coalescing()
        for each in group:
            each.begin()
        self._backend._end_coalescing().wait()


class _Kept:
    """A message of a StreamWire, which starts with its group."""

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
    """Wait for all messages."""
    for message in messages:
        message.wait()


def split(flat: Tensor, parts: int) -> list[Tensor]:
    """Return `parts` consecutive views of `flat` whose sizes differ by one element at most."""
    bounds = [flat.numel() * i // parts for i in range(parts + 1)]
    return [flat[a:b] for a, b in itertools.pairwise(bounds)]


def pieces_of(nbytes: int) -> int:
    """Return the number of pieces of at most PIECE_BYTES that `nbytes` need; one for 0 bytes."""
    return max(1, -(-nbytes // PIECE_BYTES))


def pieces(flat: Tensor) -> list[Tensor]:
    """Return consecutive views of `flat` of at most PIECE_BYTES."""
    return split(flat, pieces_of(flat.nbytes))
