"""Pipelines compute the same as one device, hold only their stages, and report their bubble."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fake_results
import pipeline_helpers
from parabench import Model
from parabench.analysis.session import session_data
from parabench.analysis.step.breakdown import bubbles
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.machine.machine import Machine
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.plan.resolve import resolve
from parabench.plan.validate import check, check_fit
from parabench.store.record import Sample, Status
from parabench.strategies import pipeline
from parabench.strategies.base import StrategyContext
from parabench.strategies.pipeline import BusyShare, holders, stages_from
from ranks_helpers import run_ranks
from rounding_helpers import FLOAT64_BOUND, bfloat16_bound, bfloat16_loss_bound, differences

SHORT = Protocol(warmup=2, steps=2, instrumented=1)
EIGHT, KNOT = "pipeline_helpers:eight", "pipeline_helpers:knot"


def case(**fields: Any) -> Case:
    settled: dict[str, Any] = {"device": "cpu", "backend": "gloo", "data": "synthetic", "seq_len": 8, "model": EIGHT}
    return Case(**(settled | {"strategy": "pp", "world_size": 2, "global_batch": 24} | fields))


TRAINED = [
    case(schedule="gpipe", microbatches=6),
    case(schedule="interleaved", microbatches=4),
    case(strategy="layer_split"),
    case(schedule="gpipe", microbatches=4, model=KNOT),
    case(schedule="interleaved", microbatches=4, model=KNOT),
    case(strategy="layer_split", model=KNOT),
    case(schedule="1f1b", microbatches=4, precision="bf16-mixed"),
    case(schedule="interleaved", microbatches=4, activation_checkpointing=True),
    case(world_size=3, schedule="1f1b", microbatches=6),
    case(world_size=3, schedule="interleaved", microbatches=6),
    case(world_size=3, schedule="1f1b", microbatches=3, model=KNOT),
]


def name(each: Case) -> str:
    return f"{each.label} {each.model.partition(':')[2]} {each.precision}"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, list[dict[str, Any]]]:
    """Train all cases; return the results of each rank. One launch trains all cases with the same world size."""
    found = {}
    for size in (2, 3):
        cases = [each for each in TRAINED if each.world_size == size]
        folder = tmp_path_factory.mktemp(f"{size}ranks")
        run_ranks(pipeline_helpers.trained, cases, folder, size=size, folder=folder)
        for number, each in enumerate(cases):
            files = [folder / f"case{number}-rank{rank}.pt" for rank in range(size)]
            found[each] = [torch.load(file, weights_only=True) for file in files]
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """Return the results of one device by the id of the reference."""
    references = {each.reference().id: each.reference() for each in TRAINED}
    return {key: pipeline_helpers.train(reference, 0) for key, reference in references.items()}


# A case of float32 is trained in float64. A micro-batch that is forgotten changes gradients by a fourth or more.
TOLERANCE = {"ieee": FLOAT64_BOUND, "bf16-mixed": bfloat16_bound(pipeline_helpers.BLOCKS)}


@pytest.mark.parametrize("each", TRAINED, ids=name)
def test_training_is_what_one_device_computes(
    each: Case, seen: dict[Case, list[dict[str, Any]]], alone: dict[str, dict[str, Any]]
) -> None:
    ranks, expected = seen[each], alone[each.reference().id]
    assert len(expected["loss"]) == pipeline_helpers.STEPS
    assert expected["loss"][-1] < expected["loss"][0]
    assert [bool(rank["loss"]) for rank in ranks] == [False] * (each.world_size - 1) + [True]
    targets = each.global_batch * each.seq_len
    loss_bound = {"ieee": FLOAT64_BOUND, "bf16-mixed": bfloat16_loss_bound(pipeline_helpers.BLOCKS, targets)}
    assert ranks[-1]["loss"] == pytest.approx(expected["loss"], rel=loss_bound[each.precision])
    for kind in ("gradients", "parameters"):
        assert set().union(*(rank[kind] for rank in ranks)) == set(expected[kind])
        for rank in ranks:
            apart = differences(rank[kind], expected[kind])
            assert max(apart.values()) < TOLERANCE[each.precision], (kind, apart)
    for rank in ranks:
        assert rank["norm"] == pytest.approx(expected["norm"], rel=TOLERANCE[each.precision])
        assert rank["clock"] == ["skip"] * pipeline_helpers.STEPS  # no time between forward and backward


# -- the parts of each rank

# Which rank has each of eight blocks.
BLOCKS = {
    (2, False): (0, 0, 0, 0, 1, 1, 1, 1),
    (2, True): (0, 0, 1, 1, 0, 0, 1, 1),
    (3, False): (0, 0, 0, 1, 1, 1, 2, 2),
    (3, True): (0, 0, 1, 1, 2, 0, 1, 2),
}


@pytest.mark.parametrize("each", [each for each in TRAINED if each.model == EIGHT], ids=name)
def test_a_rank_holds_its_stages_and_nothing_else(each: Case, seen: dict[Case, list[dict[str, Any]]]) -> None:
    interleaved = each.strategy == "pp" and each.schedule == "interleaved"
    homes = BLOCKS[each.world_size, interleaved]
    last = each.world_size - 1
    every = set().union(*(rank["parameters"] for rank in seen[each]))
    for rank, told in enumerate(seen[each]):
        expected = {
            name
            for name in every
            if (name.startswith("blocks.") and homes[int(name.split(".")[1])] == rank)
            or (name.startswith("stem.") and rank == 0)
            or (name.startswith("head.") and rank == last)
            or (name == "stem.tokens.weight" and rank == last)
        }
        assert set(told["parameters"]) == expected
        assert told["alive_bytes"] == sum(tensor.nbytes for tensor in told["parameters"].values())


def test_a_parameter_that_no_stage_has_is_refused() -> None:
    module = pipeline_helpers.Knot()
    model = Model(module=module, loss=nn.functional.mse_loss, blocks=list(module.layers), stem=module.stem)
    stages = stages_from(model, 2, StrategyContext(0, 2, torch.device("cpu"), case()))
    with pytest.raises(UsageError, match=r"'head\.weight' is in no stage; put it into Model\.stem"):
        holders(dict(module.named_parameters()), stages, 2)


# -- the bubble -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [each for each in TRAINED if each.model == EIGHT], ids=name)
def test_facts_tell_the_bubble(each: Case, seen: dict[Case, list[dict[str, Any]]]) -> None:
    split = each.strategy == "layer_split"
    per_rank = 2 if not split and each.schedule == "interleaved" else 1
    microbatches = 1 if split else each.microbatches
    p = each.world_size
    for rank in seen[each]:
        assert rank["facts"]["pipeline"] == {
            "stages": p * per_rank,
            "microbatches": microbatches,
            "schedule": "layer_split" if split else each.schedule,
            "bubble": pytest.approx((p - 1) / (per_rank * microbatches + p - 1)),
        }


class Clock:
    """A fake of the host's clock, which a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> float:
        self.now += seconds
        return seconds


