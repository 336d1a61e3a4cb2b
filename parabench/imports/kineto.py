"""Read traces of torch.profiler (Kineto) in the Trace Event Format, one file or several for each rank.

Names and arguments are those of torch 2.13 and of Kineto's `output_json.cpp`. Steps are annotations `ProfilerStep#N`;
a trace without them is one window, as in HolisticTraceAnalysis. NCCL's kernels have the collective's name, sizes, type,
group and number as arguments. Without arguments, as before torch 2.2, they are those of the operation
`record_param_comms` with the same `External id`, or of the annotation `nccl:all_reduce` in it. gloo annotates
`gloo:all_reduce` on the thread that runs it. `ts` counts microseconds after `baseTimeNanoseconds`.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parabench.errors import UsageError
from parabench.imports import stream
from parabench.imports.intervals import Pairs, bridged, union, within, without
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
# Kernels that communicate: of NCCL in all versions, RCCL, MSCCL, oneCCL, HCCL, NVSHMEM, DeepEP, torch's symmetric
# memory, Transformer Engine, and the all-reduces of vLLM, SGLang and aiter.
_LIBRARY = re.compile(
    r"(?:^|::)(?:nccl|rccl|msccl|oneccl|hccl|nvshmem|cross_device_reduce|multimem_|(?:one|two)_shot_|userbuffers_"
    r"|(?:deep_ep|dpsk::ep|quickreduce|pplx\w*)::(?!layout))",
    re.IGNORECASE,
)
# The operation in an NCCL kernel's name. Some versions run others under it (NVIDIA/nccl#714), so it names the kernel.
_KERNEL_OP = re.compile(r"nccl(?:\w*Kernel_)?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)(?![a-z])")
# Backends whose collectives run on CPUs, and words beside them in a process group's backends.
_ON_CPU = frozenset({"gloo", "mpi", "ucc", "cpu"})
# Backends and categories of events of accelerators that are not CUDA devices.
_OTHER_BACKEND = frozenset({"xccl", "hccl", "ccl", "xla"})
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
# Used for `forward` if no annotation has that name: the wrapped module's own.
_MODULE = re.compile(r"(DistributedDataParallel|FullyShardedDataParallel)\.forward")
_ENGINE = "autograd::engine::evaluate_function"
# Operators that run while others compute, or hold them.
_NO_WORK = ("c10d::", "record_param_comms", _ENGINE, "ProfilerStep")
_ANNOTATION, _OPERATOR = "user_annotation", "cpu_op"
# Numbers of elements are called `In msg size` by torch before 2.2.
_COUNTS = tuple(f"{way} msg {what}" for way in ("In", "Out") for what in ("nelems", "size"))
# The longest kernels of a rank that are kept by name.
_MOST_KERNELS = 20


@lru_cache(maxsize=1 << 14)
def _kernel(name: str) -> tuple[str, str | None]:
    """Return a kernel's name for tables, and the name of its operation if it communicates."""
    bare = re.split(r"[<(]", re.sub(r"\(anonymous namespace\)::|^void ", "", name), maxsplit=1)[0]
    op = _KERNEL_OP.match(bare)
    label = f"{op[1]} kernel" if op else line(bare)
    return line(name.removeprefix("void ")), label if _LIBRARY.search(bare) else None


class _Seen(NamedTuple):
    """A collective's event, in microseconds of the trace. `op` is empty if it is unknown."""

    op: str
    at: float
    end: float
    args: Mapping[str, Any]
    external: int | None
    thread: int | str = ""


