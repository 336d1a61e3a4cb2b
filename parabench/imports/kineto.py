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
from parabench.imports import stream
from parabench.imports.recording import (
    Recording,
    distinct,
    op_of,
    product,
    rank_in_name,
    ranks_in,
    table_of,
    type_of,
)
from parabench.plan.case import line
from parabench.store.record import COMMUNICATION, OTHER, WAIT, Phase

NAME = "kineto"

_ANNOTATION, _OPERATOR, _KERNEL = "user_annotation", "cpu_op", "kernel"
_STEP, _ENGINE, _MODULE, _MADE = "step", "engine", "module", "made"
_NOTED, _CALLED, _ON_DEVICE = "noted", "called", "on device"
# Roles of events on the host by their names. The group of a pattern is the event's label: the number of a step, or an
# operation of c10d.
_BY_NAME = (
    (_STEP, re.compile(r"ProfilerStep ?#(\d{1,9})")),
    (_ENGINE, re.compile(r"autograd::engine::evaluate_function().*")),
    (_NOTED, re.compile(r"((?:gloo|mpi|ucc|\w*ccl\w*):\w+)")),
    (_CALLED, re.compile(r"record_param_comms()")),
    (_MADE, re.compile(r"c10d::_?([a-z_]+?)_?")),
)
# Annotations that name a part of a step: torch's, and the usual ones of scripts. Without `forward`, the forward of DDP
# or FSDP counts.
_PARTS = (
    ("data", re.compile(r"enumerate\(DataLoader\)#.*|(## ?)?(data|dataloader|data_loading|next_batch)( ?##)?", re.I)),
    ("optimizer", re.compile(r"Optimizer\.(step|zero_grad)#.*|(## ?)?(optimizer|optimizer_step|optim)( ?##)?", re.I)),
    ("forward", re.compile(r"(## ?)?forward( ?##)?", re.I)),
    ("backward", re.compile(r"(## ?)?backward( ?##)?", re.I)),
    (_MODULE, re.compile(r"(DistributedDataParallel|FullyShardedDataParallel)\.forward")),
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


class _Call(NamedTuple):
    """An event of a collective, in microseconds of the trace. `op` is empty if it is unknown."""

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
    """Return the role of an event and its label. The label of a kernel that communicates is its operation."""
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
    return next(((part, "") for part, pattern in _PARTS if pattern.fullmatch(name)), ("", ""))


@dataclass
class _Trace:
    """The relevant events of a trace.

    `times` has the begins and ends of events by role and label, of operators by thread. Collectives have their kernels
    (`on_device`), annotations (`noted`), and calls by id (`called`).
    """

    times: dict[tuple[str, object], array[float]] = field(default_factory=lambda: defaultdict(lambda: array("d")))
    on_device: list[_Call] = field(default_factory=list)
    noted: list[_Call] = field(default_factory=list)
    called: dict[int | None, _Call] = field(default_factory=dict)
    backends: dict[str, None] = field(default_factory=dict)
    begin: float = math.inf
    end: float = -math.inf

    def of(self, role: str) -> dict[object, array[float]]:
        """Return the begins and ends of a role by label."""
        return {label: times for (name, label), times in self.times.items() if name == role}

    @property
    def kernels(self) -> int:
        return len(self.on_device) + sum(len(times) // 2 for times in self.of(_KERNEL).values())

    def shift(self, zero_us: int) -> None:
        """Turn microseconds into seconds after `zero_us`. Differences of whole microseconds are exact."""
        for times in self.times.values():
            view = np.frombuffer(times)
            view -= zero_us
            view /= 1e6

        def moved(one: _Call) -> _Call:
            return one._replace(at=(one.at - zero_us) / 1e6, end=(one.end - zero_us) / 1e6)

        self.on_device, self.noted = ([moved(one) for one in some] for some in (self.on_device, self.noted))
        self.called = {at: moved(one) for at, one in self.called.items()}

    def take(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """Keep the relevant content of an event; return JSON objects that are not events unchanged."""
        if "ph" not in value:
            return value
        kind = value.get("cat")
        if value["ph"] != "X" or kind not in (_KERNEL, _ANNOTATION, _OPERATOR):
            return None
        name, args = value["name"], value.get("args") or {}
        at, lasts = float(value["ts"]), float(value["dur"])
        # CUPTI writes 0 for a kernel whose times it does not know (pytorch/kineto#109).
        if kind == _KERNEL and at == lasts == 0:
            return None
        end = at + lasts
        self.begin, self.end = min(self.begin, at), max(self.end, end)
        role, label = _role(kind, name)
        collective = args.get("Collective name")
        if kind == _KERNEL and collective:
            role = _ON_DEVICE
        if role == _NOTED:
            backend, _, label = label.partition(":")
            self.backends[backend] = None
        if role in (_NOTED, _MADE):
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
    """Return the content of a trace file."""
    trace = _Trace()
    head = stream.parsed(stream.text(stream.content(path)), trace.take)
    head = {} if isinstance(head, list) else head
    if "zero_s" in (head.get("otherData") or {}):
        raise ValueError(
            "`parabench export --trace` wrote it; give `parabench report` the results database or folder that it shows"
        )
    return _recording(path, trace, head)


def _recording(path: Path, trace: _Trace, head: Mapping[str, Any]) -> Recording:
    info = head.get("distributedInfo") or {}
    size, rank = info.get("world_size"), info.get("rank")
    if size is not None and rank is not None and rank >= size:
        raise ValueError(f"it claims to be rank {rank} of {size}")
    backends = distinct([info.get("backend"), *trace.backends])
    found = Recording(
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
        alone=size == 1,
        base_ns=head.get("baseTimeNanoseconds") or 0,
    )
    if not trace.of(_STEP):
        if trace.begin >= trace.end:
            found.unknown.append("it has no operators, annotations or kernels with a time")
            return found
        found.whole = True
        trace.times[_STEP, 0].extend((trace.begin, trace.end))
    zero_us = math.floor(min(map(min, trace.of(_STEP).values())))
    found.zero_ns = found.base_ns + zero_us * 1000
    trace.shift(zero_us)
    windows = {
        (begin, int(str(number)), end)
        for number, times in trace.of(_STEP).items()
        for begin, end in np.reshape(times, (-1, 2)).tolist()
    }
    steps = [(number, begin, end) for begin, number, end in sorted(windows)]
    if len({number for number, _, _ in steps}) < len(steps):
        found.unknown.append("its step numbers repeat, so steps are counted from 0 by their time")
        steps = [(number, begin, end) for number, (_, begin, end) in enumerate(steps)]
    found.steps = {number: (begin, end) for number, begin, end in steps}
    found.kernels = _longest(trace, steps)
    reasons = len(found.unknown)
    calls, timed = _collectives(trace, found)
    running = union([time for one in calls if timed for time in (one.at, one.end)])
    found.parts = list(_parts(trace, steps, running, _computing(trace, found)))
    communicates = any(part == COMMUNICATION for _, part, _, _ in found.parts)
    if not (communicates or found.alone or len(found.unknown) > reasons):
        found.unknown.append(
            "no collective ran within its steps, so communication is unknown"
            if calls
            else "it has no collective, so whether the process communicated is unknown: if there were several "
            "processes, start the profiler after init_process_group"
        )
    found.calls = table_of(_calls(found, trace, calls, timed))
    return found


def _device(trace: _Trace, backends: Iterable[str]) -> str | None:
    """Return the device that computed; None if it is unknown or another accelerator."""
    words = set(re.findall(r"[a-z]+", " ".join(backends).lower()))
    if words - _ON_CPU - _ON_CUDA:
        return None
    return "cuda" if trace.kernels or words & _ON_CUDA else "cpu" if words else None


def _longest(trace: _Trace, steps: Steps) -> dict[str, list[float]]:
    """Return the kernels that compute longest, {name: seconds in each step}. The start of a kernel decides its step."""
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
    """Return the collectives, on the device if they are recorded there, and whether the times of running are known."""
    if trace.on_device:
        return list(_described(trace)), True
    called = [one for one in trace.called.values() if one.op]
    if called or (trace.noted and found.device != "cpu"):
        found.unknown.append(
            f"none of its {trace.kernels:,} kernels is known as a collective's, so when they ran is unknown"
            if trace.kernels
            else "it has no kernels, so when collectives ran is unknown: profile the device, too"
        )
    # NCCL's annotations have the time when the host called it.
    return called or trace.noted, not called and found.device == "cpu"


def _described(trace: _Trace) -> Iterator[_Call]:
    """Yield the kernels that communicate. A kernel without arguments gets them from the call that launched it."""
    kernels = Counter(one.external for one in trace.on_device)
    for one in trace.on_device:
        call = trace.called.get(one.external)
        if one.sized or call is None:
            yield one
        else:
            # If a call launches several kernels, the sizes of each are unknown.
            yield one._replace(op=call.op or one.op, args=call.args if kernels[one.external] == 1 else {})


def _computing(trace: _Trace, found: Recording) -> Pairs | None:
    """Return when the rank computed; None if that was not recorded."""
    if trace.kernels:
        return union(*trace.of(_KERNEL).values())
    if found.device != "cpu":
        return None
    # The backend's threads do not compute for the training run.
    serving = {one.thread for one in trace.noted}
    return union(*(times for thread, times in trace.of(_OPERATOR).items() if thread not in serving))


def _parts(
    trace: _Trace, steps: Steps, running: Pairs, computing: Pairs | None
) -> Iterator[tuple[int, str, float, float]]:
    """Yield (step, name, begin, end): the annotated parts of each step, the rest of the step without a name,
    communication, and its exposed part."""
    named = {part: union(*trace.of(part).values()) for part, _ in _PARTS if trace.of(part)}
    module = named.pop(_MODULE, None)
    if module is not None:
        named.setdefault("forward", module)
    if "backward" not in named and len(engine := union(*trace.of(_ENGINE).values())):
        named["backward"] = bridged(engine, [*named.values(), np.array(steps)[:, 1:]])
    others = {COMMUNICATION: running}
    if computing is not None:
        others[WAIT] = without(running, computing)
    for step, begin, end in steps:
        parts = {name: within(pairs, begin, end) for name, pairs in named.items()}
        parts[OTHER] = without(union((begin, end)), union(*parts.values()))
        parts |= {name: within(pairs, begin, end) for name, pairs in others.items()}
        for name, pairs in parts.items():
            yield from ((step, name, *pair) for pair in pairs.tolist())


def _calls(found: Recording, trace: _Trace, calls: Iterable[_Call], timed: bool) -> Iterator[dict[str, Any]]:
    """Yield the calls within steps as rows of `Recording.calls`, in the order of their starts."""
    ordered = sorted(calls, key=lambda one: one.at)
    counts, nth = Counter(one.op for one in ordered), Counter[str]()
    made_of = {op: sorted(times[::2]) for op, times in trace.of(_MADE).items()}
    steps = [(begin, end, number) for number, (begin, end) in found.steps.items()]
    for seq, one in enumerate(ordered):
        call, made_here = trace.called.get(one.external), made_of.get(one.op, [])
        made = one.at if not timed else call.at if call is not None else None
        # gloo runs calls in their order. So the n-th call is the n-th one to run, if none is missing.
        if made is None and not trace.kernels and len(made_here) == counts[one.op]:
            made = made_here[nth[one.op]]
        nth[one.op] += 1
        made = None if made is None or made > one.at else made
        time = one.at if made is None else made
        place = bisect(steps, (time, math.inf)) - 1
        if place < 0 or time > steps[place][1]:
            found.skipped["left out: they were made outside of the recorded steps"] += 1
            continue
        ranks, size, count, dtype = (_sized_by_nccl if one.sized else _sized)(one, found)
        yield {
            "step": steps[place][2], "seq": seq, "op": one.op or "unknown", "ranks": ranks, "group_size": size,
            "bytes": count, "dtype": dtype, "made_s": made, "number": one.args.get("Seq"), "phase": Phase.INSTRUMENT,
        } | ({"start_s": one.at, "duration_s": one.end - one.at} if timed else {})  # fmt: skip


_Size = tuple[tuple[int, ...] | None, int | None, int | None, str | None]


def _sized(one: _Call, found: Recording) -> _Size:
    """Return (ranks, their number, bytes, type) of a call from the shapes of its inputs; the reasons of unknown values
    are added to `found`."""
    known = set(found.groups.values())
    ranks = next(iter(known)) if len(known) == 1 else None
    size = None if ranks is None else len(ranks)
    if one.op == "barrier":
        return ranks, size, 0, None
    shapes, types = one.args.get("Input Dims"), one.args.get("Input type")
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


def _sized_by_nccl(one: _Call, found: Recording) -> _Size:
    """Return the same from NCCL's arguments. The larger buffer counts."""
    count = max(one.args.get(name) or 0 for name in _COUNTS)
    kind = type_of(one.args.get("dtype"))
    # torch shortens a list of more than 30 ranks. The trace's list of groups is complete.
    ranks = ranks_in(one.args.get("Process Group Ranks")) or found.groups.get(str(one.args.get("Process Group Name")))
    size = one.args.get("Group size") or (len(ranks) if ranks else None)
    if kind is None:
        found.skipped["without a size: their types are unknown"] += 1
    return (ranks if ranks and len(ranks) == size else None), size, kind and count * kind[1], kind and kind[0]


# -- sets of times -----------------------------------------------------------------------------------------------------


def union(*several: Any) -> Pairs:
    """Return the union of intervals in any order, each given as pairs or as a flat row of begins and ends."""
    found = _set(np.concatenate([np.zeros((0, 2)), *(np.reshape(each, (-1, 2)) for each in several)]))
    return np.column_stack([found.start, found.end])


def _set(pairs: Pairs) -> sets.Intervals:
    return sets.union(np.zeros(len(pairs)), pairs[:, 0], pairs[:, 1])


def within(pairs: Pairs, begin: float, end: float) -> Pairs:
    """Return the parts of a set between two times."""
    first, last = np.searchsorted(pairs[:, 1], begin, side="right"), np.searchsorted(pairs[:, 0], end)
    return np.clip(pairs[first:last], begin, end)


def without(pairs: Pairs, others: Pairs) -> Pairs:
    """Return the parts of a set that are not in the other set."""
    left = _set(pairs) - _set(others)
    return np.column_stack([left.start, left.end])


def bridged(pieces: Pairs, others: Iterable[Pairs]) -> Pairs:
    """Return the pieces, joined over gaps unless an interval of the others begins there."""
    begins = np.sort(np.concatenate([pairs[:, 0] for pairs in others]))
    between = np.searchsorted(begins, pieces[1:, 0], side="right") > np.searchsorted(begins, pieces[:-1, 1])
    first = np.append(True, between)
    last = np.append(np.flatnonzero(first)[1:] - 1, len(pieces) - 1)
    return np.column_stack([pieces[first, 0], pieces[last, 1]])
