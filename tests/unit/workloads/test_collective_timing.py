"""The timing of calls: on a clock that only calls advance, and on a device that runs behind the host."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fake_cuda import Device
from parabench.machine import accelerator
from parabench.plan.collective_protocol import FIRST_RUN_IN_S, MOST_IN_A_BATCH, RUN_IN_S, CollectiveProtocol
from parabench.workloads import timing
from parabench.workloads.timing import MARKS, Bench

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def barriers(monkeypatch):
    """Return the options of the barriers of rank 0 in a group of two ranks."""
    barriers: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "barrier", lambda **options: barriers.append(options))
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "scatter", lambda mine, parts, src: None)
    return barriers


class HostTime:
    """A clock that only calls advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
        self.now, self.calls, self._seconds = 100.0, 0, seconds
        for module in (timing, accelerator):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)

    def call(self) -> None:
        self.now += self._seconds(self.calls)
        self.calls += 1


def rows(protocol: CollectiveProtocol) -> np.ndarray:
    return np.full((2 + protocol.batches, MARKS), np.nan)


def timed(bench, call, rows):
    """Fill the rows of one size and form that is not interleaved."""
    protocol = bench._protocol
    warmup = protocol.warmup if protocol.mode == "latency" else 1
    with bench.warmed_up(call, rows[:warmup]) as turn:
        turn(rows[warmup:])


def test_time_box_has_batches_of_equal_size(barriers, monkeypatch):
    """Calls of 1 ms in 0.2 s: 10 batches of 20."""
    host, protocol = HostTime(monkeypatch, lambda n: 1e-3), CollectiveProtocol(measure_s=0.2)
    seen = rows(protocol)
    timed(Bench(protocol, "gloo", CPU, 0), host.call, seen)
    assert list(seen[:, 2]) == [5, 5, *[20] * 10]
    assert seen[:, 1] == pytest.approx(seen[:, 2] * 1e-3, rel=1e-9)
    assert list(seen[1:, 0]) == pytest.approx([100.005, *(100.01 + 0.02 * at for at in range(10))], abs=1e-9)
    assert host.calls == 5 + 5 + 200
    # Barriers are only before the first calls and before the timed ones.
    assert barriers == [{}, {}]


@pytest.mark.parametrize(
    ("call_s", "given", "calls"),
    [
        (1.0, {}, 2),  # 20 in 10 batches, even if they take long
        (1.0, {"batches": 3}, 7),
        (1.0, {"batches": 50}, 1),
        (1e-9, {}, MOST_IN_A_BATCH),
        (0.0, {}, MOST_IN_A_BATCH),
        (1e-3, {"iterations": 3}, 3),
        (1e-3, {"measure_s": 2.0, "batches": 4}, 500),
    ],
)
def test_calls_in_a_batch_depend_on_the_time_of_a_call(call_s, given, calls):
    assert CollectiveProtocol(**given).calls_in_a_batch(call_s) == calls


def test_isolated_calls_come_each_after_a_barrier(barriers, monkeypatch):
    host, protocol = HostTime(monkeypatch, lambda n: 1e-3 * (n + 1)), CollectiveProtocol(mode="latency")
    seen = np.full((4, MARKS), np.nan)
    timed(Bench(protocol, "gloo", CPU, 0), host.call, seen)
    assert list(seen[:, 1]) == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3])
    assert set(seen[:, 2]) == {1}
    assert len(barriers) == 4


def test_turns_begin_with_discarded_calls(barriers, monkeypatch):
    """Calls of 3 ms: two of them are discarded, and the first turn also keeps its first batch."""
    host, protocol = HostTime(monkeypatch, lambda n: 3e-3), CollectiveProtocol(iterations=3, batches=4, warmup=5)
    seen, begins = rows(protocol), []
    with Bench(protocol, "gloo", CPU, 0).warmed_up(host.call, seen[:1], in_turns=True) as turn:
        for own in (seen[1:3], seen[3:5], seen[5:]):
            host.now += 1.0  # the turn of another case
            begins.append(host.now)
            turn(own)
    assert list(seen[:, 2]) == [5, 5, 3, 3, 3, 3]
    assert list(seen[1:, 1]) == pytest.approx([15e-3, *[9e-3] * 4])
    assert host.calls == 5 + (5 + 3) + (2 + 6) + (2 + 3)
    # The measured calls follow the discarded ones without a pause.
    assert [seen[at, 0] for at in (1, 3, 5)] == pytest.approx([begins[0], begins[1] + 6e-3, begins[2] + 6e-3], abs=1e-9)
    # Barriers are before the first calls and before each turn.
    assert len(barriers) == 1 + 3


