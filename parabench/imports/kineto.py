"""Read traces of torch.profiler (Kineto) in the Trace Event Format, one file or several for each rank.

Names and arguments are those of torch 2.13 and of Kineto's `output_json.cpp`. Steps are annotations `ProfilerStep#N`;
a trace without them is one window, as in HolisticTraceAnalysis. NCCL's kernels have the collective's name, sizes, type
and group as arguments, unless a CUDA graph runs them; the operation `record_param_comms` of the same `External id`
calls them. gloo annotates `gloo:all_reduce` on the thread that runs it, with the shapes of its input if the profiler
records shapes. `ts` counts microseconds after `baseTimeNanoseconds`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parabench.errors import UsageError
from parabench.imports import stream
from parabench.imports.intervals import Pairs, Times, bridged, union, within, without
from parabench.imports.recording import (
    LATEST_NS,
    MOST_RANKS,
    MOST_STEP,
    Call,
    Recording,
    StepPart,
    distinct,
    mapping,
    op_of,
    product,
    rank_in_name,
    ranks_in,
    type_of,
    whole,
)
from parabench.plan.case import line
from parabench.store.record import COMMUNICATION, OTHER, WAIT, Phase

NAME = "kineto"

_STEP = re.compile(r"ProfilerStep ?#(\d{1,10})")
_BACKEND = re.compile(r"(gloo|mpi|ucc|\w*ccl\w*):(\w+)")
# Kernels that communicate: NCCL's of all versions, RCCL's, MSCCL's, oneCCL's, HCCL's, NVSHMEM's and DeepEP's.
_KERNEL = re.compile(r"(void )?(nccl|rccl|msccl|oneccl|hccl|nvshmem|\w+::nvshmem|deep_ep::|dpsk::ep::)", re.IGNORECASE)
# The operation in such a kernel's name, behind `ncclDevKernel_`, `ncclKernel_`, `ncclSymkDevKernel_`, or `nccl`.
_KERNEL_OP = re.compile(r"(?:void )?nccl(?:\w*Kernel_)?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce)(?![a-z])")
# Backends whose collectives run on CPUs, and words beside them in a process group's backends.
_ON_CPU = frozenset({"gloo", "mpi", "ucc", "cpu"})
# Categories of events on devices without kernels that are known here.
_OTHER_DEVICE = re.compile(r"(mtia|xpu|hpu|npu|privateuse1)_", re.IGNORECASE)
# Categories of Kineto before 2022.
_OLD_KINDS = {"Operator": "cpu_op", "Kernel": "kernel"}
_MADE = re.compile(r"c10d::_?([a-z_]+?)_?$")
# Annotations that name a part of a step: torch's own, and what scripts usually write.
_PARTS = (
    ("data", re.compile(r"enumerate\(DataLoader\)#.*|(## ?)?(data|dataloader|data_loading|next_batch)( ?##)?", re.I)),
    ("optimizer", re.compile(r"Optimizer\.(step|zero_grad)#.*|(## ?)?(optimizer|optimizer_step|optim)( ?##)?", re.I)),
    ("forward", re.compile(r"(## ?)?forward( ?##)?", re.I)),
    ("backward", re.compile(r"(## ?)?backward( ?##)?", re.I)),
)
# What stands for an annotation of that name where there is none: the wrapped module's own.
_MODULE = re.compile(r"(DistributedDataParallel|FullyShardedDataParallel)\.forward")
_ENGINE = "autograd::engine::evaluate_function"
# What runs while others compute, or holds them: no computing of its own.
_NO_WORK = ("c10d::", "record_param_comms", _ENGINE, "ProfilerStep")
_ANNOTATION, _OPERATOR = "user_annotation", "cpu_op"

_MOST_THREADS = 10_000


class _Seen(NamedTuple):
    """A collective as its event tells it; moments in microseconds of the trace."""

    op: str
    at: float
    end: float
    args: Mapping[str, Any]
    external: int | None
    on_device: bool = False


@dataclass
class _Trace:
    """What of a trace's events counts, as they come."""

    steps: list[tuple[int, float, float]] = field(default_factory=list)
    begin: float = math.inf
    end: float = -math.inf
    parts: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    modules: list[tuple[float, float]] = field(default_factory=list)
    engine: Times = field(default_factory=Times)
    # By thread, because the backend's own threads compute nothing of the training.
    operators: dict[int | str, Times] = field(default_factory=dict)
    serving: set[int | str] = field(default_factory=set)
    kernels: Times = field(default_factory=Times)
    annotated: list[_Seen] = field(default_factory=list)
    on_device: list[_Seen] = field(default_factory=list)
    made: dict[str, list[float]] = field(default_factory=dict)
    params: dict[int, float] = field(default_factory=dict)
    commanded: list[_Seen] = field(default_factory=list)
    kernel_count: int = 0
    other_device: bool = False
    backends: dict[str, None] = field(default_factory=dict)

    def take(self, event: Any) -> None:
        if not isinstance(event, dict) or event.get("ph") != "X":
            return
        name, kind, at, lasts = event.get("name"), event.get("cat"), _us(event.get("ts")), _us(event.get("dur"))
        if not isinstance(name, str) or not isinstance(kind, str) or at is None or lasts is None or lasts < 0:
            return
        args, thread = mapping(event.get("args")), event.get("tid")
        kind = _OLD_KINDS.get(kind, kind)
        self.other_device |= bool(_OTHER_DEVICE.match(kind))
        if kind in ("kernel", _ANNOTATION, _OPERATOR):
            self.begin, self.end = min(self.begin, at), max(self.end, at + lasts)
        if kind == "kernel":
            self._kernel(name, at, at + lasts, args)
        elif kind in (_ANNOTATION, _OPERATOR):
            self._on_host(name, kind, at, at + lasts, args, thread if isinstance(thread, (int, str)) else "")

    def _kernel(self, name: str, at: float, end: float, args: Mapping[str, Any]) -> None:
        self.kernel_count += 1
        told = args.get("Collective name")
        if isinstance(told, str) or _KERNEL.match(name):
            named = _KERNEL_OP.match(name)
            op = op_of(told) if isinstance(told, str) else None
            op = op_of(named[1]) if op is None and named else op
            self.on_device.append(_Seen(op or "", at, end, args, whole(args.get("External id")), True))
        else:
            self.kernels.add(at, end)

    def _on_host(self, name: str, kind: str, at: float, end: float, args: Mapping[str, Any], thread: int | str) -> None:
        if step := _STEP.fullmatch(name):
            if int(step[1]) <= MOST_STEP and (int(step[1]), at, end) not in self.steps[-4:]:
                self.steps.append((int(step[1]), at, end))
        elif name.startswith(_ENGINE):
            self.engine.add(at, end)
        elif backend := _BACKEND.fullmatch(name):
            self.backends[backend[1]] = None
            op = op_of(backend[2])
            if op is not None:
                self.annotated.append(_Seen(op, at, end, args, None))
                self.serving.add(thread)
        elif name == "record_param_comms":
            external, told = whole(args.get("External id")), args.get("Collective name")
            if external is not None:
                self.params[external] = at
            op = op_of(told) if isinstance(told, str) else None
            if op is not None:
                self.commanded.append(_Seen(op, at, end, args, external))
        elif made := _MADE.fullmatch(name):
            op = op_of(made[1])
            if op is not None:
                self.made.setdefault(op, []).append(at)
        elif kind == _OPERATOR:
            if not name.startswith(_NO_WORK):
                if thread not in self.operators and len(self.operators) >= _MOST_THREADS:
                    raise ValueError(f"it has more than {_MOST_THREADS:,} threads")
                self.operators.setdefault(thread, Times()).add(at, end)
        elif _MODULE.fullmatch(name):
            self.modules.append((at, end))
        else:
            part = next((part for part, pattern in _PARTS if pattern.fullmatch(name)), None)
            if part is not None:
                self.parts.setdefault(part, []).append((at, end))


