"""What the tests' ranks run: entries that are called in fresh processes."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from guard import GUARD_S
from torch import Tensor
from torch.distributed import ReduceOp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from parabench.collectives import join, wire
from parabench.collectives.wire import Wire
from parabench.launch.rank import die_with_driver, join_group
from parabench.launch.rendezvous import LOOPBACK
from parabench.launch.workload import RankEnv
from parabench.plan.case import Case

Check = Callable[..., Iterator[str]]


def in_group(check: Check, case: Case, folder: Path, *args: Any) -> None:
    """Join the case's group and leave in `folder` the complaints that `check(rank, size, *args)` yields."""
    die_with_driver()
    os.environ.update(LOOPBACK)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    try:
        join_group(case, RankEnv(folder=folder, timeout_s=GUARD_S), rank)
        complaints = list(check(rank, case.world_size, *args))
    except BaseException:
        complaints = [traceback.format_exc()]
        raise
    finally:
        (folder / f"rank{rank}.json").write_text(json.dumps(complaints))
    join.leave()


def one_by_one(rank: int, size: int, checks: Sequence[tuple[Check, tuple[Any, ...]]]) -> Iterator[str]:
    """What several checks yield, each with its own arguments; each complaint is led by the name of its check."""
    for check, args in checks:
        yield from (f"{check.__name__}: {complaint}" for complaint in check(rank, size, *args))


