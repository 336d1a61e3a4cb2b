"""From a command to this node's place in a session: what every command that measures calls. Free of torch, which the
rest of this package brings, so that wrong input is said at once."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parabench.cluster.topology import Topology
from parabench.machine.machine import Machine
from parabench.signals import STOPPED, Interrupted

if TYPE_CHECKING:
    from parabench.cluster.coordinator import Coordinator


def place_in(
    site: Topology | None,
    options: Sequence[str],
    suite: Path | None,
    machine: Machine,
    out: Path,
    say: Callable[[str], None],
) -> Coordinator | int | None:
    """The crew that node 0 leads; for every other node, which has followed, the exit code; None on one node.

    `options` decide what is measured, as they are typed, and `suite` is the file that is asked for: all nodes must have
    them alike. Raises UsageError.
    """
    if site is None or site.nodes == 1:
        return None
    from parabench.cluster.join import Asked, take_place

    return take_place(site, Asked(suite=suite, options=options), machine, out, say)


def led(crew: Coordinator | None, lead: Callable[[], tuple[int, int]], say: Callable[[str], None]) -> tuple[int, int]:
    """What `lead()` returns, the exit code and the session; however it ends, no node of the crew waits for this one.

    The session is 0 where the wait for the nodes was stopped: none had begun.
    """
    if crew is None:
        return lead()
    from parabench.cluster.join import leading

    try:
        with leading(crew):
            return lead()
    except Interrupted as stop:
        say(f"stopped by {stop}; nothing was launched yet")
        return STOPPED, 0


def dismiss(crew: Coordinator | None, code: int) -> None:
    """The session is over, well or not: every node may go, with that exit code."""
    if crew is not None:
        host = f"node 0 ({socket.gethostname()})"
        over = f"the session was stopped; what is done is on {host}, where it can be resumed"
        crew.close(code, over if code == STOPPED else f"the session is over; store and report are on {host}")
