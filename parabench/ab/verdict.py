"""How `parabench ab` ends: what was compared, the verdict, and where all is."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from parabench.ab.variant import Setting
from parabench.session.resume import REPORT_NAME
from parabench.store.store import load

if TYPE_CHECKING:
    from parabench.analysis.compare.gate import Comparison


def conclude(
    path: Path,
    sessions: Sequence[int],
    settings: Sequence[Setting],
    tolerance: float,
    alpha: float,
    say: Callable[[str], None],
) -> Comparison:
    """Write the report of side b; say what each side was, how both compare and where all is."""
    from parabench.analysis.compare.gate import compare
    from parabench.analysis.compare.rule import ALPHA, TOLERANCE
    from parabench.analysis.compare.sides import differences, side_of
    from parabench.report.build import write_report

    results = load(path)
    base, candidate = (side_of(results, id, role) for id, role in zip(sessions, ("base", "candidate"), strict=True))
    # What differs between the sides is what the user set out to judge.
    changed = tuple(each.name for each in differences(base, candidate) if each.matters)
    outcome = compare(base, candidate, tolerance, alpha, changed)
    report = write_report(results, path.with_name(REPORT_NAME), str(sessions[1]))
    again = ["parabench", "compare", f"{path}@{base.session.name}", f"{path}@{candidate.session.name}"]
    again += ["--tolerance", str(tolerance)] if tolerance != TOLERANCE else []
    again += ["--alpha", str(alpha)] if alpha != ALPHA else []
    again += chain.from_iterable(("--changed", name) for name in changed)
    told = [f"{each.name}: {each.shown() or 'as it is here'}" for each in settings]
    for line in (*told, *outcome.lines(), f"store:  {path}", f"report: {report}", f"again:  {shlex.join(again)}"):
        say(line)
    return outcome
