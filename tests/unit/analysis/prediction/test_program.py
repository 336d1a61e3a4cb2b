"""A rank's program as tasks, against schedules computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from parabench.analysis.prediction.buckets import Gradient
from parabench.analysis.prediction.program import Call, Group, Program, Segment, Times, program_of, tasks
from parabench.analysis.prediction.simulation import parts_of, simulate

ALL = [0, 1]


def call(op: str, size: int, ranks: list[int] = ALL) -> list[Any]:
    return ["call", op, size, ranks, 1e-4]


def step_s(program: Program, seconds: float) -> float:
    return simulate(tasks([program], lambda _: Times(seconds, seconds)).tasks)[-1].end


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


def test_what_reduces_no_gradients_stays_behind_the_buckets() -> None:
    """With find_unused_parameters DDP also reduces which parameters were used, once the last bucket is on its way."""
    events = [
        ["part", "forward"], ["work", 1.0], ["part", "backward"], ["work", 2.0], call("all_reduce", 20), ["work", 2.0],
        call("all_reduce", 20), call("all_reduce", 4), ["part", "optimizer"], ["work", 1.0], call("broadcast", 8),
        ["wait", 3], ["work", 1.0],
    ]  # fmt: skip
    gradients = [["d", 10, 1.0], ["c", 10, 2.0], ["b", 10, 3.0], ["a", 10, 4.0]]
    one = program_of(events, 2, gradients).with_caps([40])
    assert [each.bytes for each in one.calls] == [40, 4, 8]
    assert [each.waits for each in one.events if each.kind == "wait"] == [2]
    # Forward 1, backward 4, two calls, the optimizer 1, its broadcast 1, and 1 more.
    assert step_s(one, 1.0) == 10.0


@pytest.mark.parametrize("by", [0.5, 3.0])
def test_a_scaled_program_takes_as_many_times_as_long(by: float) -> None:
    events = [["part", "backward"], ["work", 2.0], call("all_reduce", 8), ["work", 1.0]]
    program = program_of(events, 2, [["a", 8, 2.0]]).scaled(by)
    assert (program.work_s, program.gradients[0].ready_s) == (3.0 * by, 2.0 * by)


def message(op: str, source: int, target: int) -> list[Any]:
    return call(op, 8, [source, target])


# GPipe of two stages and two micro-batches: forward takes 1 s, backward 2 s, a message 0.5 s, the optimizer 1 s.
FIRST = [
    ["part", "forward"], ["work", 1.0], message("send", 0, 1), ["work", 1.0], message("send", 0, 1), ["wait", 0],
    ["wait", 1], message("recv", 1, 0), ["wait", 2], ["work", 2.0], message("recv", 1, 0), ["wait", 3], ["work", 2.0],
    ["part", "optimizer"], ["work", 1.0],
]  # fmt: skip
LAST = [
    ["part", "forward"], message("recv", 0, 1), ["wait", 0], ["work", 1.0], message("recv", 0, 1), ["wait", 1],
    ["work", 1.0], ["work", 2.0], message("send", 1, 0), ["work", 2.0], message("send", 1, 0), ["wait", 2], ["wait", 3],
    ["part", "optimizer"], ["work", 1.0],
]  # fmt: skip


def test_a_pipeline_waits_for_messages_and_for_other_stages() -> None:
    found = tasks([program_of(FIRST, 2), program_of(LAST, 2)], lambda _: Times(0.5, 0.5))
    spans = simulate(found.tasks)
    # The first activations are there at 1.5, the second at 3, because the last stage asks for them at 2.5; its backward
    # passes are from 4 to 6 and 8. The first stage's are from 6.5 to 8.5, then it asks for the rest, and from 9 to 11.
    messages = [spans[at].end for at in found.calls]
    assert sorted(messages) == [1.5, 3.0, 6.5, 9.0]
    parts = parts_of(found.tasks, spans, dict.fromkeys(found.calls, "near"), ranks=2)
    assert parts.step_s == 12.0
    assert (parts.compute_s, parts.exposed_s, parts.bubble_s) == (7.0, {"near": 1.0}, 4.0)


def test_what_stages_call_together_begins_when_the_last_of_them_calls() -> None:
    """The gradients of weights that the first and the last of three stages share."""
    tied = call("all_reduce", 8, [0, 2])
    programs = [program_of([["part", "backward"], ["work", work], *calls, ["part", "optimizer"], ["work", 1.0]], 3)
                for work, calls in ((4.0, [tied, ["wait", 0]]), (9.0, []), (1.0, [tied, ["wait", 0]]))]  # fmt: skip
    found = tasks(programs, lambda _: Times(2.0, 2.0))
    spans = simulate(found.tasks)
    assert [(spans[at].begin, spans[at].end) for at in found.calls] == [(4.0, 6.0)]
    parts = parts_of(found.tasks, spans, dict.fromkeys(found.calls, "near"), ranks=3)
    # The stage that computes longest waits for nobody.
    assert (parts.step_s, parts.compute_s, parts.bubble_s) == (10.0, 10.0, 0.0)


def test_a_message_has_two_ends() -> None:
    alone = [program_of([["part", "forward"], message("send", 0, 1)], 2), program_of([["part", "forward"]], 2)]
    with pytest.raises(ValueError, match="one end of a message from 0 to 1 is missing"):
        tasks(alone, lambda _: Times(1.0, 1.0))


def test_messages_that_come_at_once_share_the_link() -> None:
    """Three workers, each on a node of its own, send their gradients to the server at the same time."""
    server = program_of([["part", "optimizer"], *(message("recv", rank, 0) for rank in (1, 2, 3)),
                         *(["wait", at] for at in range(3)), ["work", 1.0]], 4)  # fmt: skip
    workers = [program_of([["part", "backward"], ["work", 1.0], message("send", rank, 0)], 4) for rank in (1, 2, 3)]
    found = tasks([server, *workers], lambda _: Times(2.0, 2.0))
    assert max(span.end for span in simulate(found.tasks)) == pytest.approx(1 + 3 * 2.0 + 1)
    assert {span.end for at, span in enumerate(simulate(found.tasks)) if at in found.calls} == {7.0}


def test_segments_end_where_a_rank_waits_at_once() -> None:
    events = [
        ["part", "forward"], ["work", 1.0], call("all_reduce", 8), ["work", 0.05], ["wait", 0], ["work", 2.0],
        call("all_gather", 8), ["work", 1.0], ["wait", 1], call("all_reduce", 8), ["wait", 2], ["work", 0.5],
    ]  # fmt: skip
    # The all_gather is waited for later; and what follows the last wait belongs to the first segment of the next step.
    assert program_of(events, 2).segments == [Segment(pytest.approx(1.55), 2), Segment(pytest.approx(3.0), 2)]
    assert [each.ranks for each in program_of(events, 2).among(64).segments] == [64, 64]


def test_without_a_blocking_wait_there_are_no_segments() -> None:
    events = [["part", "backward"], ["work", 1.0], call("all_reduce", 8), ["work", 1.0], ["part", "optimizer"]]
    assert program_of(events, 2).segments == []