# ---- on a device


class Stream(Device):
    """A device that takes `seconds` per call. The host needs `enqueue_s` to start one, so it runs ahead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, enqueue_s: float = 0.0) -> None:
        super().__init__(monkeypatch)
        self.host, self.calls, self.graphs, self.replays = 0.0, 0, 0, 0
        self._seconds, self._enqueue_s = seconds, enqueue_s
        self._capturing: list[Callable[[], None]] | None = None
        stream = self

        def synchronize(device: Any = None) -> None:
            stream.host = stream.compute.time = max(stream.host, stream.compute.time)

        class Graph:
            def __init__(self) -> None:
                self.kernels: list[Callable[[], None]] = []

            def replay(self) -> None:
                stream.replays += 1
                for kernel in self.kernels:
                    kernel()

            def reset(self) -> None:
                self.kernels.clear()
                stream.graphs -= 1

        class Capture:
            def __init__(self, graph: Graph, capture_error_mode: str) -> None:
                assert capture_error_mode == "thread_local", "NCCL's watchdog would break the capture"
                self._graph = graph

            def __enter__(self) -> None:
                stream.graphs += 1
                stream._capturing = self._graph.kernels

            def __exit__(self, *_: object) -> None:
                stream._capturing = None

        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", Capture)
        monkeypatch.setattr(timing, "perf_counter", lambda: 100 + self.host)
        empty = torch.tensor
        monkeypatch.setattr(torch, "tensor", lambda *args, device=None, **more: empty(*args, **more))

    def call(self) -> None:
        """Enqueue a kernel, and advance the host by the time for this."""
        self.calls += 1
        if self._capturing is not None:
            self._capturing.append(self._kernel)
            return
        self.host += self._enqueue_s
        self.compute.time = max(self.compute.time, self.host)
        self._kernel()

    def _kernel(self) -> None:
        self.compute.time += self._seconds


def test_time_on_a_device_is_of_its_stream(barriers, monkeypatch):
    """Kernels take 100 us, and 30 us to start. Only isolated calls would take both."""
    stream, protocol = Stream(monkeypatch, 100e-6, 30e-6), CollectiveProtocol(measure_s=0.1)
    bench = Bench(protocol, "nccl", CUDA, 0)
    for run_in_s in (FIRST_RUN_IN_S, RUN_IN_S):  # The first size has a longer warm-up.
        seen = rows(protocol)
        timed(bench, stream.call, seen)
        assert seen[1, 1] == pytest.approx(run_in_s + 30e-6)
        assert set(seen[2:, 2]) == {100}
        assert seen[2:, 1] / seen[2:, 2] == pytest.approx(100e-6, rel=1e-9)
        # The starts are on the device, not on the host.
        assert np.diff(seen[2:, 0]) == pytest.approx(seen[2:-1, 1], rel=1e-9)
    assert barriers == [{"device_ids": [1]}] * 4


def test_graph_replays_twenty_calls_at_once(monkeypatch):
    """A graph of 1 us kernels, which take 30 us to start, takes only the time of the kernels."""
    stream, protocol = Stream(monkeypatch, 1e-6, 30e-6), CollectiveProtocol(graph=True, iterations=100)
    seen = rows(protocol)
    timed(Bench(protocol, "nccl", CUDA, 0), stream.call, seen)
    assert list(seen[2:, 2]) == [100] * 10
    assert seen[2:, 1] / seen[2:, 2] == pytest.approx(1e-6, rel=1e-9)
    assert stream.calls == 5 + 20  # by the host; the others are replayed
    assert stream.replays == seen[1:, 2].sum() / 20
    assert stream.graphs == 0
