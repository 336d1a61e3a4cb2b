"""Which cases' ranks compute the same, and where the ranks of a group are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fake_base import base, computed, of_ranks
from parabench.analysis.prediction.base import work_of
from parabench.analysis.prediction.collective_seconds import Place
from parabench.analysis.prediction.program import Call, Group
from parabench.analysis.prediction.question import most_together
from parabench.plan.case import Case
from parabench.session.request import fewest_nodes


def test_gradients_are_held_back_only_between_micro_batches() -> None:
    plain = of_ranks(2)
    assert work_of(replace(plain, no_sync=False)) == work_of(plain)
    several = replace(plain, grad_accumulation=2)
    assert work_of(replace(several, no_sync=False)) != work_of(several)


def test_ranks_that_share_other_shards_compute_otherwise() -> None:
    def hsdp(world_size: int, shared: int) -> Case:
        case: Case = of_ranks(world_size, nodes=world_size // shared, strategy="hsdp", ranks_per_node=shared)
        return case

    assert work_of(hsdp(8, 4)) == work_of(hsdp(16, 4))
    assert work_of(hsdp(8, 4)) != work_of(hsdp(8, 2))


@pytest.mark.parametrize(
    ("group", "ranks", "nodes", "place"),
    [
        (Group(4), 16, 8, Place(2, 2)),
        (Group(4, 4), 16, 8, Place(4, 1, 2)),
        (Group(8, 2), 16, 2, Place(2, 4, 2)),
        # Ranks 4 to 7 are on both nodes of six.
        (Group(4), 12, 2, Place(2, 2)),
    ],
)
def test_where_ranks_of_a_group_are(group: Group, ranks: int, nodes: int, place: Place) -> None:
    assert Place.of(Call("all_reduce", 8, group), of_ranks(ranks, nodes=nodes)) == place


@pytest.mark.parametrize(
    ("group", "nodes", "place"),
    [
        (Group(2, 1, 2), 2, Place(1, 2)),
        (Group(2, 1, 3), 2, Place(2, 1)),
        (Group(2, -1, 4), 2, Place(2, 1)),
        (Group(2, -7, 7), 1, Place(1, 2)),
    ],
)
def test_where_both_ends_of_a_message_are(group: Group, nodes: int, place: Place) -> None:
    assert Place.of(Call("send", 8, group), of_ranks(8, nodes=nodes)) == place


@pytest.mark.parametrize("group", [Group(2, 3), Group(2, 1, 1)])
def test_stages_that_share_weights_have_the_link_for_themselves(group: Group) -> None:
    case = replace(of_ranks(4, nodes=2), strategy="pp", schedule="1f1b", microbatches=8, global_batch=8)
    assert Place.of(Call("all_reduce", 8, group), case) == Place(2, 1)


def test_how_many_ranks_a_node_has_is_told_by_those_that_are_alike() -> None:
    """All ranks of a pipeline are measured on one machine, however many nodes they are for."""
    pipeline = computed(replace(of_ranks(4), strategy="pp", schedule="1f1b", microbatches=4))
    assert most_together(base(computed=(computed(), pipeline))) == 2
    assert most_together(base(computed=(pipeline,))) == 4


def test_ranks_of_one_node_are_on_it_however_far_apart() -> None:
    assert Place.of(Call("all_reduce", 8, Group(2, 3)), of_ranks(4)) == Place(1, 2)


def test_nodes_are_as_few_as_share_ranks_evenly() -> None:
    assert [fewest_nodes(*each) for each in ((16, 2), (6, 4), (7, 4), (1, 8), (1_000_000_007, 2))] == [
        8, 2, 7, 1, 1_000_000_007,
    ]  # fmt: skip
