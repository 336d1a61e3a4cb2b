"""Read traces of torch.profiler (Kineto) in the Trace Event Format, one or more files for each rank.

The names are from torch 2.13 and from Kineto's `output_json.cpp`. `ts` counts microseconds after `baseTimeNanoseconds`.

- `ProfilerStep#N`: a step. A trace without steps is one window, as in HolisticTraceAnalysis
- kernels of NCCL, with arguments about the collective
- `record_param_comms`: the call of the kernel with the same `External id`
- `gloo:all_reduce`: a collective of gloo, on the thread that runs it
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parabench.analysis.stats import intervals as sets
from parabench.imports.recording import (
    Recording,
    content,
    distinct,
    op_of,
    parsed,
    product,
    rank_in_name,
    ranks_in,
    table_of,
    text_of,
    type_of,
)
from parabench.plan.case import line
from parabench.store.record import COMMUNICATION, OTHER, WAIT, Phase

NAME = "kineto"

_ANNOTATION, _OPERATOR, _KERNEL = "user_annotation", "cpu_op", "kernel"
_STEP, _ENGINE, _MODULE = "step", "engine", "module"
_NOTED, _CALLED, _ON_DEVICE = "noted", "called", "on device"
# Roles of events on the host by their names. The group of a pattern is the event's label.
_BY_NAME = (
    (_STEP, re.compile(r"ProfilerStep ?#(\d{1,9})")),
    (_ENGINE, re.compile(r"autograd::engine::evaluate_function().*")),
    (_NOTED, re.compile(r"((?:gloo|mpi|ucc|\w*ccl\w*):\w+)")),
    (_CALLED, re.compile(r"record_param_comms()")),
)
# Annotations that name a part of a step, in small letters: torch's, and the usual ones of scripts, such as
# `## forward ##`. Without `forward`, the forward of DDP or FSDP counts.
_PARTS = (
    ("data", re.compile(r"enumerate\(dataloader\)#.*|data|dataloader|data_loading|next_batch")),
    ("optimizer", re.compile(r"optimizer\.(step|zero_grad)#.*|optimizer|optimizer_step|optim")),
    ("forward", re.compile(r"forward")),
    ("backward", re.compile(r"backward")),
    (_MODULE, re.compile(r"(distributeddataparallel|fullyshardeddataparallel)\.forward")),
)
# Kernels that communicate: NCCL in all versions, RCCL, MSCCL, oneCCL, HCCL, NVSHMEM, DeepEP, torch's symmetric
# memory, Transformer Engine, and the all-reduces of vLLM, SGLang and aiter.
_LIBRARY = re.compile(
    r"(?:^|::)(?:nccl|rccl|msccl|oneccl|hccl|nvshmem|cross_device_reduce|multimem_|(?:one|two)_shot_|userbuffers_"
    r"|(?:deep_ep|dpsk::ep|quickreduce|pplx\w*)::(?!layout))",
    re.IGNORECASE,
)
# The operation in an NCCL kernel's name. Some versions run others under it (NVIDIA/nccl#714), so it names the kernel.
_KERNEL_OP = re.compile(r"nccl(?:\w*Kernel_)?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)(?![a-z])")
# Words in the names of backends that run on CPUs, and on CUDA devices.
_ON_CPU, _ON_CUDA = frozenset({"gloo", "mpi", "ucc", "cpu"}), frozenset({"nccl", "cuda"})
# Arguments with the number of elements of a call.
_COUNTS = ("In msg nelems", "Out msg nelems")
# The longest kernels of a rank that are kept by name.
_MOST_KERNELS = 20

Steps = list[tuple[int, float, float]]
# A set of times: rows of begin and end, sorted and apart from one another.
Pairs = npt.NDArray[np.float64]
_NOTHING = np.zeros((0, 2))


class _Call(NamedTuple):
    """An event of a collective that starts `at` and stops at `end`, in seconds. `op` is empty if it is unknown."""

    op: str
    at: float
    end: float
    args: Mapping[str, Any]
    external: int | None
    thread: object

    @property
    def sized(self) -> bool:
        return any(name in self.args for name in _COUNTS)


@lru_cache(maxsize=1 << 14)
def _role(kind: str, name: str) -> tuple[str, str]:
    """Return (role, label) of an event; empty if it is irrelevant. The label of an NCCL kernel is its operation."""
    if kind == _KERNEL:
        bare = re.split(r"[<(]", re.sub(r"\(anonymous namespace\)::|^void ", "", name), maxsplit=1)[0]
        if not _LIBRARY.search(bare):
            return _KERNEL, line(name.removeprefix("void "))
        op = _KERNEL_OP.match(bare)
        return _ON_DEVICE, f"{op[1]} kernel" if op else line(bare)
    for role, pattern in _BY_NAME:
        if found := pattern.fullmatch(name):
            return role, found[1]
    if kind == _OPERATOR:
        return ("", "") if name.startswith("c10d::") else (_OPERATOR, "")
    bare = name.strip("# ").lower()
    return next(((part, "") for part, pattern in _PARTS if pattern.fullmatch(bare)), ("", ""))


@dataclass
class _Trace:
    """The relevant events of a trace, in seconds after `zero_us`.

    `times` has the begins and ends of events in turn, by role and label (for operators, thread). Collectives are
    kernels (`on_device`), annotations (`noted`), or calls of the host by id (`called`).
    """

    zero_us: int | None = None
    begin: float = math.inf
    end: float = -math.inf
    times: dict[tuple[str, object], array[float]] = field(default_factory=lambda: defaultdict(lambda: array("d")))
    on_device: list[_Call] = field(default_factory=list)
    noted: list[_Call] = field(default_factory=list)
    called: dict[int | None, _Call] = field(default_factory=dict)
    backends: dict[str, None] = field(default_factory=dict)

    def of(self, role: str) -> dict[object, array[float]]:
        """Return {label: begins and ends, in turn} of the events of a role."""
        return {label: times for (name, label), times in self.times.items() if name == role}

    @property
    def kernels(self) -> int:
        return len(self.on_device) + sum(len(times) // 2 for times in self.of(_KERNEL).values())

    def take(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """Handle a JSON object of the file: keep relevant events, and return objects that are not events unchanged."""
        if "ph" not in value:
            return value
        kind = value.get("cat")
        if value["ph"] != "X" or kind not in (_KERNEL, _ANNOTATION, _OPERATOR):
            return None
        name, args = value["name"], value.get("args") or {}
        at_us, lasts_us = float(value["ts"]), float(value["dur"])
        # CUPTI writes 0 for a kernel whose times it does not know (pytorch/kineto#109).
        if kind == _KERNEL and at_us == lasts_us == 0:
            return None
        if self.zero_us is None:
            self.zero_us = math.floor(at_us)
        # Differences of whole microseconds are exact.
        at, end = (at_us - self.zero_us) / 1e6, (at_us + lasts_us - self.zero_us) / 1e6
        self.begin, self.end = min(self.begin, at), max(self.end, end)
        role, label = _role(kind, name)
        collective = args.get("Collective name")
        if kind == _KERNEL and collective:
            role = _ON_DEVICE
        if role == _NOTED:
            backend, _, label = label.partition(":")
            self.backends[backend] = None
            label = op_of(label) or ""
        thread = value.get("tid")
        if role in (_ON_DEVICE, _CALLED, _NOTED):
            op = (op_of(collective) if collective else None) or label
            external = args.get("External id", args.get("external id"))
            one = _Call(op, at, end, args, external, thread)
            if role == _CALLED and external is not None:
                self.called[external] = one
            elif role != _CALLED and op:
                (self.noted if role == _NOTED else self.on_device).append(one)
        elif role:
            self.times[role, thread if role == _OPERATOR else label].extend((at, end))
        return None


def read(path: Path) -> Recording:
    """Read a trace file."""
    trace = _Trace()
    head = parsed(text_of(content(path)), trace.take)
    head = {} if isinstance(head, list) else head
    if "zero_s" in (head.get("otherData") or {}):
        raise ValueError(
            "`parabench export --trace` wrote it; give `parabench report` the results database or folder that it shows"
        )
    found = _recording(path, trace, head)
    if trace.of(_STEP):
        steps = [(int(str(number)), times[0], times[1]) for number, times in trace.of(_STEP).items()]
        steps.sort(key=lambda step: step[1])
    elif trace.begin < trace.end:
        found.whole, steps = True, [(0, trace.begin, trace.end)]
    else:
        found.unknown.append("it has no operators, annotations or kernels with a time")
        return found
    found.steps = {number: (begin, end) for number, begin, end in steps}
    found.kernels = _longest(trace, steps)
    reasons = len(found.unknown)
    calls, timed = _collectives(trace, found)
    found.parts = list(_parts(trace, found.device, steps, calls if timed else ()))
    communicates = any(part == COMMUNICATION for _, part, _, _ in found.parts)
    if not (communicates or found.world_size == 1 or len(found.unknown) > reasons):
        found.unknown.append(
            "no collective ran within its steps, so communication is unknown"
            if calls
            else "it has no collective, so communication is unknown: if there were several "
            "processes, start the profiler after init_process_group"
        )
    found.calls = table_of(_calls(found, trace, calls, timed))
    return found


def _recording(path: Path, trace: _Trace, head: Mapping[str, Any]) -> Recording:
    """Return a recording with the facts in the `head` of a trace, without its steps."""
    info, base_ns = head.get("distributedInfo") or {}, head.get("baseTimeNanoseconds") or 0
    size, rank = info.get("world_size"), info.get("rank")
    if size is not None and rank is not None and rank >= size:
        raise ValueError(f"it claims to be rank {rank} of {size}")
    backends = distinct([info.get("backend"), *trace.backends])
    return Recording(
        file=path.name,
        kind=NAME,
        rank=rank_in_name(path.name) if rank is None else rank,
        world_size=size,
        host=line(head["host_name"]) if "host_name" in head else None,
        device=_device(trace, backends),
        backend=line(backends[0]) if backends else None,
        gpus=[
            {"name": line(each["name"]), "memory_bytes": each.get("totalGlobalMem")}
            for each in head.get("deviceProperties") or []
            if "name" in each
        ],
        groups={
            str(each.get("pg_name", at)): ranks_in(each.get("ranks"))
            for at, each in enumerate(info.get("pg_config") or [])
        },
        base_ns=base_ns,
        zero_ns=base_ns + (trace.zero_us or 0) * 1000,
    )


def _device(trace: _Trace, backends: Iterable[str]) -> str | None:
    """Return the device that computed; None if it is unknown or another accelerator."""
    words = set(re.findall(r"[a-z]+", " ".join(backends).lower()))
    if words - _ON_CPU - _ON_CUDA:
        return None
    return "cuda" if trace.kernels or words & _ON_CUDA else "cpu" if words else None


def _longest(trace: _Trace, steps: Steps) -> dict[str, list[float]]:
    """Return {name: seconds in each step} of the kernels that compute longest. Their start decides the step."""
    begins, ends = (np.array([step[at] for step in steps]) for at in (1, 2))
    found = {}
    for name, times in trace.of(_KERNEL).items():
        pairs = np.reshape(times, (-1, 2))
        step = np.searchsorted(begins, pairs[:, 0], side="right") - 1
        inside = (step >= 0) & (pairs[:, 0] < ends[step])
        lengths = (pairs[:, 1] - pairs[:, 0])[inside]
        found[str(name)] = np.bincount(step[inside], lengths, minlength=len(begins)).tolist()
    return dict(sorted(found.items(), key=lambda each: -sum(each[1]))[:_MOST_KERNELS])


def _collectives(trace: _Trace, found: Recording) -> tuple[Sequence[_Call], bool]:
    """Return the events of collectives, if possible of the device, and whether their times are times of running."""
    if trace.on_device:
        kernels = Counter(one.external for one in trace.on_device)
        calls = []
        for one in trace.on_device:
            call = trace.called.get(one.external)
            # A kernel without arguments gets them from its call. If a call launches several, their sizes are unknown.
            if call is not None and not one.sized:
                one = one._replace(op=call.op or one.op, args=call.args if kernels[one.external] == 1 else {})
            calls.append(one)
        return calls, True
    called = [one for one in trace.called.values() if one.op]
    if called or (trace.noted and found.device != "cpu"):
        found.unknown.append(
            f"none of its {trace.kernels:,} kernels is known as a collective's, so when they ran is unknown"
            if trace.kernels
            else "it has no kernels, so when collectives ran is unknown: profile the device, too"
        )
    # NCCL's annotations have the time when the host called it.
    return called or trace.noted, not called and found.device == "cpu"


def _parts(
    trace: _Trace, device: str | None, steps: Steps, timed: Iterable[_Call]
) -> Iterator[tuple[int, str, float, float]]:
    """Yield (step, name, begin, end): annotated parts of each step, the rest, communication, and its exposed part."""
    named = {part: union(*trace.of(part).values()) for part, _ in _PARTS if trace.of(part)}
    module = named.pop(_MODULE, None)
    if module is not None:
        named.setdefault("forward", module)
    if "backward" not in named and len(engine := union(*trace.of(_ENGINE).values())):
        named["backward"] = bridged(engine, [*named.values(), np.array(steps)[:, 1:]])
    running = union([time for one in timed for time in (one.at, one.end)])
    others = {COMMUNICATION: running}
    if trace.kernels:
        others[WAIT] = without(running, union(*trace.of(_KERNEL).values()))
    elif device == "cpu":
        # The backend's threads do not compute for the training run.
        serving = {one.thread for one in trace.noted}
        computing = union(*(times for thread, times in trace.of(_OPERATOR).items() if thread not in serving))
        others[WAIT] = without(running, computing)
    for step, begin, end in steps:
        parts = {name: within(pairs, begin, end) for name, pairs in named.items()}
        parts[OTHER] = without(union((begin, end)), union(*parts.values()))
        parts |= {name: within(pairs, begin, end) for name, pairs in others.items()}
        for name, pairs in parts.items():
            yield from ((step, name, *pair) for pair in pairs.tolist())


def _calls(found: Recording, trace: _Trace, calls: Iterable[_Call], timed: bool) -> Iterator[dict[str, Any]]:
    """Yield collectives that were called within steps as rows of `Recording.calls`, in the order of their starts."""
    steps = [(begin, end, number) for number, (begin, end) in found.steps.items()]
    for seq, one in enumerate(sorted(calls, key=lambda one: one.at)):
        call = trace.called.get(one.external)
        made = one.at if not timed else call.at if call is not None and call.at <= one.at else None
        time = one.at if made is None else made
        place = bisect(steps, (time, math.inf)) - 1
        if place < 0 or time > steps[place][1]:
            found.skipped["left out: they were made outside of the recorded steps"] += 1
            continue
        ranks, size, count, dtype = _size(one, found)
        yield {
            "step": steps[place][2], "seq": seq, "op": one.op or "unknown", "ranks": ranks, "group_size": size,
            "bytes": count, "dtype": dtype, "made_s": made, "number": one.args.get("Seq"), "phase": Phase.INSTRUMENT,
        } | ({"start_s": one.at, "duration_s": one.end - one.at} if timed else {})  # fmt: skip


def _size(one: _Call, found: Recording) -> tuple[tuple[int, ...] | None, int | None, int | None, str | None]:
    """Return (ranks, number of ranks, bytes, type) of a collective. Add the reasons of unknown values to `found`."""
    args = one.args
    if one.sized:
        # torch shortens a list of more than 30 ranks. The trace's list of groups is complete.
        ranks = ranks_in(args.get("Process Group Ranks")) or found.groups.get(str(args.get("Process Group Name")))
        size = args.get("Group size") or (len(ranks) if ranks else None)
        ranks = ranks if ranks and len(ranks) == size else None
        kind = type_of(args.get("dtype"))
        if kind is None:
            found.skipped["without a size: their types are unknown"] += 1
            return ranks, size, None, None
        # The larger buffer counts.
        return ranks, size, max(args.get(name) or 0 for name in _COUNTS) * kind[1], kind[0]
    known = set(found.groups.values())
    ranks = next(iter(known)) if len(known) == 1 else None
    size = None if ranks is None else len(ranks)
    if one.op == "barrier":
        return ranks, size, 0, None
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not shapes or not types:
        reason = "profile with record_shapes=True" if found.device == "cpu" else "the trace has none, as in CUDA graphs"
        found.skipped[f"without a size: {reason}"] += 1
        return ranks, size, None, None
    counts, kinds = [product(shape) for shape in shapes], {type_of(each) for each in types}
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    # A rank contributes its part of the gathered buffer.
    times = size if one.op in ("all_gather", "gather") else 1
    if None in counts or kind is None or times is None:
        found.skipped["without a size: their shapes, types or groups are unknown"] += 1
        return ranks, size, None, kind and kind[0]
    return ranks, size, sum(each or 0 for each in counts) * kind[1] * times, kind[0]


# -- sets of times -----------------------------------------------------------------------------------------------------


def union(*several: Any) -> Pairs:
    """Return the union of intervals in any order. Each argument has pairs (begin, end), or begins and ends in turn."""
    return without(np.concatenate([_NOTHING, *(np.reshape(each, (-1, 2)) for each in several)]), _NOTHING)


def within(pairs: Pairs, begin: float, end: float) -> Pairs:
    """Return the parts of a set of intervals between two times."""
    first, last = np.searchsorted(pairs[:, 1], begin, side="right"), np.searchsorted(pairs[:, 0], end)
    return np.clip(pairs[first:last], begin, end)


def without(pairs: Pairs, others: Pairs) -> Pairs:
    """Return the union of the intervals `pairs`, without the times that are in `others`."""
    left, right = (sets.union(np.zeros(len(each)), each[:, 0], each[:, 1]) for each in (pairs, others))
    kept = left - right
    return np.column_stack([kept.start, kept.end])


def bridged(pieces: Pairs, others: Iterable[Pairs]) -> Pairs:
    """Join consecutive intervals of `pieces`, unless an interval of `others` begins in the gap between them."""
    begins = np.sort(np.concatenate([pairs[:, 0] for pairs in others]))
    between = np.searchsorted(begins, pieces[1:, 0], side="right") > np.searchsorted(begins, pieces[:-1, 1])
    first = np.append(True, between)
    last = np.append(np.flatnonzero(first)[1:] - 1, len(pieces) - 1)
    return np.column_stack([pieces[first, 0], pieces[last, 1]])