# Longer ago, or later, is nothing: no sum of two has no end.
_MOST_US = LATEST_NS / 1e3


def _us(value: object) -> float | None:
    """Return microseconds, which some tools write as a text; None for anything but a number."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, (int, float)) and abs(value) <= _MOST_US else None


def read(path: Path) -> list[Recording]:
    """Return the recordings in a trace file, one for each JSON document. Raises UsageError if it is damaged."""
    traces: list[tuple[_Trace, dict[str, Any]]] = [(_Trace(), {})]
    try:
        for document, key, value in stream.members(path, "traceEvents"):
            if document == len(traces):
                traces.append((_Trace(), {}))
            trace, head = traces[document]
            if key == "traceEvents":
                trace.take(value)
            else:
                head[key] = value
        return [_recording(path, trace, head, alone=len(traces) == 1) for trace, head in traces]
    except (ValueError, OverflowError) as error:
        if isinstance(error, UsageError) and str(path) in str(error):
            raise
        raise stream.unreadable(path, error) from error


def _recording(path: Path, trace: _Trace, head: Mapping[str, Any], alone: bool) -> Recording:
    """Return one document's recording. If it is not `alone` in its file, the file's name has no rank for it."""
    told = mapping(head.get("distributedInfo"))
    size = whole(told.get("world_size"), MOST_RANKS)
    rank = whole(told.get("rank"), MOST_RANKS - 1)
    if size == 0 or (size is not None and rank is not None and rank >= size):
        raise ValueError(f"it says that it is rank {rank} of {size}")
    backend = told.get("backend")
    backends = distinct([backend if isinstance(backend, str) else None, *trace.backends])
    found = Recording(
        file=path.name,
        kind=NAME,
        rank=rank_in_name(path.name) if rank is None and alone else rank,
        world_size=size,
        host=line(head["host_name"]) if isinstance(head.get("host_name"), str) else None,
        device=_device(trace, backends),
        backend=line(backends[0]) if backends else None,
        gpus=_gpus(head.get("deviceProperties")),
        alone=size == 1,
    )
    if not trace.steps:
        if trace.begin >= trace.end:
            found.unknown.append("it has no operators, annotations or kernels with a time")
            return found
        found.whole = True
        trace.steps = [(0, trace.begin, trace.end)]
    trace.steps = _numbered(trace.steps, found)
    clock = _Clock(whole(head.get("baseTimeNanoseconds"), LATEST_NS) or 0)
    found.steps = {step: (clock.ns(begin), clock.ns(end)) for step, begin, end in sorted(trace.steps)}
    reasons = len(found.unknown)
    seen = list(_calls(trace, found))
    running = union(np.array([(one.at, one.end) for one, began in seen if began], dtype=np.float64).reshape(-1, 2))
    found.parts = [
        StepPart(step, name, clock.ns(begin), clock.ns(end))
        for step, name, begin, end in _parts(trace, running, _computing(trace, found))
    ]
    if size != 1 and len(found.unknown) == reasons and not any(part.name == COMMUNICATION for part in found.parts):
        found.unknown.append(
            "no collective ran within its steps, so communication is unknown"
            if seen
            else "it has no collective, so whether the process communicated is unknown: if there were several "
            "processes, start the profiler after init_process_group"
        )
    _put_calls(found, trace, seen, clock, _groups(told))
    found.check_room()
    return found


def _numbered(steps: list[tuple[int, float, float]], found: Recording) -> list[tuple[int, float, float]]:
    """Return the steps with different numbers: if a number repeats, as after a restart of the profiler, they are
    counted from 0 in the order of their time."""
    if len({number for number, _, _ in steps}) == len(steps):
        return steps
    found.unknown.append("its step numbers repeat, so steps are counted from 0 by their time")
    return [(number, begin, end) for number, (_, begin, end) in enumerate(sorted(steps, key=lambda step: step[1]))]


@dataclass(frozen=True)
class _Clock:
    base_ns: int

    def ns(self, us: float) -> int:
        """Return nanoseconds since 1970 of a time of the trace. Raises ValueError if it is out of range."""
        # Microseconds since 1970 times 1,000 exceed the whole numbers of a float.
        moment = self.base_ns + math.floor(us) * 1000 + round((us - math.floor(us)) * 1e3)
        if not 0 <= moment <= LATEST_NS:
            raise ValueError(f"an event is at {us:g} us, which is no moment")
        return moment


def _device(trace: _Trace, backends: Iterable[str]) -> str | None:
    """Return the device that computed. Without kernels it is the CPU only if all backends are the CPU's."""
    words = set(re.findall(r"[a-z]+", " ".join(backends).lower()))
    if trace.kernel_count or "nccl" in words:
        return "cuda"
    return "cpu" if words and words <= _ON_CPU and not trace.other_device else None