@dataclass
class _Trace:
    """The events of a trace that count."""

    steps: list[tuple[int, float, float]] = field(default_factory=list)
    begin: float = math.inf
    end: float = -math.inf
    parts: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    modules: list[tuple[float, float]] = field(default_factory=list)
    engine: array[float] = field(default_factory=lambda: array("d"))
    # By thread, because the backend's own threads compute nothing of the training.
    operators: dict[int | str, array[float]] = field(default_factory=lambda: defaultdict(lambda: array("d")))
    serving: set[int | str] = field(default_factory=set)
    kernels: dict[str, array[float]] = field(default_factory=lambda: defaultdict(lambda: array("d")))
    annotated: list[_Seen] = field(default_factory=list)
    on_device: list[_Seen] = field(default_factory=list)
    made: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    params: dict[int, _Seen] = field(default_factory=dict)
    other_device: bool = False
    backends: dict[str, None] = field(default_factory=dict)

    @property
    def kernel_count(self) -> int:
        return len(self.on_device) + sum(len(times) // 2 for times in self.kernels.values())

    def take(self, event: Any) -> None:
        if not isinstance(event, dict) or event.get("ph") != "X":
            return
        name, kind = event.get("name"), event.get("cat")
        at, lasts = microseconds(event.get("ts")), microseconds(event.get("dur"))
        if not isinstance(name, str) or not isinstance(kind, str) or at is None or lasts is None or lasts < 0:
            return
        kind = _OLD_KINDS.get(kind, kind)
        self.other_device |= bool(_OTHER_DEVICE.match(kind))
        # CUPTI writes 0 for a kernel whose times it does not know (pytorch/kineto#109).
        if kind not in ("kernel", _ANNOTATION, _OPERATOR) or (kind == "kernel" and at == lasts == 0):
            return
        self.begin, self.end = min(self.begin, at), max(self.end, at + lasts)
        args, thread = mapping(event.get("args")), event.get("tid")
        external = whole(args.get("External id", args.get("external id")))
        told = args.get("Collective name")
        op = (op_of(told) if isinstance(told, str) else None) or ""
        seen = _Seen(op, at, at + lasts, args, external, thread if isinstance(thread, (int, str)) else "")
        if kind != "kernel":
            self._on_host(name, kind, seen)
            return
        label, communicates = _kernel(name)
        if isinstance(told, str) or communicates:
            self.on_device.append(seen._replace(op=op or communicates or ""))
        else:
            self.kernels[label].extend((at, at + lasts))

    def _on_host(self, name: str, kind: str, seen: _Seen) -> None:
        pair = (seen.at, seen.end)
        if step := _STEP.fullmatch(name):
            if int(step[1]) <= MOST_STEP and (int(step[1]), *pair) not in self.steps[-4:]:
                self.steps.append((int(step[1]), *pair))
        elif name.startswith(_ENGINE):
            self.engine.extend(pair)
        elif backend := _BACKEND.fullmatch(name):
            self.backends[backend[1]] = None
            if op := op_of(backend[2]):
                self.annotated.append(seen._replace(op=op))
                self.serving.add(seen.thread)
        elif name == "record_param_comms":
            if seen.external is not None:
                self.params[seen.external] = seen
        elif made := _MADE.fullmatch(name):
            if op := op_of(made[1]):
                self.made[op].append(seen.at)
        elif kind == _OPERATOR:
            if not name.startswith(_NO_WORK):
                self.operators[seen.thread].extend(pair)
        elif _MODULE.fullmatch(name):
            self.modules.append(pair)
        elif part := next((part for part, pattern in _PARTS if pattern.fullmatch(name)), None):
            self.parts[part].append(pair)


def microseconds(value: object) -> float | None:
    """Return microseconds, which some tools write as a text; None for anything but a number."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if abs(number) <= LATEST_NS / 1e3 else None


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
        if any("zero_s" in mapping(head.get("otherData")) for _, head in traces):
            raise ValueError(
                "`parabench export --trace` wrote it; give `parabench report` the store or the folder that it shows"
            )
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
    devices = head.get("deviceProperties")
    found = Recording(
        file=path.name,
        kind=NAME,
        rank=rank_in_name(path.name) if rank is None and alone else rank,
        world_size=size,
        host=line(head["host_name"]) if isinstance(head.get("host_name"), str) else None,
        device=_device(trace, backends),
        backend=line(backends[0]) if backends else None,
        gpus=[
            {"name": line(each["name"]), "memory_bytes": whole(each.get("totalGlobalMem"))}
            for each in map(mapping, devices if isinstance(devices, list) else [])
            if isinstance(each.get("name"), str)
        ],
        alone=size == 1,
    )
    if not trace.steps:
        if trace.begin >= trace.end:
            found.unknown.append("it has no operators, annotations or kernels with a time")
            return found
        found.whole = True
        trace.steps = [(0, trace.begin, trace.end)]
    trace.steps.sort(key=lambda step: step[1])
    if len({number for number, _, _ in trace.steps}) < len(trace.steps):
        found.unknown.append("its step numbers repeat, so steps are counted from 0 by their time")
        trace.steps = [(number, begin, end) for number, (_, begin, end) in enumerate(trace.steps)]
    found.base_ns = whole(head.get("baseTimeNanoseconds"), LATEST_NS) or 0
    found.steps = {step: (_ns(found, begin), _ns(found, end)) for step, begin, end in trace.steps}
    found.kernels = _longest(trace)
    reasons = len(found.unknown)
    seen, timed = _calls(trace, found)
    running = union([moment for one in seen if timed for moment in (one.at, one.end)])
    found.parts = [
        StepPart(step, name, _ns(found, begin), _ns(found, end))
        for step, name, begin, end in _parts(trace, running, _computing(trace, found))
    ]
    if size != 1 and len(found.unknown) == reasons and not any(part.name == COMMUNICATION for part in found.parts):
        found.unknown.append(
            "no collective ran within its steps, so communication is unknown"
            if seen
            else "it has no collective, so whether the process communicated is unknown: if there were several "
            "processes, start the profiler after init_process_group"
        )
    _put_calls(found, trace, seen, timed, _groups(told))
    return found


def _ns(found: Recording, us: float) -> int:
    """Return nanoseconds since 1970 of a time of the trace. Raises ValueError if it is out of range."""
    # Microseconds since 1970 times 1,000 exceed the whole numbers of a float.
    moment = found.base_ns + math.floor(us) * 1000 + round((us - math.floor(us)) * 1e3)
    if not 0 <= moment <= LATEST_NS:
        raise ValueError(f"an event is at {us:g} us, which is no moment")
    return moment


def _device(trace: _Trace, backends: Iterable[str]) -> str | None:
    """Return the device that computed. Without kernels it is the CPU only if all backends are the CPU's."""
    words = set(re.findall(r"[a-z]+", " ".join(backends).lower()))
    if trace.other_device or words & _OTHER_BACKEND:
        return None
    if trace.kernel_count or "nccl" in words:
        return "cuda"
    return "cpu" if words and words <= _ON_CPU else None


def _groups(told: Mapping[str, Any]) -> dict[str, tuple[int, ...] | None]:
    """Return {name: ranks} of the groups that the process was in."""
    groups = told.get("pg_config")
    listed = [mapping(each) for each in groups] if isinstance(groups, list) else []
    return {str(each.get("pg_name", at)): ranks_in(each.get("ranks")) for at, each in enumerate(listed)}


def _longest(trace: _Trace) -> dict[str, list[float]]:
    """Return the kernels that compute longest, {name: seconds in each step, by where each begins}."""
    begins, ends = (np.array([step[at] for step in trace.steps]) for at in (1, 2))
    found = {}
    for name, times in trace.kernels.items():
        pairs = np.reshape(times, (-1, 2))
        step = np.searchsorted(begins, pairs[:, 0], side="right") - 1
        inside = (step >= 0) & (pairs[:, 0] < ends[step])
        lengths = (pairs[:, 1] - pairs[:, 0])[inside] / 1e6
        found[name] = np.bincount(step[inside], lengths, minlength=len(begins)).tolist()
    return dict(sorted(found.items(), key=lambda each: -sum(each[1]))[:_MOST_KERNELS])


def _calls(trace: _Trace, found: Recording) -> tuple[list[_Seen], bool]:
    """Return the collectives, on the device if they are there, and whether their times are those when each ran."""
    if trace.on_device:
        return list(_described(trace)), True
    commanded = [one for one in trace.params.values() if one.op]
    if commanded or (trace.annotated and found.device != "cpu"):
        found.unknown.append(
            f"none of its {trace.kernel_count:,} kernels is known as a collective's, so when they ran is unknown"
            if trace.kernel_count
            else "it has no kernels, so when collectives ran is unknown: profile the device, too"
        )
    # NCCL's annotations have the time when the host called it.
    return commanded or trace.annotated, not commanded and found.device == "cpu"


def _described(trace: _Trace) -> Iterator[_Seen]:
    """Yield the kernels that communicate, each with the operation and arguments of the call that launched it."""
    kernels = Counter(one.external for one in trace.on_device)
    notes = _annotations(trace)
    for one in trace.on_device:
        if any(name in one.args for name in _COUNTS):
            yield one
            continue
        call = trace.params.get(one.external) if one.external is not None else None
        note = notes.get(one.external) if one.external is not None else None
        told = call if call is not None and any(name in call.args for name in _COUNTS) else note
        op = (call.op if call is not None else "") or (note.op if note is not None else "") or one.op
        # The sizes of a call that launches several kernels are not those of one kernel.
        alone = told is not None and kernels[one.external] == 1
        yield one._replace(op=op, args=told.args if told is not None and alone else {})


def _annotations(trace: _Trace) -> dict[int, _Seen | None]:
    """Return the annotation of each call, {id of the call: annotation}, None if it has several.

    The id is the annotation's own, or that of the `record_param_comms` around it or in it on the same thread.
    """
    found: dict[int, _Seen | None] = {one.external: one for one in trace.annotated if one.external is not None}
    calls: dict[int | str, list[_Seen]] = {}
    for call in sorted(trace.params.values(), key=lambda one: one.at):
        calls.setdefault(call.thread, []).append(call)
    for note in trace.annotated:
        own = calls.get(note.thread, [])
        place = bisect(own, note.at, key=lambda one: one.at)
        for call in own[max(0, place - 2) : place + 1]:
            if (call.at <= note.at and note.end <= call.end) or (note.at <= call.at and call.end <= note.end):
                assert call.external is not None
                found[call.external] = None if call.external in found else note
    return found


def _computing(trace: _Trace, found: Recording) -> Pairs | None:
    """Return when the rank computed; None if that was not recorded."""
    if trace.kernel_count:
        return union(*trace.kernels.values())
    if found.device != "cpu":
        return None
    return union(*(times for thread, times in trace.operators.items() if thread not in trace.serving))


def _parts(trace: _Trace, running: Pairs, computing: Pairs | None) -> Iterator[tuple[int, str, float, float]]:
    """Yield (step, name, begin, end) of the annotated parts of each step, of the rest of it without a name, and of
    communication and its exposed part."""
    exposed = without(running, computing) if computing is not None else None
    named = {name: union(pairs) for name, pairs in trace.parts.items()}
    if "forward" not in named and trace.modules:
        named["forward"] = union(trace.modules)
    if "backward" not in named and len(engine := union(trace.engine)):
        named["backward"] = bridged(engine, [*named.values(), np.array(trace.steps)[:, 1:]])
    for step, begin, end in trace.steps:
        own = {name: within(pairs, begin, end) for name, pairs in named.items()}
        rest = without(union((begin, end)), union(*own.values()))
        told = own | {OTHER: rest, COMMUNICATION: within(running, begin, end)}
        if exposed is not None:
            told[WAIT] = within(exposed, begin, end)
        yield from ((step, name, *pair) for name, pairs in told.items() for pair in pairs.tolist())


def _put_calls(
    found: Recording, trace: _Trace, seen: Iterable[_Seen], timed: bool, groups: Mapping[str, tuple[int, ...] | None]
) -> None:
    """Put the calls within steps into `found.calls`, in the order in which they began."""
    ordered = sorted(seen, key=lambda one: one.at)
    counts, nth = Counter(one.op for one in ordered), Counter[str]()
    begins = [begin for _, begin, _ in trace.steps]
    for seq, one in enumerate(ordered):
        call = trace.params.get(one.external) if one.external is not None else None
        made = call.at if call is not None else None
        moments = trace.made.get(one.op, [])
        # gloo runs calls in the order in which they are made, so the n-th is the n-th if none is missing.
        if made is None and not trace.kernel_count and len(moments) == counts[one.op]:
            made = sorted(moments)[nth[one.op]]
        nth[one.op] += 1
        if not timed:
            made = one.at
        made = None if made is None or made > one.at else made
        moment = one.at if made is None else made
        place = bisect(begins, moment) - 1
        if place < 0 or moment > trace.steps[place][2]:
            found.left_out["they were made outside of the recorded steps"] += 1
            continue
        found.calls.append(
            Call(
                trace.steps[place][0], seq, one.op or "unknown", *_sized(one, groups, found),
                None if made is None else _ns(found, made),
                _ns(found, one.at) if timed else None,
                round((one.end - one.at) * 1e3) if timed else None,
                Phase.INSTRUMENT, whole(one.args.get("Seq"), MOST_STEP),
            )
        )  # fmt: skip


_Size = tuple[tuple[int, ...] | None, int | None, int | None, str | None]


def _sized(one: _Seen, groups: Mapping[str, tuple[int, ...] | None], found: Recording) -> _Size:
    """Return (ranks, their number, bytes, type) of a call, None for what is unknown, with the reason in `found`."""
    if any(name in one.args for name in _COUNTS):
        return _of_params(one, groups, found)
    known = set(groups.values())
    ranks = next(iter(known)) if len(known) == 1 else None
    count = None if ranks is None else len(ranks)
    if one.op == "barrier":
        return ranks, count, 0, None
    shapes, types = one.args.get("Input Dims"), one.args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list) or not shapes:
        reason = "profile with record_shapes=True" if found.device == "cpu" else "the trace has none, as in CUDA graphs"
        found.unsized[reason] += 1
        return ranks, count, None, None
    counts, kinds = [product(shape) for shape in shapes], {type_of(each) for each in types}
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    # A rank gives its part of what is gathered.
    times = count if one.op in ("all_gather", "gather") else 1
    if None in counts or kind is None or times is None:
        found.unsized["their shapes, types or groups are unknown"] += 1
        return ranks, count, None, kind and kind[0]
    return ranks, count, sum(each or 0 for each in counts) * kind[1] * times, kind[0]


def _of_params(one: _Seen, groups: Mapping[str, tuple[int, ...] | None], found: Recording) -> _Size:
    """Return the same from the arguments of NCCL's calls. A gather has its output's bytes, a scatter its input's."""
    counts = [count for name in _COUNTS if (count := whole(one.args.get(name))) is not None]
    kind = type_of(one.args.get("dtype"))
    # torch shortens a list of more than 30 ranks; the trace's own list of groups is whole.
    ranks = ranks_in(one.args.get("Process Group Ranks")) or groups.get(str(one.args.get("Process Group Name")))
    size = whole(one.args.get("Group size"), MOST_RANKS) or (len(ranks) if ranks else None)
    if not counts or kind is None:
        found.unsized["their sizes or types are of a kind that is not known here"] += 1
    count = max(counts) * kind[1] if counts and kind is not None else None
    return (ranks if ranks and len(ranks) == size else None), size, count, kind and kind[0]
