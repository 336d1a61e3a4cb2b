"""Read NCCL's log, and the files of its Inspector.

NCCL has no interface for its choices, so a separate launch runs with its log enabled. The Inspector is a plugin that
times every collective (NCCL's ext-profiler/inspector); `report --from` reads its files.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from parabench.plan.schedule import TrainingSchedule

# The number of bytes that are read of a file. The Inspector writes some hundred bytes per call.
MOST_BYTES = 64 << 20
# Larger than every size and number of ranks.
MOST = 1 << 53

# NCCL's numbers of algorithms and protocols, which it logged instead of names before 2.24 (src/include/nccl_common.h).
ALGORITHMS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")

OPS = {
    "AllReduce": "all_reduce", "ReduceScatter": "reduce_scatter", "AllGather": "all_gather", "Broadcast": "broadcast",
    "Reduce": "reduce", "Send": "send", "Recv": "recv", "AlltoAll": "all_to_all", "Gather": "gather",
    "Scatter": "scatter",
}  # fmt: skip

_FACTS = {
    "version": re.compile(r"(?:NCCL|RCCL) version (?:: )?(\d\S*)"),
    "network": re.compile(r"NCCL INFO Using network (.+)"),
}
_CHANNELS = re.compile(r"\b(\d{1,9}) (coll|collnet|nvls|p2p) channels(?! per peer)")
_TRANSPORT = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? ?: \d+\[\S+\] -> \d+\[\S+\](?: \[\w+\])? via (\S.*)")
# Before NCCL 2.24, these are numbers without channels; before 2.20, the operation is missing.
_CHOICE = re.compile(
    r"NCCL INFO (?:(\w+): )?(\d{1,15}) Bytes -> Algo (\w+) proto (\w+)"
    r"(?: channel\{Lo\.\.Hi\}=\{(\d{1,9})\.\.(\d{1,9})\})?"
)
# The host and the prefix of a message. It may be in the middle of a line if several ranks write to one file.
MESSAGE = re.compile(r"(\S+):\d+:\d+ \[\d+\].* NCCL [A-Z]+ ")
COMMUNICATOR = re.compile(r" nranks (\d{1,7})\b")


def environment(schedule: TrainingSchedule, folder: Path) -> dict[str, str]:
    """Return the variables that let NCCL write its log, one file per process; {} unless the schedule explains."""
    if not schedule.explain:
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,P2P,SHM,NET,TUNING",
        "NCCL_DEBUG_FILE": str(folder / "nccl-%p.log"),
    }


def left_behind(schedule: TrainingSchedule, folder: Path) -> dict[str, dict[str, Any]]:
    """Return {"nccl": facts} from the log of this process, after it has left its group; {} without a log."""
    log = folder / f"nccl-{os.getpid()}.log"
    if not schedule.explain or not log.exists():
        return {}
    with log.open("rb") as file:
        return {"nccl": parse_log(file.read(MOST_BYTES).decode(errors="replace"))}


def parse_log(text: str) -> dict[str, Any]:
    """Return the facts in a log of NCCL. Missing facts are None or empty.

    If several ranks or communicators write to one log, their connections add up.
    """
    seen: dict[str, Any] = dict.fromkeys(_FACTS)
    channels: dict[str, int] = {}  # {kind: number}
    transports: Counter[str] = Counter()  # connections of each
    # Only a communicator's first rank logs choices. Bytes of a reduce-scatter or an all-gather are one rank's part.
    choices: Counter[tuple[Any, ...]] = Counter()
    for line in map(str.rstrip, text.splitlines()):
        for name, pattern in _FACTS.items():
            if match := pattern.search(line):
                seen[name] = match[1]
        if match := _TRANSPORT.search(line):
            transports[match[1]] += 1
        elif match := _CHOICE.search(line):
            op, size, algorithm, protocol, low, high = match.groups()
            used = None if low is None or int(high) < int(low) else int(high) - int(low) + 1
            names = _name(algorithm, ALGORITHMS), _name(protocol, PROTOCOLS)
            choices[None if op is None else OPS.get(op, op), int(size), *names, used] += 1
        elif "coll channels" in line:
            channels |= {kind: int(count) for count, kind in _CHANNELS.findall(line)}
    columns = ("op", "bytes", "algorithm", "protocol", "channels")
    listed = [dict(zip(columns, choice, strict=True)) | {"calls": calls} for choice, calls in choices.items()]
    return seen | {"channels": channels, "transports": dict(transports), "choices": listed}


def _name(word: str, names: tuple[str, ...]) -> str:
    """Return parabench's name for an algorithm or protocol, which NCCL logs as a number or in another spelling."""
    if not word.isdigit():
        return word.lower().replace("_", "")
    return names[int(word)] if len(word) == 1 and int(word) < len(names) else word


# {the plugin's name of a number after `coll_` or `p2p_`: (parabench's name, the factor to SI units)}
NUMBERS = {
    "exec_time_us": ("duration_s", 1e-6),
    "algobw_gbs": ("algbw_bytes_per_s", 1e9),
    "busbw_gbs": ("busbw_bytes_per_s", 1e9),
}


def inspected(text: str) -> list[dict[str, Any]]:
    """Return an entry for each operation and size in the text of a file of the Inspector.

    An entry has "op", "bytes", "ranks", "calls", and the medians "duration_s", "algbw_bytes_per_s" and
    "busbw_bytes_per_s", which are None if the file has none.
    """
    calls: dict[tuple[str, Any, Any], list[dict[str, Any]]] = {}
    ranks: Any = None
    for entry in _entries(text):
        # Each object has a header, or the first one is the header of the others.
        header = entry.get("header")
        ranks = header.get("n_ranks") if isinstance(header, dict) else ranks
        for kind, name in (("coll_", "coll"), ("p2p_", "p2p")):
            call = entry.get(f"{kind}perf")
            if isinstance(call, dict) and name in call:
                op: Any = call[name]
                size: Any = call.get(f"{kind}msg_size_bytes")
                # Otherwise, it is damaged, or of an unknown version.
                if isinstance(op, str) and _is_number(size) and _is_number(ranks):
                    numbers = {ours: call.get(f"{kind}{theirs}") for theirs, (ours, _) in NUMBERS.items()}
                    calls.setdefault((OPS.get(op, op), size, ranks), []).append(numbers)
    listed = []
    for (op, size, n), each in calls.items():
        entry = {"op": op, "bytes": size, "ranks": n, "calls": len(each)}
        for ours, factor in NUMBERS.values():
            values = [call[ours] * factor for call in each if _is_number(call[ours])]
            entry[ours] = median(values) if values else None
        listed.append(entry)
    return listed


def _entries(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file with any layout, without damaged ones, such as a last object that is cut off."""
    decoder, at = json.JSONDecoder(strict=False), 0
    while (at := text.find("{", at)) >= 0:
        try:
            entry, at = decoder.raw_decode(text, at)
        except ValueError:
            at = text.find("\n", at)
            if at < 0:
                return
        else:
            yield entry


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < MOST  # type: ignore[operator]
