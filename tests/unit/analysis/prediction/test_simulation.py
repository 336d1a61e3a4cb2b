"""Schedules that were computed by hand."""

from __future__ import annotations

import pytest

from parabench.analysis.prediction.simulation import Lane, Span, Task, simulate

COMPUTE, QUEUE = Lane(0), Lane(0, "all ranks")


def spans(*tasks: Task, compute_slowed: float = 1.0) -> list[tuple[float, float]]:
    return [(round(each.begin, 9), round(each.end, 9)) for each in simulate(tasks, compute_slowed)]


def test_a_lane_does_one_task_at_a_time_in_their_order() -> None:
    assert spans(Task("a", (COMPUTE,), 2), Task("b", (COMPUTE,), 3), Task("c", (COMPUTE,), 1)) == [
        (0, 2),
        (2, 5),
        (5, 6),
    ]


def test_a_bucket_is_reduced_while_the_rest_of_backward_goes_on() -> None:
    forward, first, second = (Task(name, (COMPUTE,), 2) for name in ("forward", "backward", "backward"))
    reduced = Task("all_reduce", (QUEUE,), 3, after=(1,))
    last = Task("all_reduce", (QUEUE,), 1, after=(2,))
    optimizer = Task("optimizer", (COMPUTE,), 1, after=(3, 4))
    # The second bucket is ready at 6 and waits for the first until 7.
    assert spans(forward, first, second, reduced, last, optimizer) == [(0, 2), (2, 4), (4, 6), (4, 7), (7, 8), (8, 9)]


def test_both_slow_down_where_they_meet() -> None:
    # While both run the collective does 2/3 of a second in each, so it ends at 6; 4 of 10 s are computed by then.
    found = spans(
        Task("compute", (COMPUTE,), 10),
        Task("all_reduce", (QUEUE,), 4, slowed=1.5),
        compute_slowed=1.5,
    )
    assert found == [(0, 12), (0, 6)]


def test_what_communicates_slows_down_nobody_on_other_ranks() -> None:
    there = Lane(1, "all ranks")
    found = spans(Task("compute", (COMPUTE,), 10), Task("send", (there,), 4, slowed=2.0), compute_slowed=2.0)
    assert found == [(0, 10), (0, 4)]


def test_a_collective_begins_when_the_last_rank_comes_to_it() -> None:
    both = (Lane(0, "pair"), Lane(1, "pair"))
    found = spans(
        Task("forward", (Lane(0),), 1),
        Task("forward", (Lane(1),), 4),
        Task("all_gather", both, 2, after=(0, 1)),
        Task("optimizer", (Lane(0),), 1, after=(2,)),
    )
    assert found == [(0, 1), (0, 4), (4, 6), (6, 7)]


def test_a_task_of_no_length_ends_when_it_begins() -> None:
    assert spans(Task("a", (COMPUTE,), 1), Task("mark", (COMPUTE,), 0), Task("b", (COMPUTE,), 1)) == [
        (0, 1),
        (1, 1),
        (1, 2),
    ]
    assert simulate([]) == []


def test_a_pipeline_of_two_stages_has_the_bubble_that_its_schedule_says() -> None:
    # GPipe, 2 stages and m microbatches of 1 s forward and 1 s backward: (m + 1) * 2 s, with 2 s of bubble a stage.
    m = 4
    tasks = [Task("forward", (Lane(0),), 1) for _ in range(m)]
    tasks += [Task("forward", (Lane(1),), 1, (part,)) for part in range(m)]
    tasks += [Task("backward", (Lane(1),), 1) for _ in range(m)]
    tasks += [Task("backward", (Lane(0),), 1, (2 * m + part,)) for part in range(m)]
    assert max(end for _, end in simulate(tasks)) == (m + 1) * 2


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([Task("a", (COMPUTE,), 1, (1,)), Task("b", (QUEUE,), 1, (0,))], "wait for one another: a, b"),
        ([Task("a", (COMPUTE,), 1, (1,)), Task("b", (COMPUTE,), 1)], "wait for one another: a, b"),
        ([Task("a", (COMPUTE,), 1, (7,))], "task 0, a, is after task 7, which is not there"),
    ],
)
def test_what_cannot_be_done_is_said(tasks: list[Task], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        simulate(tasks)


def test_time_goes_on_without_rounding_to_a_stop() -> None:
    thirds = [Task("a", (COMPUTE,), 1 / 3) for _ in range(300)]
    thirds += [Task("b", (QUEUE,), 0.1, slowed=1.3) for _ in range(1000)]
    found = simulate(thirds, 1.1)
    assert all(isinstance(each, Span) and each.end > each.begin for each in found)