# -- collectives against what torch computes from every rank's input ------------------------------------------------

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
OPS = {"sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "max": ReduceOp.MAX, "min": ReduceOp.MIN}

# With this, a hundred float32 travel in a dozen pieces.
SMALL_PIECE_BYTES = 32

# Empty, fewer than the ranks, odd, prime, and larger than a piece.
SIZES = (0, 1, 2, 3, 5, 7, 16, 31, 64, 97)
FEW_SIZES = (0, 1, 5, 31)


def whole_numbers(rank: int, numel: int, dtype: torch.dtype) -> Tensor:
    """Small whole numbers: every order of adding them is exact in every dtype, so results can be compared exactly."""
    generator = torch.Generator().manual_seed(1000 * numel + rank)
    return torch.randint(-8, 9, (numel,), generator=generator).to(dtype)


def combined(op: str, contributions: list[Tensor]) -> Tensor:
    stacked = torch.stack(contributions)
    if op == "max":
        return stacked.amax(0)
    if op == "min":
        return stacked.amin(0)
    total = stacked.sum(0)
    return total.div(len(contributions)) if op == "avg" else total


def combinations() -> Iterator[tuple[torch.dtype, str]]:
    yield from itertools.product(FLOATS, OPS)
    yield from ((torch.int64, op) for op in OPS if op != "avg")


def reductions_and_gathers(rank: int, size: int) -> Iterator[str]:
    """all_reduce, reduce_scatter, all_gather in every form: every op in every dtype, and the sum in every size too.
    The simulated wire, which costs no processes, has all ops and dtypes by all sizes, but no carrier."""
    wire.PIECE_BYTES = SMALL_PIECE_BYTES
    for (dtype, op), numel in itertools.product(combinations(), SIZES):
        if op != "sum" and numel not in FEW_SIZES:
            continue
        what = f"{op} of {numel} {dtype} on rank {rank}"
        mine = whole_numbers(rank, numel, dtype)
        dist.all_reduce(mine, OPS[op])
        if not torch.equal(mine, combined(op, [whole_numbers(r, numel, dtype) for r in range(size)])):
            yield f"all_reduce {what}: {mine}"

        whole = whole_numbers(rank, numel * size, dtype)
        before = whole.clone()
        expected = combined(op, [whole_numbers(r, numel * size, dtype) for r in range(size)])
        part = torch.full((numel,), 99, dtype=dtype)
        dist.reduce_scatter_single(part, whole, OPS[op])
        if not torch.equal(part, expected.view(size, numel)[rank]):
            yield f"reduce_scatter_single {what}: {part}"
        listed = torch.full((numel,), 99, dtype=dtype)
        dist.reduce_scatter(listed, list(whole.view(size, numel)), OPS[op])
        if not torch.equal(listed, part):
            yield f"reduce_scatter {what}: {listed}"
        if not torch.equal(whole, before):
            yield f"reduce_scatter {what} changed its input"

    for dtype, numel in itertools.product((*FLOATS, torch.int64), SIZES):
        what = f"{numel} {dtype} on rank {rank}"
        parts = [whole_numbers(r, numel, dtype) for r in range(size)]
        output = torch.full((numel * size,), 99, dtype=dtype)
        dist.all_gather_single(output, parts[rank])
        if not torch.equal(output, torch.cat(parts)):
            yield f"all_gather_single of {what}: {output}"
        outputs = [torch.full((numel,), 99, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, parts[rank])
        if not torch.equal(torch.cat(outputs), torch.cat(parts)):
            yield f"all_gather of {what}: {outputs}"


def rounding(rank: int, size: int, folder: Path) -> Iterator[str]:
    """A real tensor, larger than one real piece and of no round size: near the exact sum, and everywhere the same."""
    numel = 3 * wire.PIECE_BYTES // 4 + 5
    inputs = [torch.randn(numel, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    exact = torch.stack(inputs).double().sum(0)
    mine = inputs[rank].clone()
    dist.all_reduce(mine)
    error = float((mine.double() - exact).abs().max())
    if error > size * 4 * torch.finfo(torch.float32).eps:
        yield f"all_reduce is {error} from the exact sum"
    (folder / f"digest{rank}").write_text(hashlib.sha256(mine.numpy().tobytes()).hexdigest())


def other_forms(rank: int, size: int) -> Iterator[str]:
    """Shapes, functional collectives, several groups at once, and what else goes to the backend."""
    wire.PIECE_BYTES = SMALL_PIECE_BYTES
    shaped = torch.full((2, 3, 5), float(rank))
    dist.all_reduce(shaped)
    if not torch.equal(shaped, torch.full((2, 3, 5), sum(range(size)) * 1.0)):
        yield f"all_reduce of three dimensions: {shaped}"
    scalar = torch.tensor(rank + 1.0)
    dist.all_reduce(scalar, ReduceOp.MAX)
    if scalar.item() != size:
        yield f"all_reduce of a scalar: {scalar}"

    world = list(range(size))
    mine = torch.arange(6.0).view(2, 3) + rank
    total = torch.stack([torch.arange(6.0).view(2, 3) + r for r in world]).sum(0)
    if not torch.equal(functional.all_reduce(mine, "sum", world).clone(), total):
        yield "functional all_reduce"
    gathered = functional.all_gather_tensor(mine, 0, world).clone()
    if not torch.equal(gathered, torch.cat([torch.arange(6.0).view(2, 3) + r for r in world])):
        yield f"functional all_gather_tensor: {gathered}"
    wide = torch.arange(2.0 * size) * (rank + 1)
    scattered = functional.reduce_scatter_tensor(wide, "sum", 0, world).clone()
    if not torch.equal(scattered, (torch.arange(2.0 * size) * sum(r + 1 for r in world)).view(size, 2)[rank]):
        yield f"functional reduce_scatter_tensor: {scattered}"

    # Both groups' reductions are under way at the same time, and each rank waits for them in another order.
    halves = [dist.new_group(list(range(0, size, 2))), dist.new_group(list(range(1, size, 2)) or [0])]
    my_half = halves[rank % 2 if size > 1 else 0]
    small, large = torch.full((97,), float(rank)), torch.full((97,), float(rank))
    works = [dist.all_reduce(small, group=my_half, async_op=True), dist.all_reduce(large, async_op=True)]
    for work in works if rank % 2 else reversed(works):
        work.wait()
    if not torch.equal(small, torch.full((97,), float(sum(range(rank % 2, size, 2))))):
        yield f"all_reduce in a sub-group: {small[0]}"
    if not torch.equal(large, torch.full((97,), float(sum(range(size))))):
        yield f"all_reduce beside a sub-group: {large[0]}"

    # A list's tensors are copied anyway, so they may lie as they like.
    slanted = torch.arange(6.0).view(2, 3).t()
    added = torch.zeros(3, 2)
    dist.reduce_scatter(added, [slanted] * size)
    if not torch.equal(added, slanted * size):
        yield f"reduce_scatter of slanted tensors: {added}"

    news = torch.tensor([rank])
    dist.broadcast(news, size - 1)
    if news.item() != size - 1:
        yield f"broadcast: {news}"
    dist.barrier()


def mesh(rank: int, size: int) -> Iterator[str]:
    """A 2-D mesh: each dimension is its own groups, all at work at once."""
    grid = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    peers = {"replicate": range(rank % 2, size, 2), "shard": range(rank // 2 * 2, rank // 2 * 2 + 2)}
    tensors = {name: torch.full((33,), float(2**rank)) for name in peers}
    works = [dist.all_reduce(t, group=grid.get_group(name), async_op=True) for name, t in tensors.items()]
    for work in works:
        work.wait()
    for name, tensor in tensors.items():
        if not torch.equal(tensor, torch.full((33,), float(sum(2**r for r in peers[name])))):
            yield f"mesh dimension {name} on rank {rank}: {tensor[0]}"


def refusals(rank: int, size: int) -> Iterator[str]:
    """What an algorithm cannot do is refused in words, at the call, and the group goes on afterwards."""
    slanted = torch.zeros(4, 6).t()
    flat = torch.zeros(24)
    for name, call in {
        "all_reduce": lambda: dist.all_reduce(slanted),
        "all_gather": lambda: dist.all_gather([torch.zeros(6, 4) for _ in range(size)], slanted),
        "reduce_scatter": lambda: dist.reduce_scatter(slanted, [flat] * size),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(torch.zeros(24 // size), flat.view(4, 6).t()),
        "PRODUCT": lambda: dist.all_reduce(flat, ReduceOp.PRODUCT),
        "AVG": lambda: dist.all_reduce(torch.zeros(3, dtype=torch.int64), ReduceOp.AVG),
        "float8": lambda: dist.all_reduce(torch.zeros(3, dtype=torch.float8_e5m2)),
        "3 elements": lambda: dist.reduce_scatter_single(torch.zeros(3), torch.zeros(3 * size + 1)),
        "float64": lambda: dist.all_gather_single(torch.zeros(2 * size, dtype=torch.float64), torch.zeros(2)),
        "of 2 tensors": lambda: dist.reduce_scatter(torch.zeros(2), [torch.zeros(2)] * (size + 1)),
        "an entry of 2": lambda: dist.all_gather([torch.zeros(3)] * size, torch.zeros(2)),
    }.items():
        wanted = {"3 elements": f"{3 * size} elements", "of 2 tensors": f"list of {size} tensors"}.get(name, name)
        if name.startswith(("all_", "reduce_")):
            wanted = "contiguous"
        try:
            call()
        except ValueError as error:
            if wanted not in str(error):
                yield f"{name}: {error}"
        except Exception as error:
            yield f"{name} raised {type(error).__name__}: {error}"
        else:
            yield f"{name} was not refused"
    total = torch.ones(3)
    dist.all_reduce(total)
    if not torch.equal(total, torch.full((3,), float(size))):
        yield f"all_reduce after refusals: {total}"


def recorded(rank: int, size: int, algorithm: str) -> Iterator[str]:
    """membership.calls() counts every call with its algorithm and the bytes of its result."""
    dist.all_reduce(torch.zeros(10))
    dist.all_reduce(torch.zeros(10))
    dist.all_gather_single(torch.zeros(4 * size), torch.zeros(4))
    dist.reduce_scatter_single(torch.zeros(4), torch.zeros(4 * size))
    expected = {
        "all_reduce": {"algorithm": algorithm, "calls": 2, "bytes": 80},
        "all_gather": {"algorithm": algorithm, "calls": 1, "bytes": 16 * size},
        "reduce_scatter": {"algorithm": algorithm, "calls": 1, "bytes": 16},
    }
    if join.calls() != expected:
        yield f"calls are {join.calls()}"


def unusual_callers(rank: int, size: int) -> Iterator[str]:
    """From a future's callback, in inference mode and after it, before a barrier, and DDP with PowerSGD's hook."""
    expected = float(sum(range(1, size + 1)))
    first, second = torch.full((1000,), rank + 1.0), torch.full((10,), rank + 1.0)

    def callback(_: Any) -> Tensor:
        return dist.all_reduce(second, async_op=True).get_future().wait()[0]

    chained = dist.all_reduce(first, async_op=True).get_future().then(callback).wait()
    if not bool((chained == expected).all() and (first == expected).all()):
        yield f"chained: {chained}"

    with torch.inference_mode():
        inside = torch.full((99,), rank + 1.0)
        dist.all_reduce(inside)
        dist.reduce_scatter_single(torch.empty(10), torch.ones(10 * size))
    part = torch.empty(10)
    dist.reduce_scatter_single(part, torch.ones(10 * size))
    if not bool((inside == expected).all() and (part == size).all()):
        yield f"in inference mode: {inside}, after it: {part}"
    with torch.inference_mode():
        later = torch.full((99,), rank + 1.0)
    dist.all_reduce(later)
    if not bool((later == expected).all()):
        yield f"an inference tensor: {later}"

    pending = torch.full((100_000,), rank + 1.0)
    work = dist.all_reduce(pending, async_op=True)
    dist.barrier()
    if not work.is_completed() or not bool((pending == expected).all()):
        yield "a barrier did not wait for what was called before it"

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)))
    state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        model(torch.ones(2, 32)).sum().backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    others = [torch.empty_like(gradients) for _ in range(size)]
    dist.all_gather(others, gradients)
    if not all(torch.equal(gradients, other) for other in others):
        yield "PowerSGD's gradients differ between ranks"
    del model
    gc.collect()


def unfinished(rank: int, size: int, pipe: Path) -> Iterator[str]:
    """Rank 0's Work is unfinished as long as rank 1 has not come, and rank 1 comes only after rank 0 saw that."""
    tensor = torch.full((9,), rank + 1.0)
    if rank == 1:
        pipe.read_text()  # returns when rank 0 has written
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        if work.is_completed():
            yield "the Work was finished before the peer had come"
        pipe.write_text("go on")
    work.wait()
    if not work.is_completed():
        yield "the Work was unfinished after wait()"
    if not torch.equal(tensor, torch.full((9,), 3.0)):
        yield f"the sum is {tensor}"


def dying(rank: int, case: Case, folder: Path) -> None:
    """The last rank is killed while it sends; the others write down what they are told. Not run by torch elastic,
    which would end them first."""
    os.environ.update(LOOPBACK)
    join_group(case, RankEnv(folder=folder, timeout_s=GUARD_S), rank)
    dist.barrier()
    wire.PIECE_BYTES = SMALL_PIECE_BYTES
    if rank == case.world_size - 1:
        calls = itertools.count()
        send = Wire.send

        def fatal(self: Wire, *args: Any, **kwargs: Any) -> Any:
            if next(calls) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return send(self, *args, **kwargs)

        Wire.send = fatal
    try:
        dist.all_reduce(torch.zeros(1000))
    except RuntimeError as error:
        (folder / f"told{rank}").write_text(str(error))
    os._exit(0)


def stopping_dead(rank: int, case: Case, folder: Path) -> None:
    """The last rank stops before it takes part; the others write down what they are told."""
    os.environ.update(LOOPBACK)
    join_group(case, RankEnv(folder=folder, timeout_s=3.0), rank)
    dist.barrier()
    if rank == case.world_size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        dist.all_reduce(torch.zeros(1000))
        told = "nothing"
    except RuntimeError as error:
        told = str(error)
    (folder / f"told{rank}").write_text(told)
    os._exit(0)


def large_halves(rank: int, size: int) -> Iterator[str]:
    """The sum of these would be infinite in float16; their average is what they are. So is that of the smallest."""
    least = torch.full((33,), 6e-8, dtype=torch.float16)
    smallest = least.clone()
    dist.all_reduce(smallest, ReduceOp.AVG)
    if not torch.equal(smallest, least):
        yield f"all_reduce of the smallest: {smallest}"
    mine = torch.full((33,), 60000.0, dtype=torch.float16)
    dist.all_reduce(mine, ReduceOp.AVG)
    if not torch.equal(mine, torch.full((33,), 60000.0, dtype=torch.float16)):
        yield f"all_reduce: {mine}"
    whole = torch.full((33 * size,), 60000.0, dtype=torch.float16)
    part = torch.zeros(33, dtype=torch.float16)
    dist.reduce_scatter_single(part, whole, ReduceOp.AVG)
    if not torch.equal(part, torch.full((33,), 60000.0, dtype=torch.float16)):
        yield f"reduce_scatter: {part}"
    if not torch.equal(whole, torch.full((33 * size,), 60000.0, dtype=torch.float16)):
        yield "reduce_scatter changed its input"
