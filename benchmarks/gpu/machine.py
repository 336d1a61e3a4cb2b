"""The software on this machine, and whether a fork server may be between the driver and CUDA."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch

from benchmarks.gpu.check import Outcome, Target, check


@check("doctor", "names the device; no traceback", 120)
def doctor(target: Target) -> Outcome:
    ended = subprocess.run([sys.executable, "-m", "parabench", "doctor"], capture_output=True, text=True)
    # NVML's name of a slice lacks what torch appends, such as "MIG 1g.10gb".
    named = target.name.partition(" MIG ")[0]
    lines = [line.strip() for line in ended.stdout.splitlines() if named in line]
    passed = ended.returncode in (0, 1) and bool(lines) and "Traceback" not in ended.stdout + ended.stderr
    return Outcome.judged(
        lines[0] if lines else f"exit code {ended.returncode}, no line with {named!r}; {ended.stderr[-300:]}",
        passed,
        output=ended.stdout[-6000:],
    )


@check("fork-server", "the server has not touched CUDA; its child can use it", 90)
def fork_server(target: Target) -> Outcome:
    """Check that a child of the fork server, as every rank is, finds CUDA untouched and can use it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["parabench.launch.preload"])
    answers: SimpleQueue[Any] = context.SimpleQueue()
    child = context.Process(target=_child, args=(answers, str(target.device)))
    child.start()
    child.join(60)
    if child.exitcode != 0 or answers.empty():
        child.kill()
        return Outcome.judged(f"the child ended with {child.exitcode}", False)
    bad_fork, initialized, total = answers.get()
    return Outcome.judged(
        f"in the child: bad fork {bad_fork}, CUDA initialized too early {initialized}, the sum of 8 ones {total:g}",
        not bad_fork and not initialized and total == 8.0,
    )


def _child(answers: Any, device: str) -> None:
    bad_fork = bool(torch._C._cuda_isInBadFork()) if hasattr(torch._C, "_cuda_isInBadFork") else False
    initialized = torch.cuda.is_initialized()
    answers.put((bad_fork, initialized, float(torch.ones(8, device=device).sum())))
