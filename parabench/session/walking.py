"""Walking a session to its end: what is left of the plan, then perhaps more blocks; each launch is kept as it ends."""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from parabench.errors import NodeGone, UsageError
from parabench.plan.plan import C, P, Plan, Skipped
from parabench.session.progress import make_progress, say
from parabench.session.resume import Opened, resume_command
from parabench.session.runner import Progress, Walk, turns_left
from parabench.session.stopping import Until
from parabench.signals import STOPPED, Interrupted, stop_signals
from parabench.store.record import Launch
from parabench.store.store import Store

NOT_OK = 1


def walk_session(
    store: Store,
    opened: Opened[C, P],
    console: Console,
    make: Callable[[Callable[[Launch], None], Progress], Walk[C, P]],
    prefix: str = "",
    until: Until | None = None,
    go_on: str | None = None,
) -> int:
    """Launch what is left and store each launch as it ends; returns the exit code.

    `make(keep, progress)` is what walks the plan; it is called when there is something to launch. Every line that is
    said begins with `prefix`. `until` adds blocks once the planned ones are done. `go_on`
    is the command that resumes the session, where it is not the usual one.
    """
    planned = opened.plan
    go_on = go_on or resume_command(store.path, planned.kind, *(until.options if until else ()))
    resume_with = f"every finished launch is kept; resume with: {go_on}"

    def tell(line: str) -> None:
        say(console, prefix + line)

    def keep(finished: Launch) -> None:
        store.append(opened.session_id, finished)

    def replan(changed: Plan[C, P]) -> None:
        store.replan(opened.session_id, changed.to_dict())

    for reason, labels in grouped(planned.skipped).items():
        tell(f"skipped {labels[0] if len(labels) == 1 else f'{len(labels)} cases'}: {reason}")
    if opened.done:
        total = len(planned.turns())
        tell(f"resuming: {total - len(turns_left(planned, opened.done))} of {total} launches are done")
    walk: Walk[C, P] | None = None
    ran = False
    plan: Plan[C, P] | None = planned
    try:
        with stop_signals():
            while plan is not None:
                done = store.launches_done(opened.session_id)
                left = turns_left(plan, done)
                if left:
                    with make_progress(console, len(left), plan.blocks, prefix) as progress:
                        if walk is None:
                            walk = make(keep, progress)
                        walk.plan, walk.done, walk.progress = plan, done, progress
                        walk.replan = replan
                        walk.run()
                        plan = walk.plan
                store.finish_session(opened.session_id)
                ran = bool(plan.cases)
                plan = until.grown(store, opened.session_id, plan, tell, go_on) if until and ran else None
    except Interrupted as stop:
        tell(f"stopped by {stop}; {resume_with}")
        return STOPPED
    except NodeGone as why:
        tell(f"the session ends here: {why}; {resume_with}")
        return NOT_OK
    except (OSError, sqlite3.Error) as error:
        # The machine, not the case: a full disk or memory file system.
        raise UsageError(f"the run cannot go on: {error}; {resume_with}") from error
    return 0 if store.all_ok(opened.session_id) and ran else NOT_OK


def concluding(code: int, folder: Path, conclude: Callable[[], None], tell: Callable[[str], None]) -> int:
    """Conclude a session that ended with `code`, and is all stored in `folder`; the exit code of the command."""
    try:
        with stop_signals():
            conclude()
    except Interrupted as stop:
        tell(f"stopped by {stop}; all is stored, write the report with: parabench report {shlex.quote(str(folder))}")
        return STOPPED
    return code


def grouped(skipped: Sequence[Skipped[Any]]) -> dict[str, list[str]]:
    """Labels of skipped cases by the reason that they share."""
    reasons: dict[str, list[str]] = {}
    for each in skipped:
        reasons.setdefault(each.reason, []).append(each.case.label)
    return reasons
