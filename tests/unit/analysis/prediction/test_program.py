"""The timeline of a rank's program, against timelines computed by hand."""

from typing import Any

from parabench.analysis.prediction.program import Call, Program, program_of, simulated

ALL = [0, 1]


def call(op: str, size: int, ranks: list[int] = ALL) -> list[Any]:
    return ["call", op, size, ranks, 1e-4]


def calls(program: Program) -> list[Call]:
    return [value for kind, value in program.events if kind == "call"]


def step_s(program: Program, seconds: float) -> float:
    return simulated(program, lambda _: (seconds, "a tier"))[0]


def test_timeline_stops_at_a_blocking_call() -> None:
    """FSDP on a CPU: gather, wait, compute, scatter, wait."""
    events = [
        ["part", "forward"], ["work", 1.0], call("all_gather", 8), ["work", 0.0], ["wait", 0], ["work", 2.0],
        ["part", "backward"], ["work", 3.0], call("reduce_scatter", 8), ["work", 0.0], ["wait", 1], ["work", 4.0],
    ]  # fmt: skip
    program = program_of(events, 2)
    assert program.work_s == 10.0
    # 1, gathered at 6, 2 and 3 until 11, scattered at 16, 4.
    assert step_s(program, 5.0) == 20.0


def test_timeline_of_ddp_waits_when_backward_ends() -> None:
    events = [
        ["part", "backward"], ["work", 1.0], call("all_reduce", 8), ["work", 3.0], call("all_reduce", 8), ["work", 1.0],
        ["part", "optimizer"], ["work", 2.0],
    ]  # fmt: skip
    # Called at 1 and 4, backward ends at 5; with 2 s each they end at 3 and 6, with 5 s at 6 and 11.
    assert step_s(program_of(events, 2), 2.0) == 8.0
    assert step_s(program_of(events, 2), 5.0) == 13.0


def test_with_caps_makes_buckets_of_the_gradients() -> None:
    events = [
        ["part", "forward"], ["work", 1.0], ["part", "backward"], ["work", 4.0], call("all_reduce", 40), ["work", 0.0],
        ["part", "optimizer"], ["work", 1.0], call("broadcast", 8), ["work", 0.0], ["wait", 1], ["work", 1.0],
    ]  # fmt: skip
    gradients = [["d", 10, 1.0], ["c", 10, 2.0], ["b", 10, 3.0], ["a", 10, 4.0]]
    program = program_of(events, 2, gradients)
    assert program.gradients == tuple((10, at) for at in (1.0, 2.0, 3.0, 4.0))
    two = program.with_caps([20])
    assert calls(two) == [
        Call("all_reduce", 20, range(2)), Call("all_reduce", 20, range(2)), Call("broadcast", 8, range(2)),
    ]  # fmt: skip
    assert two.work_s == program.work_s
    # Forward 1; ready at 3 and 5; reduced at 4 and 6; the optimizer 1, its broadcast 1, and 1 more.
    assert step_s(two, 1.0) == 9.0
    # A list: one gradient, then the rest.
    assert [each.bytes for each in calls(program.with_caps([10, 30]))] == [10, 30, 8]


def test_timeline_tells_work_from_waiting_by_tier() -> None:
    events = [["part", "forward"], ["work", 1.0], call("all_gather", 8), ["wait", 0], ["work", 2.0],
              call("all_reduce", 4), ["part", "optimizer"], ["work", 1.0]]  # fmt: skip
    found = simulated(program_of(events, 2), lambda each: (float(each.bytes), each.op), slower=2.0)
    assert found == (20.0, {"all_gather": 8.0, "all_reduce": 4.0})
