"""A process group that runs some collectives with an algorithm of parabench, and others with the real backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import BarrierOptions
from torch.distributed import ProcessGroup, Work
from torch.utils._pytree import tree_leaves

from parabench.collectives.algorithm import Algorithm, Reduction, reduction
from parabench.collectives.async_queue import Observer, StreamQueue, ThreadQueue, wait_for_stream
from parabench.collectives.wire import StreamWire, Wire, split
from parabench.machine import accelerator

BACKEND = "parabench"
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")

# All groups of this process, for `join`.
groups: list[AlgorithmGroup] = []


def _delegated(name: str, op: str | None = None, buffer: int | None = 0) -> Callable[..., Any]:
    """Return a method that calls the same method of the inner backend.

    Instruments record the call as operation `op` on the tensors of argument number `buffer`.
    """

    def method(self: AlgorithmGroup, *args: Any, **kwargs: Any) -> Any:
        call = partial(getattr(self._inner, name), *args, **kwargs)
        if self.observer is None or op is None:
            return call()
        results = [] if buffer is None else tree_leaves(args[buffer])
        return self.observer.follow(op, self, results, call, waits=_waits(args[-1]))

    method.__name__ = name
    return method


class AlgorithmGroup(ProcessGroup):
    """All-reduce, reduce-scatter, all-gather and broadcast use `algorithm`; other operations use `inner`.

    All methods of the inner backend are delegated by name. In C++, they would hold the interpreter's lock, and could
    deadlock.
    """

    def __init__(
        self,
        inner: Any,
        backend_type: ProcessGroup.BackendType,
        rank: int,
        size: int,
        algorithm: Algorithm,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the form that can be subclassed
        self.algorithm = algorithm
        self.observer: Observer | None = None
        self.calls: dict[str, dict[str, Any]] = {}
        self._names = {op: f"{algorithm.name} {op} on rank {rank} of {size}" for op in OPERATIONS}
        self._inner = inner
        self._together = 0
        self._is_nccl = backend_type == ProcessGroup.BackendType.NCCL
        for device in (accelerator.TYPE,) if self._is_nccl else ("cpu", accelerator.TYPE):
            self._register_backend(torch.device(device), backend_type, inner)
        self._set_default_backend(backend_type)
        self._wire: Wire
        self._queue: StreamQueue | ThreadQueue
        if self._is_nccl:
            self._queue = queue = StreamQueue()
            self._wire = StreamWire(inner, range(size), rank, empty=queue.empty)
        else:
            self._queue = ThreadQueue(f"parabench {algorithm.name}")
            self._wire = Wire(inner, range(size), rank)
        groups.append(self)

    # -- operations of the algorithm ------------------------------------------------------------------------------

    # torch's stubs have three overloads. c10d uses only this one.
    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        """Reduce each tensor over all ranks, in place."""
        how = self._reduction(opts, tensors)

        def job() -> None:
            for tensor in tensors:
                flat = self._carried(tensor, "host", how.carrier)
                self.algorithm.all_reduce(self._wire, flat, how)
                self._deliver(flat, tensor)

        return self._run("all_reduce", job, tensors, tensors, opts)

    allreduce_coalesced: Any = allreduce

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        """Set each output to the inputs of all ranks, in order."""
        for output, part in zip(outputs, inputs, strict=True):
            self._check("all_gather", "output", output, part.numel() * self.size(), part.dtype)

        def job() -> None:
            for output, part in zip(outputs, inputs, strict=True):
                flat = self._carried(output, "host", filled=False)
                self.algorithm.all_gather(self._wire, flat, self._carried(part, "host part"))
                self._deliver(flat, output)

        return self._run("all_gather", job, outputs, [*outputs, *inputs], opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def allgather(  # type: ignore[override]
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """Gather the inputs of all ranks into a list of tensors, one per rank."""
        for outputs, part in zip(output_lists, inputs, strict=True):
            self._check_list("all_gather", outputs, part)

        def job() -> None:
            for outputs, part in zip(output_lists, inputs, strict=True):
                mine = self._carried(part, "host part")
                flat = self._wire.scratch("lists", mine, mine.numel() * self.size(), pinned=self._by_host(part))
                self.algorithm.all_gather(self._wire, flat, mine)
                for output, each in zip(outputs, split(flat, self.size()), strict=True):
                    output.copy_(each.view_as(output), non_blocking=self._by_host(part))

        results = [tensor for outputs in output_lists for tensor in outputs]
        return self._run("all_gather", job, results, inputs, opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        """Set rank r's output to the reduced r-th part of each input."""
        how = self._reduction(opts, inputs)
        for output, whole in zip(outputs, inputs, strict=True):
            self._check("reduce_scatter", "input", whole, output.numel() * self.size(), output.dtype)

        def job() -> None:
            for output, whole in zip(outputs, inputs, strict=True):
                self._scatter(output, self._carried(whole, "host", how.carrier), how)

        return self._run("reduce_scatter", job, outputs, [*outputs, *inputs], opts)

    def _scatter(self, output: Tensor, flat: Tensor, how: Reduction) -> None:
        part = self._carried(output, "host part", how.carrier, filled=False)
        self.algorithm.reduce_scatter(self._wire, part, flat, how)
        self._deliver(part, output)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter(  # type: ignore[override]
        self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: Any = None
    ) -> Work:
        """Set rank r's output to the reduced r-th tensor of each list."""
        how = self._reduction(opts, outputs)
        for output, parts in zip(outputs, input_lists, strict=True):
            self._check_list("reduce_scatter", parts, output)

        def job() -> None:
            for output, parts in zip(outputs, input_lists, strict=True):
                whole = self._wire.scratch("lists", output, output.numel() * self.size())
                torch.cat([part.reshape(-1) for part in parts], out=whole)
                self._scatter(output, self._carried(whole, "host", how.carrier), how)

        return self._run("reduce_scatter", job, outputs, outputs, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        """Set the tensors of all ranks to the root's."""
        send = self.algorithm.broadcast
        if send is None:
            self._count("broadcast", tensors)
            work: Work = self._broadcast(tensors, opts)
            return work
        root = opts.rootRank if opts is not None else 0

        def job() -> None:
            for tensor in tensors:
                flat = self._carried(tensor, "host")
                send(self._wire, flat, root)
                self._deliver(flat, tensor)

        return self._run("broadcast", job, tensors, tensors, opts)

    def barrier(self, opts: Any = None) -> Work:
        """Run the backend's barrier after all earlier calls."""
        opts = BarrierOptions() if opts is None else opts
        if self._is_nccl:
            work: Work = self._backends_barrier(opts)
            return work
        what = f"barrier on rank {self.rank()} of {self.size()}"
        return self._hand_over(
            "barrier", "native", lambda: self._inner.barrier(opts).wait(), [torch.empty(0)], what, opts
        )

    # Names in torch 2.11 and older.
    _allgather_base: Any = all_gather_single
    _reduce_scatter_base: Any = reduce_scatter_single
    allgather_into_tensor_coalesced: Any = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced: Any = reduce_scatter_single_coalesced

    def _reduction(self, opts: Any, tensors: list[Tensor]) -> Reduction:
        return reduction(opts.reduceOp if opts is not None else dist.ReduceOp.SUM, self.size(), tensors[0].dtype)

    def _carried(
        self, tensor: Tensor, purpose: str, dtype: torch.dtype | None = None, *, filled: bool = True
    ) -> Tensor:
        """Return `tensor`, flat and as `dtype`, in memory that the wire can send.

        gloo sends only from host memory. CUDA tensors get a host buffer, with their content if `filled`.
        """
        flat = tensor.view(-1)
        to_host = self._by_host(tensor)
        if dtype is None and not to_host:
            return flat
        device = torch.device("cpu") if to_host else tensor.device
        like = torch.empty(0, dtype=dtype or tensor.dtype, device=device)
        carried = self._wire.scratch(purpose, like, flat.numel(), pinned=to_host)
        if filled:
            carried.copy_(flat, non_blocking=to_host)
            if to_host:
                wait_for_stream()
        return carried

    def _by_host(self, tensor: Tensor) -> bool:
        """Return whether a tensor is copied to host memory before it is sent."""
        return not self._is_nccl and tensor.device.type == accelerator.TYPE

    def _deliver(self, flat: Tensor, tensor: Tensor) -> None:
        """Copy the outcome to the caller's tensor."""
        if flat.dtype != tensor.dtype or flat.device != tensor.device:
            # Copies from pinned memory end before the job ends.
            tensor.view(-1).copy_(flat, non_blocking=self._by_host(tensor))

    def _check(self, op: str, which: str, tensor: Tensor, numel: int, dtype: torch.dtype) -> None:
        """Raise ValueError if a tensor has the wrong size or type, before anything is sent and peers wait."""
        if tensor.numel() != numel or tensor.dtype != dtype:
            raise ValueError(
                f"{self.algorithm.name} {op} over {self.size()} ranks needs an {which} of {numel} elements of {dtype}, "
                f"got {tensor.numel()} of {tensor.dtype}"
            )

    def _check_list(self, op: str, tensors: list[Tensor], like: Tensor) -> None:
        if len(tensors) != self.size():
            raise ValueError(f"{self.algorithm.name} {op} needs a list of {self.size()} tensors, got {len(tensors)}")
        for tensor in tensors:
            self._check(op, "entry", tensor, like.numel(), like.dtype)

    def _run(self, op: str, job: Callable[[], None], results: list[Tensor], tensors: list[Tensor], opts: Any) -> Work:
        """Check that `tensors` are contiguous, count the call, and queue `job`, whose outputs are `results`."""
        for tensor in tensors:
            if not tensor.is_contiguous():
                raise ValueError(
                    f"{self.algorithm.name} {op} needs contiguous tensors, got one of shape {tuple(tensor.shape)} "
                    f"with strides {tensor.stride()}; call .contiguous() first"
                )
        count = self._count(op, results)
        if not self._is_nccl:
            return self._hand_over(op, self.algorithm.of(op), job, results, self._names[op], opts)
        if self._together:
            raise RuntimeError(
                f"{self.algorithm.name} {op} cannot be part of a batch of NCCL's calls, because it sends messages in "
                "separate batches; call it outside of batch_isend_irecv and of a coalescing manager"
            )
        began = perf_counter()
        work = self._hand_over(op, self.algorithm.of(op), job, results, self._names[op], opts)
        count["enqueue_s"] = count.get("enqueue_s", 0.0) + perf_counter() - began
        return work

    def _hand_over(
        self, op: str, algorithm: str, job: Callable[[], None], results: list[Tensor], what: str, opts: Any
    ) -> Work:
        """Queue `job`, whose outputs are `results`, and let the observer record it. Errors name `what`."""
        waits = _waits(opts)
        if self.observer is None:
            return self._queue.run(job, results, what, waits=waits)
        watch = self.observer.called(op, self, results, algorithm, on_stream=self._is_nccl)
        with watch.handing(waits=waits):
            work = self._queue.run(watch.timed(job), results, what, waits=waits)
        work.watch = watch
        return work

    def _count(self, op: str, results: list[Tensor]) -> dict[str, Any]:
        count = self.calls.get(op)
        if count is None:
            count = self.calls[op] = {"algorithm": self.algorithm.of(op), "calls": 0, "bytes": 0}
        count["calls"] += 1
        count["bytes"] += sum([tensor.nbytes for tensor in results])
        return count

    # c10d calls these at the start and at the end of a batch.

    def _start_coalescing(self, *arguments: Any) -> None:
        self._together += 1
        super()._start_coalescing(*arguments)

    def _end_coalescing(self, *arguments: Any) -> Work:
        self._together -= 1
        return super()._end_coalescing(*arguments)

    # -- operations of the backend --------------------------------------------------------------------------------

    _broadcast: Any = _delegated("broadcast", "broadcast")
    reduce: Any = _delegated("reduce", "reduce")
    gather: Any = _delegated("gather", "gather", buffer=1)
    scatter: Any = _delegated("scatter", "scatter")
    alltoall: Any = _delegated("alltoall", "all_to_all")
    alltoall_base: Any = _delegated("alltoall_base", "all_to_all")
    all_to_all_single: Any = _delegated("alltoall_base", "all_to_all")
    allgather_coalesced: Any = _delegated("allgather_coalesced", "all_gather")
    send: Any = _delegated("send", "send")
    recv: Any = _delegated("recv", "recv")
    recv_anysource: Any = _delegated("recv_anysource", "recv")
    _backends_barrier: Any = _delegated("barrier", "barrier", buffer=None)
    monitored_barrier: Any = _delegated("monitored_barrier")

    def getBackendName(self) -> str:  # noqa: N802 - c10d's name
        return BACKEND

    def stop(self) -> None:
        """Finish all queued jobs. Then nothing runs."""
        self._queue.stop()

    def shutdown(self) -> None:
        """Stop the queue, then the backend."""
        self.stop()
        self._inner.shutdown()

    def abort(self) -> None:
        """End the backend's connections, so that waits fail."""
        self._inner.abort()


def _waits(opts: Any) -> bool:
    """Return whether the caller waits for the outcome at once. By default, it does not."""
    return not getattr(opts, "asyncOp", True)