def _gpus(told: object) -> list[dict[str, Any]]:
    """The devices as a session's environment has them."""
    devices = [mapping(each) for each in told] if isinstance(told, list) else []
    return [
        {"name": line(each["name"]), "memory_bytes": whole(each.get("totalGlobalMem"))}
        for each in devices
        if isinstance(each.get("name"), str)
    ]


def _groups(told: Mapping[str, Any]) -> dict[str, tuple[int, ...] | None]:
    """Return {name: ranks} of the groups that the process was in."""
    groups = told.get("pg_config")
    listed = [mapping(each) for each in groups] if isinstance(groups, list) else []
    return {str(each.get("pg_name", at)): ranks_in(each.get("ranks")) for at, each in enumerate(listed)}


def _calls(trace: _Trace, found: Recording) -> Iterator[tuple[_Seen, bool]]:
    """Yield the collectives, on the device if they are there, and whether their times are those when each ran."""
    if trace.on_device:
        yield from ((one, True) for one in trace.on_device)
        return
    if trace.commanded or (trace.annotated and found.device != "cpu"):
        found.unknown.append(
            f"none of its {trace.kernel_count:,} kernels is known as a collective's, so when they ran is unknown"
            if trace.kernel_count
            else "it has no kernels, so when collectives ran is unknown: profile the device, too"
        )
    yield from ((one, False) for one in trace.commanded)
    if not trace.commanded:
        # NCCL's say when the host called it.
        yield from ((one, found.device == "cpu") for one in trace.annotated)


