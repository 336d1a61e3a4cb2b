"""Answers about unranked strategies, stale gradients, and several workloads."""

import pytest

import fake_results as fake
from answers_helpers import written_spots as spots

SPEED = {"ddp": 0.040, "fsdp": 0.050, "local_only": 0.030, "parameter_server_async": 0.035}


def swept(strategies, noise=0.0, **options):
    cases = [fake.case(strategy=name, **options) for name in strategies]
    return fake.sweep(cases, lambda one: SPEED[one.strategy], noise=noise)


def test_local_only_is_the_headroom_and_never_the_winner(tmp_path):
    (answer,) = spots(tmp_path, swept(("ddp", "fsdp", "local_only")))
    assert answer.best.strategy == "ddp"
    assert answer.best.slower == 0
    assert [candidate.strategy for candidate in (*answer.tied, *answer.slower)] == ["fsdp"]
    assert answer.slower[0].slower == pytest.approx(0.25)
    assert answer.launches == 6
    assert answer.no_comm_baselines[0].share == pytest.approx(0.25)
    assert answer.no_comm_baselines[0].bound
    assert answer.sentence.startswith("Fastest: ddp native, 2 ranks: 40.0 ms per step")
    assert (
        "Without communication (local_only) a step takes 30.0 ms, 25% less than the fastest's (95%: 25% to 25%)."
    ) in answer.sentence
    assert answer.no_comm_baselines[0].step_time_s == pytest.approx(0.030)


def stale(launches):
    for one in launches:
        if one.case.strategy == "parameter_server_async":
            n = one.case.world_size // 2
            fake.tell(one, staleness_mean=[1.0, 2.0] * n, staleness_max=[3.0, 4.0] * n)
    return launches


def test_fastest_may_train_with_stale_gradients(tmp_path):
    (answer,) = spots(tmp_path, stale(swept(("ddp", "fsdp", "parameter_server_async"))))
    assert answer.best.strategy == "parameter_server_async"
    assert answer.best.other_training
    assert (answer.best.staleness_mean, answer.best.staleness_max) == (1.5, 4.0)
    assert answer.same_training.strategy == "ddp"
    assert (
        "Not equivalent to single-device training (stale gradients): parameter_server_async, 2 ranks (1.5 updates on "
        "average, 4 at most). The fastest that is equivalent to single-device training: ddp native, 2 ranks: 40.0 ms "
        "per step."
    ) in answer.sentence


def test_weak_scaling_has_an_answer_per_workload(tmp_path):
    cases = [fake.case(strategy=s, world_size=n, global_batch=8 * n) for n in (1, 2, 4) for s in ("ddp", "fsdp")]
    answers = spots(tmp_path, fake.sweep(cases, lambda one: SPEED[one.strategy]))
    assert [answer.workload for answer in answers] == [
        "global batch 8 (1 rank, 8 each)",
        "global batch 16 (2 ranks, 8 each)",
        "global batch 32 (4 ranks, 8 each)",
    ]
    assert answers[1].sentence.startswith("global batch 16 (2 ranks, 8 each): Fastest: ddp native, 2 ranks")


def test_vocabulary_is_part_of_the_workload_and_split_is_not(tmp_path):
    cases = [fake.case(vocabulary=v) for v in ("", "gpt2.tiktoken")]
    answers = spots(tmp_path, fake.sweep(cases, lambda _: 0.04))
    assert [answer.workload for answer in answers] == ["vocabulary of bytes", "vocabulary gpt2.tiktoken"]
    (answer,) = spots(tmp_path, fake.sweep([fake.case(split=s) for s in ("batch", "sample")], lambda _: 0.04))
    assert len(answer.tied) == 1
