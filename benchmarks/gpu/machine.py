"""What is here, and whether a fork server may stand between the driver and CUDA."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch

from benchmarks.gpu.check import Check, Seen


def doctor(device: torch.device) -> Seen:
    ended = subprocess.run([sys.executable, "-m", "parabench", "doctor"], capture_output=True, text=True)
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    finds = [line.strip() for line in ended.stdout.splitlines() if named in line]
    passed = ended.returncode in (0, 1) and bool(finds) and "Traceback" not in ended.stdout + ended.stderr
    return Seen.judged(
        finds[0] if finds else f"exit code {ended.returncode}, {named} not named; {ended.stderr[-300:]}",
        passed,
        output=ended.stdout[-6000:],
    )


def imports(device: torch.device) -> Seen:
    """Launching with what is only for reports hidden from the import."""
    # A machine that only measures has no ruptures.
    script = (
        "import sys; sys.modules.update(ruptures=None); "
        "import parabench.launch.launcher, parabench.plan.plan, parabench.store.store, parabench.session.runner; "
        "print('imported')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    said = "imported" if ended.returncode == 0 else ended.stderr.strip().splitlines()[-1]
    return Seen.judged(said, ended.returncode == 0)


def fork_server(device: torch.device) -> Seen:
    """A child of the fork server that ranks come from finds CUDA untouched, and can use it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["parabench.launch.preload"])
    answers: SimpleQueue[Any] = context.SimpleQueue()
    child = context.Process(target=_child, args=(answers, str(device)))
    child.start()
    child.join(60)
    if child.exitcode != 0 or answers.empty():
        child.kill()
        return Seen.judged(f"the child ended with {child.exitcode}", False)
    bad_fork, initialised, total = answers.get()
    return Seen.judged(
        f"in the child: bad fork {bad_fork}, CUDA initialised too early {initialised}, a sum there {total:g}",
        not bad_fork and not initialised and total == 8.0,
    )


def _child(answers: Any, device: str) -> None:
    bad_fork = bool(torch._C._cuda_isInBadFork()) if hasattr(torch._C, "_cuda_isInBadFork") else False
    initialised = torch.cuda.is_initialized()
    answers.put((bad_fork, initialised, float(torch.ones(8, device=device).sum())))


CHECKS = (
    Check("doctor", "names the device; no traceback", 120, doctor),
    Check("imports", "measuring does not need ruptures", 120, imports, rehearsed=True),
    Check("fork-server", "the server has not touched CUDA; its child can use it", 90, fork_server, rehearsed=True),
)
