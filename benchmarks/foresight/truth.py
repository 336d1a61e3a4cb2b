"""Measure what predictions are held against: step times on emulated machines, and what they may be foretold from.

    python -m benchmarks.foresight.truth OUT [--only base|held] [--session NAME]

`base` are trainings of one device and of two ranks, and single collectives of two ranks, on one node and over each
link; `held` are trainings that a prediction must not have seen: more ranks, more nodes, other buckets and algorithms.
Each session has a folder in OUT with its store; one that is complete is not run again. A line says of each case how
long its step took and how much of the CPU's time was idle meanwhile; where that is too little, or a launch failed, it
does not count. OUT/truth.csv has the same of all. Needs root, `ip` and `tc`, and a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import csv
import signal
import sys
import time
from pathlib import Path

from benchmarks.foresight.machines import Session, SessionFailed
from benchmarks.foresight.measured import Measured, measured
from benchmarks.foresight.sessions import KINDS
from benchmarks.hosts import NoNodes

TABLE = "truth.csv"
COLUMNS = (
    "kind", "session", "nodes", "per_node", "rate", "case", "label", "step_s", "least_idle", "ok", "launches", "counts",
)  # fmt: skip


def finished(kind: str, session: Session, folder: Path) -> list[Measured]:
    """Run the session unless it is complete, print its cases, and return them; none where it failed."""
    print(f"{kind} {session.name}:", end=" ", flush=True)
    if session.is_done(folder):
        print("already measured")
    else:
        began = time.monotonic()
        try:
            session.run(folder)
        except SessionFailed as why:
            print(f"failed: {why}", flush=True)
            return []
        print(f"{time.monotonic() - began:.0f} s")
    found = measured(folder)
    for each in found:
        print(f"  {each.case.label:<50} {session.machine!s:<12} {each}", flush=True)
    return found


def row(kind: str, session: Session, of: Measured) -> tuple[object, ...]:
    machine = session.machine
    return (
        kind, session.name, machine.nodes, machine.per_node, machine.rate or "", of.case.id, of.case.label,
        of.step_s, of.least_idle, len(of.idle), of.launches, of.counts,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.foresight.truth")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--session", help="the only one to run, by its name")
    asked = parser.parse_args()
    # Whoever ends this process with a signal leaves no namespace behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows, whole = [], True
    try:
        for kind in [asked.only] if asked.only else KINDS:
            for session in KINDS[kind]():
                if asked.session in (None, session.name):
                    found = finished(kind, session, asked.out / kind / session.name)
                    whole = whole and bool(found)
                    rows += [row(kind, session, each) for each in found]
    except NoNodes as why:
        print(why, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    if asked.session is None and asked.only is None:
        with (asked.out / TABLE).open("w", newline="") as table:
            csv.writer(table).writerows([COLUMNS, *rows])
    print(f"{len(rows)} cases, of which {sum(bool(each[-1]) for each in rows)} count")
    sys.exit(0 if whole else 1)


if __name__ == "__main__":
    main()