def test_only_the_second_step_is_timed_and_only_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    met: list[float] = []
    monkeypatch.setattr(accelerator, "perf_counter", clock)
    monkeypatch.setattr(pipeline.dist, "all_reduce", lambda _: met.append(clock.now))
    watch = BusyShare(torch.device("cpu"))
    work = watch.counted(clock.work)
    shares = []
    for forward, backward in ((5.0, 5.0), (1.0, 2.0), (7.0, 7.0)):
        with watch.step():
            assert work(forward) == forward
            clock.work(6.0)
            work(backward)
            clock.work(3.0)
        shares.append(watch.share)
    assert shares == [None, 3 / 12, 3 / 12]
    # Ranks wait for each other around the step that is watched, and around no other.
    assert met == [119.0, 131.0]


# -- before any launch ----------------------------------------------------------------------------------------------


REFUSED = [
    ({"world_size": 3, "microbatches": 2, "schedule": "interleaved"}, "interleaved it must be world_size 3 or more"),
    ({"world_size": 3, "microbatches": 2}, "1f1b it must be world_size 3 or more"),
    ({"world_size": 4, "global_batch": 2}, "microbatches is 1 of global_batch 2; for pp 1f1b it must be world_size 4"),
    (
        {"world_size": 3, "schedule": "interleaved", "microbatches": 7, "global_batch": 14},
        "interleaved it must divide into 2 equal rounds, as every multiple of world_size 3 does",
    ),
    ({"world_size": 8, "schedule": "interleaved"}, "pp needs 16 stages for world_size 8, and gpt2 has 12 blocks"),
    ({"world_size": 13, "global_batch": 26}, "pp needs 13 stages for world_size 13, and gpt2 has 12 blocks"),
    ({"world_size": 13, "strategy": "layer_split"}, "layer_split needs 13 stages"),
    ({"world_size": 2, "microbatches": 7}, "a rank's batch of 24 does not divide by microbatches 7"),
    ({"world_size": 2, "device": "cuda", "backend": "gloo"}, "gloo sends no CUDA tensors; use backend nccl"),
]


def checked(case: Case) -> None:
    """Check a case as the plan does."""
    check_fit(case)
    check(case)


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
def test_unsupported_pipeline_is_refused(fields: dict[str, Any], reason: str, machine: Machine) -> None:
    settled: dict[str, Any] = {"strategy": "pp", "model": "gpt2", "seq_len": 8, "global_batch": 24}
    case = resolve(Case(**(settled | fields)), machine)
    with pytest.raises(UsageError, match=reason):
        checked(case)


# -- read back ------------------------------------------------------------------------------------------------------


def shown(each: Case, shares: list[float | None], **more: Any) -> Any:
    facts = {"pipeline": {"stages": 2, "microbatches": 4, "schedule": each.schedule, "bubble": 0.2}}
    made = fake_results.launch(each, facts=facts, **more)
    made.samples += [Sample(rank, None, "measure", "stage_busy_share", share) for rank, share in enumerate(shares)]
    return made


def test_bubbles_are_measured_and_theoretical(tmp_path: Path) -> None:
    one, other = case(schedule="1f1b", microbatches=4), case(schedule="gpipe", microbatches=4)
    results = fake_results.write(
        tmp_path / "store.db",
        [
            fake_results.launch(case(strategy="ddp", microbatches=None)),
            shown(one, [0.7, 0.9]),
            shown(one, [0.5, 0.6], repetition=1),
            shown(one, [0.8, 0.8], repetition=2),
            shown(one, [0.0, 0.0], repetition=3, status=Status.WRONG),
            shown(one, [0.1, None], repetition=4),
            shown(one, [0.1], repetition=5),
            shown(one, [0.0, 0.0], repetition=-1),
            shown(other, []),
        ],
    )
    found = bubbles(session_data(results))
    assert list(found["label"]) == [one.label, other.label]
    assert list(found["case_id"]) == [one.id, other.id]
    assert list(found["schedule"]) == ["1f1b", "gpipe"]
    assert found[["stages", "microbatches", "theory"]].drop_duplicates().to_numpy().tolist() == [[2, 4, 0.2]]
    assert found["measured"].iloc[0] == pytest.approx(0.2)
    assert torch.isnan(torch.tensor(found["measured"].iloc[1]))
    assert list(found["n_launches"]) == [3, 0]
