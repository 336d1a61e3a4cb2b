"""Exact results of every algorithm over a simulated wire with the worst timing that a real wire allows."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed import ReduceOp

from parabench.collectives import LEVELS, wire
from parabench.collectives.algorithm import Algorithm, Reduction, make, reduction
from parabench.collectives.wire import Wire
from ranks_helpers import FLOATS, OPS, combined, whole_numbers
from simulated import Simulation

SUM = ReduceOp.SUM
TWO_LEVELS = tuple(f"two_level({inner},{outer})" for inner, outer in itertools.product(LEVELS, LEVELS))
quick = settings(max_examples=30, deadline=None)


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """Send a hundred float32 in a dozen pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "PIECE_BYTES", 32)
        yield


@st.composite
def groups(draw: st.DrawFn) -> tuple[Simulation, Algorithm]:
    """Draw ranks in an order of speed, and an algorithm: for two_level, any levels, and any node size that divides."""
    size = draw(st.integers(1, 8))
    name = draw(st.sampled_from((*LEVELS, *TWO_LEVELS)))
    node = draw(st.sampled_from([k for k in range(1, size + 1) if size % k == 0]))
    order = draw(st.none() | st.permutations(range(size)))
    return Simulation(size, order), make(name, node if name in TWO_LEVELS else None)


numels = st.integers(0, 300)
dtypes = st.sampled_from((*FLOATS, torch.int64))
reductions = st.one_of(
    st.tuples(st.sampled_from(FLOATS), st.sampled_from(sorted(OPS))),
    st.tuples(st.just(torch.int64), st.sampled_from(["sum", "max", "min"])),
)


def all_reduced(simulation: Simulation, algorithm: Algorithm, inputs: list[Tensor], op: Reduction) -> list[Tensor]:
    flats = [each.clone() for each in inputs]
    simulation.run(lambda wire: algorithm.all_reduce(wire, flats[wire.rank], op))
    return flats


@quick
@given(group=groups(), numel=numels, kind=reductions)
def test_all_reduce(group: tuple[Simulation, Algorithm], numel: int, kind: tuple[torch.dtype, str]) -> None:
    (simulation, algorithm), (dtype, op) = group, kind
    size = simulation.size
    inputs = [whole_numbers(rank, numel, dtype) for rank in range(size)]
    expected = combined(op, inputs)
    for flat in all_reduced(simulation, algorithm, inputs, reduction(OPS[op], size)):
        assert torch.equal(flat, expected)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_all_reduce_is_exact_when_chunks_have_unequal_pieces(size: int) -> None:
    """A piece has four elements, so chunks of four and of five elements have different numbers of pieces."""
    flat = [(name, None) for name in LEVELS]
    nodes = [(name, node) for name in TWO_LEVELS for node in range(1, size + 1) if size % node == 0]
    for (name, node), numel in itertools.product((*flat, *nodes), (4 * size + 1, 5 * size - 1)):
        inputs = [whole_numbers(rank, numel, torch.int64) for rank in range(size)]
        for each in all_reduced(Simulation(size), make(name, node), inputs, reduction(SUM, size)):
            assert torch.equal(each, combined("sum", inputs)), (name, node, numel)


@quick
@given(group=groups(), numel=st.integers(0, 90), kind=reductions, in_place=st.booleans())
def test_reduce_scatter(
    group: tuple[Simulation, Algorithm], numel: int, kind: tuple[torch.dtype, str], in_place: bool
) -> None:
    (simulation, algorithm), (dtype, op) = group, kind
    size = simulation.size
    inputs = [whole_numbers(rank, numel * size, dtype) for rank in range(size)]
    expected = combined(op, inputs).view(size, numel)
    flats = [each.clone() for each in inputs]
    own = [flat.view(size, numel)[rank] for rank, flat in enumerate(flats)]
    outputs = own if in_place else [torch.full((numel,), 99, dtype=dtype) for _ in range(size)]

    def work(wire: Wire) -> None:
        algorithm.reduce_scatter(wire, outputs[wire.rank], flats[wire.rank], reduction(OPS[op], size))

    simulation.run(work)
    for rank, output in enumerate(outputs):
        assert torch.equal(output, expected[rank])
        kept = inputs[rank].clone()
        if in_place:
            kept.view(size, numel)[rank] = expected[rank]
        assert torch.equal(flats[rank], kept)


