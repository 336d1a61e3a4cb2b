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


def test_what_ranks_hand_over_comes_in_their_order(store: dist.Store) -> None:
    for rank in (2, 0, 1):
        Group(store, rank, ("a",) * 3).publish("seen", {"rank": rank})
    found = Group(store, 0, ("a",) * 3).collect("seen", {"rank": 0}, 1.0)
    assert found == [{"rank": 0}, {"rank": 1}, {"rank": 2}]


def test_what_is_long_comes_in_pieces_that_torch_s_store_takes() -> None:
    lot = random.Random(0)
    long = {"marks": [lot.random() for _ in range(2_000_000)]}  # 16 MB that no compression makes smaller
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    Group(store, 1, ("a", "a")).publish("seen", long)
    assert Group(store, 0, ("a", "a")).collect("seen", {}, 10.0) == [{}, long]
    assert store.check(["seen/1"])  # the connection is still there


def test_all_ranks_agree_on_what_the_first_said(store: dist.Store) -> None:
    assert [Group(store, rank, ("a",) * 3).agree("race", f"of {rank}") for rank in (1, 0, 2)] == ["of 1"] * 3
    assert Group(None, 0, ("a",)).agree("race", "mine") == "mine"


def test_a_rank_that_hands_nothing_over_is_none(store: dist.Store) -> None:
    Group(store, 1, ("a",) * 3).publish("seen", {"rank": 1})
    assert Group(store, 0, ("a",) * 3).collect("seen", {}, 0.05) == [{}, {"rank": 1}, None]


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