def _computing(trace: _Trace, found: Recording) -> Pairs | None:
    """Return when the rank computed; None if that was not recorded."""
    if trace.kernel_count:
        return trace.kernels.joined()
    if found.device != "cpu":
        return None
    own = [times.joined() for thread, times in trace.operators.items() if thread not in trace.serving]
    return union(np.concatenate([np.zeros((0, 2)), *own]))


def _parts(trace: _Trace, running: Pairs, computing: Pairs | None) -> Iterator[tuple[int, str, float, float]]:
    """(step, name, begin, end) of what a step is made of: its annotated parts, communication, the exposed time in it,
    and what is left, so that all parts together are as long as the step."""
    exposed = without(running, computing) if computing is not None else None
    named = {name: union(np.array(pairs, dtype=np.float64)) for name, pairs in trace.parts.items()}
    if "forward" not in named and trace.modules:
        named["forward"] = union(np.array(trace.modules, dtype=np.float64))
    if "backward" not in named:
        engine = trace.engine.joined()
        if len(engine):
            named["backward"] = bridged(engine, [*named.values(), np.array(trace.steps)[:, 1:]])
    for step, begin, end in trace.steps:
        whole_step = np.array([[begin, end]])
        own = {name: within(pairs, begin, end) for name, pairs in named.items()}
        rest = without(whole_step, union(np.concatenate([np.zeros((0, 2)), *own.values()])))
        told = own | {OTHER: rest, COMMUNICATION: within(running, begin, end)}
        if exposed is not None:
            told[WAIT] = within(exposed, begin, end)
        yield from ((step, name, *pair) for name, pairs in told.items() for pair in pairs.tolist())