@quick
@given(group=groups(), numel=st.integers(0, 90), dtype=dtypes, in_place=st.booleans())
def test_all_gather(group: tuple[Simulation, Algorithm], numel: int, dtype: torch.dtype, in_place: bool) -> None:
    simulation, algorithm = group
    size = simulation.size
    parts = [whole_numbers(rank, numel, dtype) for rank in range(size)]
    outputs = [torch.full((numel * size,), 99, dtype=dtype) for _ in range(size)]

    def work(wire: Wire) -> None:
        output, part = outputs[wire.rank], parts[wire.rank].clone()
        if in_place:
            part = output.view(size, numel)[wire.rank].copy_(part)
        algorithm.all_gather(wire, output, part)

    simulation.run(work)
    for output in outputs:
        assert torch.equal(output, torch.cat(parts))


@quick
@given(group=groups(), numel=numels, dtype=dtypes, data=st.data())
def test_broadcast(group: tuple[Simulation, Algorithm], numel: int, dtype: torch.dtype, data: st.DataObject) -> None:
    simulation, algorithm = group
    size = simulation.size
    broadcast = algorithm.broadcast
    assert broadcast is not None
    root = data.draw(st.integers(0, size - 1), label="root")
    flats = [whole_numbers(rank, numel, dtype) for rank in range(size)]
    expected = flats[root].clone()
    simulation.run(lambda wire: broadcast(wire, flats[wire.rank], root))
    for flat in flats:
        assert torch.equal(flat, expected)


@quick
@given(group=groups(), numel=numels, dtype=st.sampled_from(FLOATS), seed=st.integers(0, 999))
def test_all_reduce_of_floats_has_equal_bits_on_all_ranks(
    group: tuple[Simulation, Algorithm], numel: int, dtype: torch.dtype, seed: int
) -> None:
    simulation, algorithm = group
    size = simulation.size
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(numel, generator=generator).to(dtype) for _ in range(size)]
    flats = all_reduced(simulation, algorithm, inputs, reduction(SUM, size))
    for flat in flats:
        assert torch.equal(flat.view(torch.uint8), flats[0].view(torch.uint8))
    # Each of n-1 additions rounds by at most half an eps of a partial sum, and none exceeds the sum of magnitudes.
    doubles = torch.stack(inputs).double()
    bound = size * torch.finfo(dtype).eps * doubles.abs().sum(0)
    assert bool(((flats[0].double() - doubles.sum(0)).abs() <= bound).all())


@settings(max_examples=15, deadline=None)
@given(group=groups(), numel=st.integers(0, 60))
def test_algorithms_reuse_their_buffers(group: tuple[Simulation, Algorithm], numel: int) -> None:
    simulation, algorithm = group
    size = simulation.size
    op = reduction(SUM, size)

    def work(wire: Wire) -> None:
        flat = torch.zeros(numel * size)
        algorithm.all_reduce(wire, flat, op)
        algorithm.reduce_scatter(wire, torch.zeros(numel), flat, op)
        algorithm.all_gather(wire, flat, torch.zeros(numel))
        assert algorithm.broadcast is not None
        algorithm.broadcast(wire, flat, size - 1)

    def buffers() -> list[dict[object, int]]:
        return [{key: buffer.data_ptr() for key, buffer in each.items()} for each in simulation.scratch]

    simulation.run(work)
    before = buffers()
    simulation.run(work)
    assert buffers() == before
