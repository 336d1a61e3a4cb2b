"""Let a rank report its position when the driver requests it, to explain a launch that hangs.

The position has the number of timestamps that the host has enqueued, and the last collectives of each process group.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from parabench.files import hand_over_file
from parabench.machine import accelerator
from parabench.probes.step_clock import StepClock
from parabench.signals import HANG_REQUEST

# The request is a signal. The training thread may be inside a call that never returns, so Python handlers do not run.
# The interpreter writes a byte to a file descriptor at once (`signal.set_wakeup_fd`), and a thread waits for it.

# The largest number of pending calls per group: a pipeline may have any number of messages under way.
MOST_PENDING = 8

# The clock of the launch that this process takes part in, and its device.
_clocks: list[tuple[StepClock, torch.device]] = []


def set_clock(clock: StepClock, device: torch.device) -> None:
    """Set the clock that `answer` and `settle` read."""
    _clocks[:] = [(clock, device)]


def settle() -> None:
    """Write the timestamps that the device has reached to the table of marks, without waiting for others."""
    for clock, device in _clocks:
        # If the device has failed, reading raises again, and its timestamps are lost.
        with contextlib.suppress(RuntimeError):
            if device.type == accelerator.TYPE:
                accelerator.api().set_device(device)  # the current device is a thread's own
            clock.read()


def listen(folder: Path, rank: int) -> None:
    """Start a thread that answers when the driver sends the signal HANG_REQUEST. Call this in the main thread."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.signal(HANG_REQUEST, lambda *_: None)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)

    def wait() -> None:
        while HANG_REQUEST not in os.read(reads, 64):
            pass
        answer(folder, rank)

    threading.Thread(target=wait, name="parabench hang", daemon=True).start()


def answer(folder: Path, rank: int) -> None:
    """Write this rank's position to `folder`: {"enqueued": number of timestamps, "groups": the result of `flight`}."""
    settle()
    position: dict[str, Any] = {}
    for clock, _ in _clocks:
        if clock.enqueued is not None:
            position["enqueued"] = clock.enqueued
    # Another version of torch may have another dump format (KeyError, ...) or another signature (TypeError).
    with contextlib.suppress(RuntimeError, ValueError, AttributeError, KeyError, TypeError):
        position["groups"] = flight()
    hand_over_file(folder / f"standing{rank}.json", json.dumps(position))


def read_answer(folder: Path, rank: int) -> dict[str, Any]:
    """Return the position that a rank wrote; empty if it wrote none."""
    try:
        position: dict[str, Any] = json.loads((folder / f"standing{rank}.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return position


def flight() -> dict[str, Any]:
    """Return the last collectives of this process, by process group, from c10d's flight recorder (FlightRecorder.hpp).

    For each group: "ranks", "last" (number of the last collective), "pending" ([number, operation] of unfinished
    collectives), and "messages" (operations of unfinished sends and receives).
    """
    world = dist.distributed_c10d._world
    ranks = {name: sorted(world.pg_group_ranks.get(group, {})) for group, name in world.pg_names.items()}
    groups: dict[str, dict[str, Any]] = {}
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(torch._C._distributed_c10d, name, None)
        if dump is None:
            continue
        for entry in json.loads(dump(includeCollectives=True, onlyActive=False)).get("entries", []):
            group = entry["process_group"][0]
            known = groups.setdefault(group, {"ranks": ranks.get(group, []), "last": 0, "pending": [], "messages": []})
            operation = entry["profiling_name"].partition(":")[2] or entry["profiling_name"]
            over = entry["retired"] or entry["state"] == "completed"
            if entry["is_p2p"]:
                if not over and len(known["messages"]) < MOST_PENDING:
                    known["messages"].append(operation)
                continue
            number = entry["collective_seq_id"]
            known["last"] = max(known["last"], number)
            if not over and len(known["pending"]) < MOST_PENDING and [number, operation] not in known["pending"]:
                known["pending"].append([number, operation])
    return groups