def _put_calls(
    found: Recording,
    trace: _Trace,
    seen: Iterable[tuple[_Seen, bool]],
    clock: _Clock,
    groups: Mapping[str, tuple[int, ...] | None],
) -> None:
    """The calls within steps, in the order in which they began, as `found.calls`."""
    ordered = sorted(seen, key=lambda each: each[0].at)
    calls_of: dict[str, int] = {}
    steps = sorted((begin, end, step) for step, begin, end in trace.steps)
    begins = [begin for begin, _, _ in steps]
    made_of = {op: sorted(moments) for op, moments in trace.made.items()}
    counts: dict[str, int] = {}
    for one, _ in ordered:
        counts[one.op] = counts.get(one.op, 0) + 1
    for seq, (one, began) in enumerate(ordered):
        n = calls_of[one.op] = calls_of.get(one.op, -1) + 1
        made = trace.params.get(one.external) if one.external is not None else None
        moments = made_of.get(one.op, [])
        # gloo runs calls in the order in which they are made, so the n-th is the n-th where none is missing.
        if made is None and not trace.kernel_count and len(moments) == counts[one.op]:
            made = moments[n]
        if not began:
            made = one.at
        made = None if made is None or made > one.at else made
        moment = one.at if made is None else made
        place = int(np.searchsorted(begins, moment, side="right")) - 1
        if place < 0 or moment > steps[place][1]:
            found.leave_out("they were made outside of the recorded steps")
            continue
        size = _sized(one, groups, found)
        if size is None:
            continue
        ranks, group_size, count, dtype = size
        found.calls.append(
            Call(
                steps[place][2], seq, one.op, ranks, group_size, count, dtype,
                None if made is None else clock.ns(made),
                clock.ns(one.at) if began else None,
                round((one.end - one.at) * 1e3) if began else None,
                Phase.INSTRUMENT,
            )
        )  # fmt: skip


_Size = tuple[tuple[int, ...] | None, int, int, str | None]


def _sized(one: _Seen, groups: Mapping[str, tuple[int, ...] | None], found: Recording) -> _Size | None:
    """Return (ranks, their number, bytes, type) of a call; None, with the reason in `found`, if they are unknown."""
    if not one.op:
        found.leave_out("neither an argument nor the kernel's name names the collective")
        return None
    if any(f"{way} msg {what}" in one.args for way in ("In", "Out") for what in _COUNTS):
        return _of_params(one, groups, found)
    distinct_ranks = set(groups.values())
    ranks = next(iter(distinct_ranks)) if len(distinct_ranks) == 1 else None
    if one.op != "barrier" and not isinstance(one.args.get("Input Dims"), list):
        found.leave_out(
            "the trace has no sizes for them: a CUDA graph's kernels have none, nor has torch before 2.2"
            if one.on_device
            else "their sizes are unknown: profile with record_shapes=True"
        )
        return None
    if ranks is None:
        found.leave_out("the trace does not tell which of its groups they are of")
        return None
    if one.op == "barrier":
        return ranks, len(ranks), 0, None
    shapes, types = one.args.get("Input Dims"), one.args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list) or not shapes:
        found.leave_out("their sizes are unknown: profile with record_shapes=True")
        return None
    counts, kinds = [product(shape) for shape in shapes], [type_of(each) for each in types]
    if None in counts or not kinds or None in kinds or len(set(kinds)) > 1 or kinds[0] is None:
        found.leave_out("their sizes or types are of a kind that is not known here")
        return None
    total = sum(each for each in counts if each is not None) * kinds[0][1]
    # One rank's part of the whole.
    whole_bytes = total * len(ranks) if one.op in ("all_gather", "gather") else total
    return ranks, len(ranks), whole_bytes, kinds[0][0]


# Numbers of elements are called `In msg size` by torch before 2.2.
_COUNTS = ("nelems", "size")


def _of_params(one: _Seen, groups: Mapping[str, tuple[int, ...] | None], found: Recording) -> _Size | None:
    """Return the same from the arguments of NCCL's calls. A gather has its output's bytes, a scatter its input's."""
    counts = [whole(one.args.get(f"{way} msg {what}")) for way in ("In", "Out") for what in _COUNTS]
    known, kind = [each for each in counts if each is not None], type_of(one.args.get("dtype"))
    # torch shortens a list of more than 30 ranks; the trace's own list of groups is whole.
    ranks = ranks_in(one.args.get("Process Group Ranks")) or groups.get(str(one.args.get("Process Group Name")))
    size = whole(one.args.get("Group size"), MOST_RANKS) or (len(ranks) if ranks else None)
    if not known or kind is None or not size:
        found.leave_out("their sizes or types are of a kind that is not known here")
        return None
    return (ranks if ranks and len(ranks) == size else None), size, max(known) * kind[1], kind[0]
