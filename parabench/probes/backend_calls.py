"""Watch calls of the backend at c10d's operators, such as `c10d::allreduce_`, which all callers use, also in C++.

In instrumented steps, a function is registered one dispatch key above the device's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ProcessGroup, Work
from torch.utils._pytree import tree_leaves

from parabench.collectives.async_queue import Observer
from parabench.machine import accelerator
from parabench.machine.accelerator import record_event

if TYPE_CHECKING:
    from parabench.probes.communication import Recorder

# {operator: (operation, the argument that it finishes, or that a gather sends)}
OPERATORS: dict[str, tuple[str, int | None]] = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "allgather_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "reduce_scatter_": ("reduce_scatter", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 0),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 0),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "gather_": ("gather", 1),
    "scatter_": ("scatter", 0),
    "alltoall_": ("all_to_all", 0),
    "alltoall_base_": ("all_to_all", 0),
    "send": ("send", 0),
    "recv_": ("recv", 0),
    "recv_any_source_": ("recv", 0),
    "barrier": ("barrier", None),
}

# A dispatch key that every call has. c10d does not have a kernel for it.
ABOVE = "BackendSelect"

# The active observers, each with the device type of calls without a tensor. The last one follows calls.
_following: list[tuple[Observer, str]] = []
# One library for all of them, because torch warns if a kernel replaces another one.
_registered: list[torch.library.Library] = []


@contextmanager
def native_calls(observer: Observer, device_type: str) -> Iterator[None]:
    """Let `observer` follow every call of OPERATORS in the block. In nested blocks, only the innermost observer does.

    Calls without a tensor are on `device_type`.
    """
    following = (observer, device_type)
    if not _following:
        library = torch.library.Library("c10d", "IMPL")
        for name in OPERATORS:
            library.impl(name, _watched(name, device_type), ABOVE)
        _registered.append(library)
    _following.append(following)
    try:
        yield
    finally:
        _following.remove(following)
        if not _following:
            _registered.pop()._destroy()


def key_of(arguments: Sequence[Any], device_type: str) -> Any:
    """Return the dispatch key of c10d's kernel for these arguments: the device of their first tensor.

    Without a tensor, it is `device_type`. A group may serve several devices. Sparse tensors have separate kernels.
    """
    first = next((each for each in tree_leaves(arguments) if isinstance(each, torch.Tensor)), None)
    sparse = "Sparse" if first is not None and first.is_sparse else ""
    device = device_type if first is None else first.device.type
    return getattr(torch._C.DispatchKey, f"{sparse}{device.upper()}")


def _watched(name: str, usual_type: str) -> Callable[..., Any]:
    """Return the function that replaces operator `name`: it lets the innermost observer follow each call."""
    op, buffer = OPERATORS[name]
    operator = getattr(torch.ops.c10d, name).default
    names = [argument.name for argument in operator._schema.arguments]
    group_at = names.index("process_group")
    async_at = names.index("async_op") if "async_op" in names else len(names)

    def watched(*arguments: Any) -> Any:
        following = _following[-1:]
        if not following:  # another thread left the block after this call began
            return operator._op_dk(key_of(arguments, usual_type), *arguments)
        returned: Any = None
        observer, device_type = following[0]

        # `_op_dk` releases the interpreter's lock. gloo's threads need this lock to free tensors while they hold
        # another lock that the call needs.
        def call() -> Any:
            nonlocal returned
            returned = operator._op_dk(key_of(arguments, device_type), *arguments)
            work = returned[-1] if isinstance(returned, tuple) else returned
            return Work.unbox(work)

        group = ProcessGroup.unbox(arguments[group_at])
        results = [] if buffer is None else tree_leaves(arguments[buffer])
        # Arguments at their default are left out. Asynchronous is the default.
        waits = async_at < len(arguments) and not arguments[async_at]
        work = observer.follow(op, group, results, call, waits=waits)
        if work is None:  # NCCL returns none for calls in a batch, and for calls that their caller waits for
            return returned
        return (*returned[:-1], work.boxed()) if isinstance(returned, tuple) else work.boxed()

    return watched


@contextmanager
def coalesced_calls(recorder: Recorder) -> Iterator[None]:
    """Let `recorder` follow batches of NCCL calls, such as `batch_isend_irecv`, in the block.

    The end of c10d's coalescing manager returns one work for the batch. It does not have a future.
    """
    start, end = ProcessGroup._start_coalescing, ProcessGroup._end_coalescing

    def started(group: Any, *arguments: Any) -> None:
        recorder.together = []
        start(group, *arguments)

    def ended(group: Any, *arguments: Any) -> Any:
        return recorder.follow_all(end(group, *arguments))

    ProcessGroup._start_coalescing = started  # type: ignore[method-assign,assignment]
    ProcessGroup._end_coalescing = ended  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ProcessGroup._start_coalescing, ProcessGroup._end_coalescing = start, end  # type: ignore[method-assign]


@contextmanager
def stream_waits(recorder: Recorder) -> Iterator[None]:
    """Let `recorder` record waits of the training's stream for events of other streams in the block.

    FSDP2 gathers and reduces on separate streams and lets the training's stream wait for events, without `Work.wait`.
    `torch.cuda.Stream.wait_stream` calls `wait_event`, too.
    """
    streams = accelerator.api().Stream
    wait_event = streams.wait_event

    def watched(stream: Any, awaited: Any) -> None:
        if stream != recorder.stream:
            wait_event(stream, awaited)
            return
        begin = record_event(stream)
        wait_event(stream, awaited)
        recorder.waits.append((begin, record_event(stream)))

    streams.wait_event = watched
    try:
        yield
    finally:
        streams.wait_event = wait_event
