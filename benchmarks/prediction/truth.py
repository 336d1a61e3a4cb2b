"""Measure the truth that predictions are compared with: step times on emulated machines, and the calibration.

    python -m benchmarks.prediction.truth OUT [--only base|held] [--session NAME]

`base` sessions are training runs of one device and of two ranks, and single collectives of two ranks, on one node and
over each link. `held` sessions are training runs that a prediction has not seen: more ranks and nodes, other buckets
and algorithms. Each session has a folder in OUT, and is not repeated if it is complete. Prints for each case its step
time and the idle share of the CPU time. A case does not count if this share is too small or a launch failed. Needs
root, `ip`, `tc`, and a machine without other load.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from benchmarks.hosts import NodeFailed, NoNodes
from benchmarks.prediction.machines import Session
from benchmarks.prediction.measured import Measured, measured
from benchmarks.prediction.sessions import KINDS


def finished(kind: str, session: Session, folder: Path) -> list[Measured] | None:
    """Run the session unless it is complete, print its training runs, and return them; None if it failed."""
    print(f"{kind} {session.name}:", end=" ", flush=True)
    if session.is_done(folder):
        print("already measured")
    else:
        began = time.monotonic()
        try:
            session.run(folder)
        except NodeFailed as why:
            print(f"failed: {why}", flush=True)
            return None
        print(f"{time.monotonic() - began:.0f} s")
    found = measured(folder)
    for each in found:
        print(f"  {each.case.label:<50} {session.machine!s:<12} {each}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction.truth")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--session", help="the name of the only session to run")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    cases, whole = list[Measured](), True
    try:
        for kind in [asked.only] if asked.only else KINDS:
            for session in KINDS[kind]():
                if asked.session in (None, session.name):
                    found = finished(kind, session, asked.out / kind / session.name)
                    whole = whole and found is not None
                    cases += found or []
    except NoNodes as why:
        print(why, file=sys.stderr)
        sys.exit(2)
    print(f"{len(cases)} cases, of which {sum(each.counts for each in cases)} count")
    sys.exit(0 if whole else 1)


if __name__ == "__main__":
    main()
