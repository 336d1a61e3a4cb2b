"""A rank's program as tasks, against schedules computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from parabench.analysis.prediction.buckets import Gradient
from parabench.analysis.prediction.program import Call, Group, Program, Times, program_of, tasks
from parabench.analysis.prediction.simulation import simulate

ALL = [0, 1]


def call(op: str, size: int, ranks: list[int] = ALL) -> list[Any]:
    return ["call", op, size, ranks, 1e-4]


def step_s(program: Program, seconds: float) -> float:
    return simulate(tasks(program, lambda _: Times(seconds, seconds)))[-1].end


def test_a_blocking_call_stops_the_rank() -> None:
    """FSDP on a CPU: gather, wait, compute, scatter, wait."""
    events = [
        ["part", "forward"], ["work", 1.0], call("all_gather", 8), ["work", 0.0], ["wait", 0], ["work", 2.0],
        ["part", "backward"], ["work", 3.0], call("reduce_scatter", 8), ["work", 0.0], ["wait", 1], ["work", 4.0],
    ]  # fmt: skip
    program = program_of(events, 2)
    assert program.work_s == 10.0
    # 1, gathered at 6, 2 and 3 until 11, scattered at 16, 4.
    assert step_s(program, 5.0) == 20.0


def test_ddp_reduces_beside_backward_and_waits_at_its_end() -> None:
    events = [
        ["part", "backward"], ["work", 1.0], call("all_reduce", 8), ["work", 3.0], call("all_reduce", 8), ["work", 1.0],
        ["part", "optimizer"], ["work", 2.0],
    ]  # fmt: skip
    # Called at 1 and 4, backward ends at 5; with 2 s each they end at 3 and 6, with 5 s at 6 and 11.
    assert step_s(program_of(events, 2), 2.0) == 8.0
    assert step_s(program_of(events, 2), 5.0) == 13.0


def test_what_a_call_costs_its_rank_comes_before_it_and_is_work() -> None:
    events = [
        ["part", "backward"], ["work", 1.0], call("all_reduce", 8), call("all_reduce", 16),
        ["part", "optimizer"], ["work", 2.0],
    ]  # fmt: skip
    program = program_of(events, 2)
    costlier = program.calling(lambda each: float(each.bytes))
    assert costlier.calls == program.calls
    assert costlier.work_s == 3.0 + 8.0 + 16.0
    # Called at 9 and 25, and what nothing hides.
    assert step_s(costlier, 0.5) == 25.0 + 0.5 + 2.0
    assert program.calling(lambda _: 0.0) == program


def test_a_call_that_is_waited_for_later_runs_beside_what_comes_between() -> None:
    """FSDP's prefetch: gathered beside the work before it is needed."""
    events = [
        ["part", "forward"], call("all_gather", 8), ["work", 1.0], call("all_gather", 8), ["work", 0.0], ["wait", 0],
        ["work", 4.0], ["wait", 1], ["work", 1.0],
    ]  # fmt: skip
    # Gathered at 3, and at 6 behind it; work from 3 to 7, the second is there, 1 more.
    assert step_s(program_of(events, 2), 3.0) == 8.0


def test_what_nobody_waits_for_ends_the_step() -> None:
    assert (
        step_s(program_of([["part", "optimizer"], ["work", 1.0], call("broadcast", 8), ["work", 1.0]], 2), 5.0) == 6.0
    )


def test_groups_of_all_ranks_grow_and_groups_of_neighbours_do_not() -> None:
    events = [["part", "forward"], call("all_gather", 8, [0, 2, 4, 6]), call("all_reduce", 8, [0, 1]),
              call("all_gather", 8, list(range(8)))]  # fmt: skip
    grown = program_of(events, 8).among(32)
    assert [each.group for each in grown.calls] == [Group(16, 2), Group(2, 1), Group(32, 1)]
    assert program_of(events, 8).among(8).calls == program_of(events, 8).calls


def test_buckets_of_other_caps_are_made_of_the_gradients() -> None:
    events = [
        ["part", "forward"], ["work", 1.0], ["part", "backward"], ["work", 4.0], call("all_reduce", 40), ["work", 0.0],
        ["part", "optimizer"], ["work", 1.0], call("broadcast", 8), ["work", 0.0], ["wait", 1], ["work", 1.0],
    ]  # fmt: skip
    gradients = [["d", 10, 1.0], ["c", 10, 2.0], ["b", 10, 3.0], ["a", 10, 4.0]]
    program = program_of(events, 2, gradients)
    assert program.gradients == tuple(Gradient(10, at) for at in (1.0, 2.0, 3.0, 4.0))
    two = program.with_caps([20])
    assert two.calls == [
        Call("all_reduce", 20, Group(2)), Call("all_reduce", 20, Group(2)), Call("broadcast", 8, Group(2)),
    ]  # fmt: skip
    assert two.work_s == program.work_s
    # Forward 1; ready at 3 and 5; reduced at 4 and 6; the optimizer 1, its broadcast 1, and 1 more.
    assert step_s(two, 1.0) == 9.0
    # A list: one gradient, then the rest.
    assert [each.bytes for each in program.with_caps([10, 30]).calls] == [10, 30, 8]


@pytest.mark.parametrize("by", [0.5, 3.0])
def test_a_scaled_program_takes_as_many_times_as_long(by: float) -> None:
    events = [["part", "backward"], ["work", 2.0], call("all_reduce", 8), ["work", 1.0]]
    program = program_of(events, 2, [["a", 8, 2.0]]).scaled(by)
    assert (program.work_s, program.gradients[0].ready_s) == (3.0 * by, 2.0 * by)
