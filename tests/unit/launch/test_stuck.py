"""The failure of a launch that hangs, from the answers of its ranks."""

from typing import Any

import numpy as np
import pytest

from parabench.launch.outcome import diagnose, missing_call
from parabench.launch.processes import ProcessOutcome
from parabench.launch.results import NodeResult, RankReport
from parabench.store.record import Status

STEPS, MARKS = 4, 5


def group(ranks: list[int], last: int, *pending: tuple[int, str], messages: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"ranks": ranks, "last": last, "pending": [list(each) for each in pending], "messages": list(messages)}


def answer(**groups: Any) -> dict[str, Any]:
    return {"enqueued": STEPS * MARKS, "groups": groups}


EVERYBODY = [0, 1, 2, 3]
WAITS = group(EVERYBODY, 58, (58, "all_reduce"))


def hung(answers: list[dict[str, Any]], reached: list[int], stacked: list[int] | None = None) -> NodeResult:
    marks = [np.full((STEPS, MARKS), np.nan) for _ in answers]
    for own, far in zip(marks, reached, strict=True):
        own.reshape(-1)[:far] = np.arange(far)
    return NodeResult(
        node=0, host="h", first_rank=0, began_s=0.0, outcome=ProcessOutcome(ok=False, hung=True),
        reports=[RankReport(rank=rank, reported=False) for rank in range(len(answers))], marks=marks,
        tails=["a stack"] * len(answers), stacked=list(range(len(answers))) if stacked is None else stacked,
        answers=answers,
    )  # fmt: skip


def told(part: NodeResult) -> tuple[int | None, str, str]:
    status, failure = diagnose([part], lambda moments: "to step {}, part {}".format(*divmod(moments, MARKS)), 20.0)
    assert status is Status.HUNG
    assert failure is not None
    assert failure.traceback is not None
    return failure.rank, failure.message, failure.traceback


def test_hang_names_the_missing_collective_and_rank() -> None:
    """All devices have the same progress, and all hosts have enqueued every step."""
    answers = [answer(**{"0": group(EVERYBODY, 57) if rank == 2 else WAITS}) for rank in EVERYBODY]
    rank, message, stacks = told(hung(answers, [7] * 4))
    assert rank == 2
    assert message == (
        "no end after 20 s; it came least far, to step 1, part 2 (its device; its host had enqueued to step 4, part 0)"
        "; rank 2 has not called all_reduce number 58 of the group of ranks 0, 1, 2, 3, in which ranks 0, 1, 3 wait"
    )
    assert stacks.startswith("rank 0: not over: all_reduce 58 of the group of ranks 0, 1, 2, 3:\na stack")
    assert "rank 2:\na stack" in stacks


@pytest.mark.parametrize(
    ("answers", "reached", "blamed", "end"),
    [
        ([{"enqueued": 20}] * 4, [8, 8, 6, 8], 2,
         "to step 1, part 1 (its device; its host had enqueued to step 4, part 0)"),
        # The devices have the same progress.
        ([{"enqueued": 20}, {"enqueued": 8}], [7, 7], 1,
         "to step 1, part 2 (its device; its host had enqueued to step 1, part 3)"),
        ([answer(**{"0": group([0, 1], 58, (58, "all_reduce"))})] * 2, [7, 7], None,
         "no end after 20 s; 2 ranks came equally far, to step 1, part 2; see their stacks"),
    ],
)  # fmt: skip
def test_hang_names_the_slowest_device_or_host(answers: Any, reached: list[int], blamed: int | None, end: str) -> None:
    rank, message, _ = told(hung(answers, reached))
    assert rank == blamed
    assert message.endswith(end)


@pytest.mark.parametrize("absent", [1, 3])
def test_a_group_of_some_ranks_is_known_by_its_name_and_ranks(absent: int) -> None:
    """A rank that never called the group's collectives has no record of it; another group may have the same name."""
    pairs = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    answers = {
        rank: answer(**({} if rank == absent else {"tp": group(ranks, 3, (3, "all_gather"))}))
        for rank, ranks in pairs.items()
    }
    assert missing_call(answers) == (
        [absent],
        f"rank {absent} has not called all_gather number 3 of the group of ranks {absent - 1}, {absent}, in which rank "
        f"{absent - 1} waits",
    )
