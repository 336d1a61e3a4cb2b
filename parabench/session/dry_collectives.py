"""`parabench collectives --dry-run`: what a session of collectives would do, on any number of nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from parabench.analysis.text import format
from parabench.machine import accelerator
from parabench.machine.machine import this_machine
from parabench.plan.collective_case import CollectiveCase, size_text
from parabench.plan.collective_protocol import LATENCY, CollectiveProtocol, in_words
from parabench.plan.plan import Plan
from parabench.serve.text import duration
from parabench.session.collectives import COMMENT, NAME, QUESTION, CollectivesRequest, plan_collectives
from parabench.session.dry_run import (
    SCREENFUL,
    case_lines,
    expected_lines,
    largest,
    left_in,
    left_words,
    links_lines,
    planned_for,
    sizes,
)
from parabench.session.estimate import known_seconds, start, taken
from parabench.session.links import expected_links
from parabench.session.progress import say
from parabench.session.resume import Opened
from parabench.session.runner import SURE_BYTES_PER_S, turns_left
from parabench.store.record import check_label
from parabench.store.store import STORE_NAME


def dry_collectives(request: CollectivesRequest, console: Console) -> int:
    """Say what `collectives_run.run_collectives` would do of the same request; returns the exit code. Raises UsageError
    as it would."""
    if request.label is not None:
        check_label(request.label)
    machine, notes = planned_for(request.cluster, os.environ, this_machine(), request.device == accelerator.TYPE)
    plan = plan_collectives(request, machine) if request.plans() or not request.resume else None
    store = request.out / STORE_NAME
    opened = (
        left_in(store, plan, NAME, request.label) if plan is None or request.resume else Opened(session_id=0, plan=plan)
    )
    tell = partial(say, console)
    links = list(expected_links(opened, machine, store)) if request.links else []
    for line in (QUESTION, *notes, *_lines(opened, store, links, SCREENFUL if console.is_terminal else None)):
        tell(f"{COMMENT}{line}".rstrip())
    return 0


def _lines(
    opened: Opened[CollectiveCase, CollectiveProtocol], store: Path, links: Sequence[str], most: int | None
) -> Iterator[str]:
    plan = opened.plan
    left = [turn.case for turn in turns_left(plan, opened.done)]
    yield from case_lines(plan, most)
    yield f"cases:     {len(plan.cases):,}, each once a block, in {format.count(plan.blocks, 'block')}"
    yield f"sizes:     {format.listed(sizes(plan.cases), 8)}"
    ranges = dict.fromkeys(f"{size_text(case.min_bytes)} to {size_text(case.max_bytes)}" for case in plan.cases)
    yield f"buffers:   {format.listed(ranges)}"
    yield f"launches:  {left_words(opened, len(left))}"
    yield from links_lines(links, len(left))
    yield f"timed:     {in_words(plan.protocol.timing)}; {_calls(plan)}"
    yield f"largest:   {largest(plan.cases)}"
    known = known_seconds(store, plan.protocol)
    seen = [known[case.id, False] for case in left if (case.id, False) in known]
    guessed = [case for case in left if (case.id, False) not in known]
    lines = [taken(seen, store)] if seen else []
    if guessed:
        seconds = sum(plan.protocol.expected_s(case, SURE_BYTES_PER_S) for case in guessed)
        rate = f"{SURE_BYTES_PER_S / 1e6:g} MB/s"
        lines.append(f"calls: {duration(seconds)} at most, at {rate} (any link surely carries that)")
        lines.append(f"on top of it what a link carries more than once, and {start(len(guessed))}")
    yield from expected_lines(lines)


def _calls(plan: Plan[CollectiveCase, CollectiveProtocol]) -> str:
    """How many calls a launch times, in words."""
    protocol = plan.protocol
    if protocol.mode == LATENCY:
        counts = sorted(len(protocol.schedule(case)) for case in plan.cases)
        return f"{' to '.join(dict.fromkeys(f'{n:,}' for n in (counts[0], counts[-1])))} a launch"
    each = f"{protocol.iterations:,} calls" if protocol.iterations else f"calls for {protocol.measure_s:g} s in all"
    return f"of each size and form {format.count(protocol.batches, 'batch')} of {each}"
