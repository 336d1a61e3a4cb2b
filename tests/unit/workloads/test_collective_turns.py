"""The interleaving of collective cases, and the order of a rank's marks."""

import pytest

from fake_collectives import case
from parabench.plan.cohorts import cohorts, why_alone
from parabench.plan.collective_protocol import CollectiveProtocol, stages

SMALL = {"min_bytes": 1024, "max_bytes": 4096, "factor": 4}
MIXED = tuple(
    case(op, algorithm, world_size=size, **SMALL)
    for op in ("all_reduce", "reduce_scatter", "broadcast")
    for algorithm in ("native", "ring", "tree")
    for size in (2, 4)
)
BATCHES = CollectiveProtocol(rounds=10)
CALLS = CollectiveProtocol(mode="latency", warmup=3, iterations=25, rounds=10)


@pytest.mark.parametrize(("protocol", "timed", "warmup"), [(BATCHES, [1] * 10, 1), (CALLS, [2, 3] * 5, 3)])
def test_stages_interleave_algorithms(protocol, timed, warmup):
    found = stages(protocol, MIXED)
    # Three operations of two sizes, one of them in two forms; 2 and 4 ranks.
    assert len(found) == (1 + 2 + 1) * 2 * 2
    for stage in found:
        alike = {(MIXED[at].op, MIXED[at].world_size) for at in stage.places}
        assert (len(alike), len(stage.places), stage.warmup) == (1, 3, warmup)
        rounds = [stage.turns[at : at + 3] for at in range(0, len(stage.turns), 3)]
        run_in = int(protocol is BATCHES)
        assert [{readings for _, readings in each} for each in rounds] == [
            {count + (run_in if number == 0 else 0)} for number, count in enumerate(timed)
        ]
        assert {frozenset(place for place, _ in each) for each in rounds} == {frozenset(stage.places)}


@pytest.mark.parametrize(
    ("protocol", "cases", "rounds"),
    [
        (BATCHES, MIXED, 10),
        (CollectiveProtocol(rounds=10, batches=4), MIXED, 4),
        (CollectiveProtocol(mode="latency", rounds=10, iterations=3), MIXED, 3),
        # A single algorithm, so no two are alike.
        (BATCHES, [each for each in MIXED if each.algorithm == "ring"], 0),
        # 4096 bytes are all that both have.
        (BATCHES, [case(algorithm="native", **SMALL), case(algorithm="ring", min_bytes=4096, max_bytes=4096)], 10),
    ],
)
def test_most_rounds_counts_interleaved_rounds(protocol, cases, rounds):
    assert protocol.most_rounds(cases) == rounds


def test_cohorts_keep_pins_of_nccl_apart():
    def on_devices(**fields):
        return case(device="cuda", backend="nccl", **fields)

    two, four = on_devices(), on_devices(world_size=4)
    pin = on_devices(algorithm="nccl:ring")
    apart = on_devices(world_size=8, nodes=2), on_devices(world_size=4, nodes=2), on_devices(threads=2)
    assert cohorts([two, pin, *apart, four]) == [(two, four), (pin,), *((each,) for each in apart)]
    assert why_alone(pin) == "nccl:ring is set for a whole process, in NCCL's environment"
    assert why_alone(two) is None
