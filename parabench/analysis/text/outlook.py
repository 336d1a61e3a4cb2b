"""What more ranks are predicted to give, in words."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from parabench.analysis.session import SessionData, holds
from parabench.analysis.text import format
from parabench.plan.case import ranks_in_words

if TYPE_CHECKING:
    from parabench.analysis.prediction.outlook import Outlook
    from parabench.analysis.prediction.predict import Prediction
    from parabench.analysis.ranking.answer import Answer


def outlooks_of(seen: SessionData) -> list[Outlook]:
    """What is predicted beyond a session; none, at no cost, where its store does not tell what ranks compute alone."""
    if not holds(seen.results, "compute"):
        return []
    # pandas and scipy, which take longer than all that `parabench best` does.
    from parabench.analysis.prediction.outlook import outlooks

    return seen.once(outlooks)


def lines(seen: SessionData) -> list[str]:
    """What is expected to be the fastest at more ranks, and what to give for those that nothing is told of."""
    return [line for each in outlooks_of(seen) for line in outlook_lines(each, seen)]


def to_dict(answer: Answer, seen: SessionData) -> dict[str, Any]:
    """The same as JSON, of the model that an answer is of, under the one key that the answer has it by; empty where
    nothing is known (docs/reference/best.schema.json). A prediction is of any number of samples a step."""
    own = {each.case_id for each in (answer.best, *answer.tied, *answer.slower) if each is not None}
    of = next((each for each in outlooks_of(seen) if own & {one.case.id for one in each.trained}), None)
    if of is None:
        return {}
    told = [
        {
            "case": best.case.to_dict(),
            "label": best.case.label,
            "step_time_s": best.step_s,
            "low_s": best.low_s,
            "high_s": best.high_s,
        }
        for size in of.next_sizes
        if (best := of.fastest(size)) is not None
    ]
    return {"more_ranks": {"measured_ranks": of.most, "fastest": told, "command": command_for_more(of, seen) or None}}


def outlook_lines(of: Outlook, seen: SessionData, store: str | None = None) -> Iterator[str]:
    """The same of one outlook: 'Measured up to 2 ranks. At 16 ranks on 8 nodes ddp ring is expected to be the fastest:
    70.5 ms per step (90 %: 46.7 to 107).'"""
    before = f"{of.heading}: " if of.heading else ""
    found = [best for size in of.next_sizes if (best := of.fastest(size)) is not None]
    if found:
        measured = f"{before}Measured up to {ranks_in_words(of.most, 1)}."
        yield from format.in_lines([measured, *map(_fastest, found)])
    if command := command_for_more(of, seen, store):
        yield f"{before}For more ranks: {command}"


def command_for_more(of: Outlook, seen: SessionData, store: str | None = None) -> str:
    """The command that predicts more ranks over links that are given; empty where none are lacking. `store` is what the
    store is called in what others may see."""
    sizes, tiers = of.lacking()
    if not sizes:
        return ""
    from parabench.analysis.prediction.schedule import WITHIN

    # A path may hold bytes that are no text.
    path = store or os.fsencode(seen.results.path).decode(errors="replace")
    command = ["parabench", "predict", path, "--world-size", ",".join(map(str, sizes))]
    for tier in tiers:
        command += ["--link", "local=300GB/s,5us" if tier == WITHIN else "node=25GB/s,20us"]
    return shlex.join(command)


def _fastest(best: Prediction) -> str:
    where = ranks_in_words(best.case.world_size, best.case.nodes)
    return (
        f"At {where} {best.case.label.removesuffix(f', {where}')} is expected to be the fastest: "
        f"{format.milliseconds(best.step_s)} per step (90 %: {format.milliseconds_between(best.low_s, best.high_s)})."
    )
