"""Messages of ranks through the rendezvous store."""

from __future__ import annotations

import random

import torch.distributed as dist

from parabench.watching.group import Group


def never() -> bool:
    return False


def test_collect_returns_what_ranks_sent() -> None:
    store = dist.HashStore()
    for rank in (2, 1):
        Group(store, rank, ("a",) * 4).send({"rank": rank})
    found = Group(store, 0, ("a",) * 4).collect(0.05, never)
    assert found == [{"rank": 1}, {"rank": 2}, None]


def test_send_splits_long_messages() -> None:
    long = {"marks": random.Random(0).randbytes(9 << 20).hex()}  # 9 MiB that cannot be compressed
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    Group(store, 1, ("a", "a")).send(long)
    assert Group(store, 0, ("a", "a")).collect(10.0, never) == [long]
