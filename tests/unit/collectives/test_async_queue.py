"""Queues of collectives on a fake CUDA device: waits, lifetimes of tensors, and failures."""

import gc
import threading
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch.futures import Future

from fake_streams import CUDA, Device, Tensor
from parabench.collectives import async_queue
from parabench.collectives.async_queue import StreamQueue, ThreadQueue


class HostFuture(Future[Any]):
    """A future without its device, because the real future would look for CUDA."""

    def __new__(cls, *, devices: list[torch.device] | None = None) -> Any:
        return super().__new__(cls)

    def __init__(self, *, devices: list[torch.device] | None = None) -> None:
        super().__init__()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(async_queue, "Future", HostFuture)
    return Device(monkeypatch)


def outcome() -> Any:
    return [Tensor()]


# -- over NCCL: a stream -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "order"), [("queue", "gradient job backward optimizer"), ("caller", "gradient backward job optimizer")]
)
def test_job_runs_after_earlier_work_of_the_caller(device: Device, first: str, order: str) -> None:
    queue = StreamQueue()
    device.kernel("gradient")
    work = queue.run(lambda: device.kernel("job"), outcome(), "ring all_reduce")
    device.kernel("backward")
    assert work.wait()
    device.kernel("optimizer")
    beside = queue.stream(CUDA)
    assert not work.is_completed()
    assert device.drain([beside] if first == "queue" else [device.default]) == order.split()
    assert work.is_completed()
    assert work.is_success()
    assert beside.priority == -1


def test_waiting_caller_keeps_its_stream(device: Device) -> None:
    """As with async_op=False in NCCL: FSDP2 chose this stream and its priority."""
    queue, chosen = StreamQueue(), torch.cuda.Stream()
    device.kernel("backward")
    with torch.cuda.stream(chosen):
        work = queue.run(lambda: device.kernel("job"), outcome(), "ring all_gather", waits=True)
        assert work.wait()
        device.kernel("copy out")
    assert [name for kind, name in chosen.queue if kind == "kernel"] != []
    assert device.drain([chosen]) == ["job", "copy out", "backward"]
    assert len(device.streams) == 2, "a stream that nothing runs on"


@pytest.mark.parametrize("favoured", [0, 1, 2])
def test_jobs_of_a_group_run_in_order_on_any_stream(device: Device, favoured: int) -> None:
    """They share buffers and a communicator."""
    queue, other = StreamQueue(), torch.cuda.Stream()
    queue.run(lambda: device.kernel("1"), outcome(), "ring")
    queue.run(lambda: device.kernel("2"), outcome(), "ring", waits=True)
    with torch.cuda.stream(other):
        queue.run(lambda: device.kernel("3"), outcome(), "ring", waits=True)
        queue.run(lambda: device.kernel("4"), outcome(), "ring")
    queue.run(lambda: device.kernel("5"), outcome(), "ring", waits=True)
    assert device.drain([device.streams[favoured]]) == ["1", "2", "3", "4", "5"]


def test_inputs_live_until_kernels_end_without_a_wait(device: Device) -> None:
    queue, alive, tensor = StreamQueue(), list[bool](), Tensor()
    there = weakref.ref(tensor)

    def job(tensor: Tensor) -> None:
        device.kernel("job", lambda: alive.append(there() is not None))

    queue.run(partial(job, tensor), outcome(), "ring reduce_scatter")
    del tensor
    queue.run(lambda: device.kernel("next"), outcome(), "ring")
    gc.collect()
    device.drain()
    assert alive == [True]
    queue.run(lambda: device.kernel("next"), outcome(), "ring")
    gc.collect()
    assert there() is None, "kept for ever"


def test_failure_is_raised_in_wait_and_ends_later_jobs(device: Device) -> None:
    queue, done = StreamQueue(), []

    def fail() -> None:
        raise ValueError("no such peer")

    works = [
        queue.run(fail, outcome(), "ring all_reduce on rank 1 of 4"),
        queue.run(lambda: done.append("second"), outcome(), "the second", waits=True),
    ]
    for work in works:
        with pytest.raises(RuntimeError, match="ring all_reduce on rank 1 of 4: ValueError: no such peer"):
            work.wait()
        with pytest.raises(RuntimeError, match="no such peer"):
            work.get_future().wait()
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), RuntimeError)
    assert done == []


# -- over gloo: a thread, and a stream for its copies ----------------------------------------------------------------


def test_thread_queue_copies_while_the_device_computes(device: Device) -> None:
    """On the caller's stream, its copy would wait for all enqueued work of backward."""
    queue, began = ThreadQueue("test"), threading.Event()

    def job() -> None:
        device.kernel("to the host")
        async_queue.wait_for_stream()
        device.kernel("to the device")
        began.set()

    device.kernel("gradient")
    work = queue.run(job, outcome(), "ring all_reduce")
    device.kernel("backward")
    # The thread has its stream wait for the gradient, while nothing has run on the device yet.
    with device.moved:
        while len(device.streams) < 2 or len(device.streams[1].queue) < 3:
            device.moved.wait(0.01)
    beside = device.streams[1]
    assert [kind for kind, _ in beside.queue] == ["wait", "kernel", "record"]
    assert not began.is_set()
    for _ in ("gradient", "its event"):
        assert device.run(device.default)
    while not work.is_completed():
        device.run(beside)
    assert device.log == ["gradient", "to the host", "to the device"], "backward was waited for"
    assert work.wait()
    assert set(device.set_in) == {"test"}
    assert beside.priority == -1
    device.drain()
    queue.stop()
