"""Ranks that hand over what they saw through the process group's store."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from parabench.errors import UsageError
from parabench.watching import group
from parabench.watching.group import Group


@pytest.fixture
def store(tmp_path: Path) -> dist.Store:
    return dist.HashStore()


def never() -> bool:
    return False


def test_collect_returns_what_ranks_sent(store: dist.Store) -> None:
    for rank in (2, 1):
        Group(store, rank, ("a",) * 4).send({"rank": rank})
    found = Group(store, 0, ("a",) * 4).collect(0.05, never)
    assert found == [{"rank": 1}, {"rank": 2}, None]


def test_send_splits_what_is_too_long_for_torch() -> None:
    long = {"marks": random.Random(0).randbytes(9 << 20).hex()}  # 9 MiB that no compression makes smaller
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    Group(store, 1, ("a", "a")).send(long)
    assert Group(store, 0, ("a", "a")).collect(10.0, never) == [long]


@pytest.mark.parametrize("hosts", [("a", "b", "a", "b"), ("a", "a", "b")])
def test_hosts_with_other_numbers_of_ranks_are_refused(
    monkeypatch: pytest.MonkeyPatch, store: dist.Store, hosts: tuple[str, ...]
) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: len(hosts))
    monkeypatch.setattr(group.c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(group, "_uses", iter([0] * len(hosts)))
    refused = []
    local = threading.local()
    monkeypatch.setattr(dist, "get_rank", lambda: local.rank)
    monkeypatch.setattr(group.socket, "gethostname", lambda: hosts[local.rank])

    def enter(rank: int) -> None:
        local.rank = rank
        try:
            Group.enter()
        except UsageError as why:
            refused.append(str(why))

    ranks = [threading.Thread(target=enter, args=(rank,)) for rank in range(len(hosts))]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert len(refused) == len(hosts)
    assert all("every host must have as many, and those in a row" in said for said in refused)
