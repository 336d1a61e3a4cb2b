"""The node where the nodes of a Slurm step meet. torchrun reads no variables of Slurm."""

# Seen with Slurm 22.05:
# - A batch script has the job's variables (SLURM_NNODES, SLURM_NTASKS, ...) and SLURM_NODEID=0, SLURM_PROCID=0, as if
#   it were a task. SLURM_STEP_* exist only in processes that srun starts. The shell of `salloc` may be a task as well:
#   of an interactive step of one node.
# - `srun --pty` connects its first task to a terminal, and sets SLURM_PTY_PORT, which steps that are started there
#   inherit. No other task has a terminal.
# - SLURM_STEP_NODELIST and SLURM_NODEID are the step's own, also if it has only some of the job's nodes: node 0 is the
#   first of that list, which is sorted. SLURM_PROCID counts tasks; with `srun -m arbitrary` task 0 is on another node.
# - SLURM_LAUNCH_NODE_IPADDR is where srun itself runs: a batch script's node 0, or a login node.

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping

from parabench.cluster.network import addresses_of, is_loopback

SCONTROL_DEADLINE_S = 30.0


def reachable_host(nodelist: str, environ: Mapping[str, str]) -> str | None:
    """Return a name or address of the list's first node; `None` if neither the network nor Slurm resolves it.

    Loopback is the last choice: if /etc/hosts maps a host's own name to 127.0.1.1, no other host reaches its port.
    """
    known = []
    for host in _hosts(first_host(nodelist), environ):
        addresses = addresses_of(host)
        if not all(is_loopback(address) for address in addresses):
            return host
        known += [host] if addresses else []
    return known[0] if known else None


def first_host(nodelist: str) -> str:
    """Return the first name of Slurm's list: `rack1n03` for `rack[1-2]n[03-04],x`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    assert first is not None
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def _hosts(name: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield names and addresses that may lead to a node, the best first."""
    yield name
    address = _slurms_address(name)
    if address is not None:
        yield address
    # The host of the batch script, unless srun was started elsewhere, which no variable shows.
    if "SLURM_LAUNCH_NODE_IPADDR" in environ and first_host(environ["SLURM_JOB_NODELIST"]) == name:
        yield environ["SLURM_LAUNCH_NODE_IPADDR"]


def _slurms_address(name: str) -> str | None:
    """Return the address that Slurm itself uses, NodeAddr; `None` if scontrol fails, as in many containers."""
    command = ["scontrol", "--oneliner", "show", "node", name]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=SCONTROL_DEADLINE_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bNodeAddr=(\S+)", shown)
    return found[1] if found else None
