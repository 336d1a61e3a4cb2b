"""What NCCL says of itself in its log: version, rings and trees, transports, and what it chose for each size.

NCCL has no interface that tells it, so one launch that never counts runs with its log switched on
(`NCCL_DEBUG=INFO`), and the lines of `src/init.cc`, `src/graph/`, `src/transport/` and `src/enqueue.cc` are read. What
a version does not say stays unknown.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

# NCCL's numbers of algorithms and protocols, which it logged instead of names before 2.24 (src/include/nccl_common.h).
ALGORITHMS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")

OPS = {
    "AllReduce": "all_reduce", "ReduceScatter": "reduce_scatter", "AllGather": "all_gather", "Broadcast": "broadcast",
    "Reduce": "reduce", "Send": "send", "Recv": "recv", "AlltoAll": "all_to_all", "Gather": "gather",
    "Scatter": "scatter",
}  # fmt: skip

_VERSION = re.compile(r"NCCL version (\d\S*)")
_NETWORK = re.compile(r"NCCL INFO Using network (.+)")
_PLUGIN = re.compile(r"NCCL INFO NET/Plugin ?: ?(Loaded net plugin .+|No plugin found.*|Could not find.*)")
_NVLS = re.compile(r"NCCL INFO NVLS multicast support is (not )?available")
_RING = re.compile(r"NCCL INFO Channel (\d+)/(\d+) ?: +((?:\d+ *)+)$")
_TREES = re.compile(r"NCCL INFO Trees (\[.+)")
_TREE = re.compile(r"\[(\d+)\] ([-\d]\S*)")
_CHANNELS = re.compile(r"(\d+) (coll|collnet|nvls|p2p) channels(?! per peer)")
_TRANSPORT = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? ?: \d+\[\S+\] -> \d+\[\S+\](?: \[\w+\])? via (\S.*)")
# 2.24 and later name them, with the channels; before, they are numbers, before 2.20 without the operation.
_CHOICE = re.compile(
    r"NCCL INFO (?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)(?: channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})?"
)


def environment(folder: Path) -> dict[str, str]:
    """What makes NCCL write its log, one file for each process, into `folder`."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,P2P,SHM,NET,TUNING",
        "NCCL_DEBUG_FILE": str(folder / "nccl-%p.log"),
    }


def told(folder: Path) -> dict[str, dict[str, Any]]:
    """{"nccl": what this process' NCCL wrote}, {} where it wrote nothing."""
    path = folder / f"nccl-{os.getpid()}.log"
    return {"nccl": parse(path.read_text(errors="replace"))} if path.exists() else {}


def parse(text: str) -> dict[str, Any]:
    """One process' log: "version", "network", "plugin", "nvls" (whether it could be used), "channels" of each kind,
    "rings" and "trees" ({channel: ranks}), "transports" ({name: connections}), "choices". What is not there is None or
    empty.

    A choice is "op", "bytes", "algorithm", "protocol", "channels" (how many it runs on) and "calls". Bytes are as NCCL
    counts them: of a reduce-scatter or an all-gather one rank's part. Only a communicator's first rank logs choices.
    """
    seen: dict[str, Any] = {"version": None, "network": None, "plugin": None, "nvls": None}
    channels: dict[str, int] = {}
    rings: dict[str, str] = {}
    trees: dict[str, str] = {}
    transports: Counter[str] = Counter()
    choices: Counter[tuple[Any, ...]] = Counter()
    for line in map(str.rstrip, text.splitlines()):
        for name, pattern in (("version", _VERSION), ("network", _NETWORK), ("plugin", _PLUGIN)):
            if match := pattern.search(line):
                seen[name] = match[1]
        if match := _NVLS.search(line):
            seen["nvls"] = match[1] is None
        if match := _RING.search(line):
            rings[str(int(match[1]))] = " ".join(match[3].split())
        elif match := _TREES.search(line):
            trees |= {str(int(channel)): tree for channel, tree in _TREE.findall(match[1])}
        elif match := _TRANSPORT.search(line):
            transports[match[1]] += 1
        elif match := _CHOICE.search(line):
            choices[_choice(match)] += 1
        elif "coll channels" in line:
            channels |= {kind: int(count) for count, kind in _CHANNELS.findall(line)}
    names = ("op", "bytes", "algorithm", "protocol", "channels")
    listed = [dict(zip(names, choice, strict=True)) | {"calls": calls} for choice, calls in choices.items()]
    return seen | {
        "channels": channels, "rings": rings, "trees": trees, "transports": dict(transports), "choices": listed
    }  # fmt: skip


def _choice(match: re.Match[str]) -> tuple[Any, ...]:
    op, size, algorithm, protocol, low, high = match.groups()
    return (
        None if op is None else OPS.get(op, op),
        int(size),
        _name(algorithm, ALGORITHMS),
        _name(protocol, PROTOCOLS),
        None if low is None else int(high) - int(low) + 1,
    )


def _name(word: str, names: tuple[str, ...]) -> str:
    """The name of what is logged as a number, or as a name in another spelling."""
    if not word.isdigit():
        return word.lower().replace("_", "")
    return names[int(word)] if int(word) < len(names) else word
