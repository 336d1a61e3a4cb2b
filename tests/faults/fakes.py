"""`parabench` whose launches are made up: all else, from the options to the store, is as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tests.faults.trial import ROOT

SUITE = '''\
"""Which bucket size survives?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="ddp", bucket_mib=(0.5, 1), world_size=2)
PROTOCOL = Protocol(warmup=2, steps=2, launches=2, rounds=2, instrumented=1)
'''
# One launch of one device, one per case, and two shared ones. The second number is the launches per case that count.
LAUNCHES, COUNTED = 5, 6


def main(words: Sequence[str], before: Callable[[int], None] = lambda launch: None) -> int:
    """Run a command and return its exit code; `before` is called with the number of each launch before it starts."""
    sys.path.append(str(ROOT / "tests" / "fixtures"))
    from fake_launch import FakeLauncher
    from parabench.cli import main as parabench
    from parabench.cluster.topology import Participants

    fake = FakeLauncher()

    def launch(spec: Any) -> Any:
        before(len(fake.specs))
        return fake(spec)

    Participants.executor = lambda self: launch  # type: ignore[method-assign]
    try:
        parabench([*words], prog_name="parabench")
    except SystemExit as end:
        return int(end.code or 0)
    return 0
