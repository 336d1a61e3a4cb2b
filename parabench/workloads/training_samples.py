"""What ranks handed over, as rows of the record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parabench.plan.protocol import Counts, Protocol
from parabench.store.record import WAIT, CollectiveSample, Phase, Sample, SeenCall, Span


def phases_of(protocol: Protocol, counts: Counts) -> list[Phase]:
    """The phase of each step of a launch that takes so many warm-up and measured ones."""
    each = {
        Phase.WARMUP: counts.warmup, Phase.MEASURE: counts.measured, Phase.INSTRUMENT: protocol.instrumented,
        Phase.PROFILE: protocol.traced,
    }  # fmt: skip
    return [phase for phase, count in each.items() for _ in range(count)]


def samples(rank: int, marks: Any, result: Mapping[str, Any], phases: Sequence[Phase]) -> Iterator[Sample]:
    """One rank's samples: the parts of every step it finished, its losses, and its memory."""
    for step, row in enumerate(marks):
        if math.isnan(row[-1]):
            break
        yield Sample(rank, step, phases[step], "step_s", float(row[-1] - row[0]))
        for part, begin, end in parts_of(row):
            yield Sample(rank, step, phases[step], part, float(end - begin))
    for step, loss in enumerate(result.get("loss", [])):
        yield Sample(rank, step, phases[step], "loss", loss if math.isfinite(loss) else None)
    if result.get("grad_norm") is not None:
        norm = result["grad_norm"]
        yield Sample(rank, 0, Phase.WARMUP, "grad_norm", norm if math.isfinite(norm) else None)
    for step, metric, value in result.get("readings", []):
        yield Sample(rank, step, phases[step], metric, value)
    for metric, value in result.get("numbers", {}).items():
        yield Sample(rank, None, Phase.MEASURE, metric, value)


def spans(rank: int, marks: Any, result: Mapping[str, Any], phases: Sequence[Phase]) -> Iterator[Span]:
    """One rank's instrumented steps on the clock: their parts, and when training stood still for communication."""
    for step, row in enumerate(marks):
        if phases[step] is Phase.INSTRUMENT and not math.isnan(row[-1]):
            for part, begin, end in parts_of(row):
                yield Span(rank, step, part.removesuffix("_s"), float(begin), float(end))
    for step, begin, end in result.get("waits", []):
        yield Span(rank, step, WAIT, begin, end)


def collectives(rank: int, result: Mapping[str, Any], phases: Sequence[Phase]) -> Iterator[CollectiveSample]:
    """One rank's calls of collectives in the instrumented steps."""
    for each in result.get("collectives", []):
        call = SeenCall(*each)
        yield CollectiveSample(
            rank, call.step, call.seq, call.op, call.algorithm, len(call.ranks), call.bytes, call.start_s,
            call.duration_s, phases[call.step], None, None, ranks_word(call.ranks), call.dtype, call.made_s,
            call.bucket, call.ready_s,
        )  # fmt: skip


def told(results: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What instruments told of single ranks, as facts: {name: [{"rank", what it told}]}."""
    facts: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        for name, value in result.get("told", {}).items():
            facts.setdefault(name, []).append({"rank": result["rank"], **value})
    return facts


def phase_windows(marks: Sequence[Any], phases: Sequence[Phase]) -> dict[str, tuple[float, float]]:
    """{phase: (begin, end)} of a launch, from its first rank's first step to its last rank's last, on the clock that
    all processes of a host share. A phase that no rank finished a step of is left out."""
    windows: dict[str, tuple[float, float]] = {}
    for steps in marks:
        # A rank that ended amid a warm-up by time had not yet made room for the steps after it.
        for row, phase in zip(steps, phases, strict=False):
            if not math.isnan(row[-1]):
                begin, end = windows.get(phase, (math.inf, -math.inf))
                windows[phase.value] = min(begin, float(row[0])), max(end, float(row[-1]))
    return windows


def ranks_word(ranks: Sequence[int]) -> str:
    """The ranks of a group in a word: `0-3` where they follow one another, else `0,2`."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def parts_of(row: npt.NDArray[np.float64]) -> Iterator[tuple[str, float, float]]:
    """(part, begin, end) of a step's marks. Where forward and backward took turns there is no mark between them."""
    begin, loaded, forward, backward, end = row
    yield "data_s", begin, loaded
    if math.isnan(forward):
        yield "forward_backward_s", loaded, backward
    else:
        yield "forward_s", loaded, forward
        yield "backward_s", forward, backward
    yield "optimizer_s", backward, end
