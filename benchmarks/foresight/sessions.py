"""Which sessions make the truth, and on which emulated machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.foresight.machines import Machine, Session, trainings

Sweeps = Sequence[Mapping[str, Any]]

RATES = ("100mbit", "300mbit", "1gbit")
FLAT = ("native", "ring", "tree", "halving_doubling", "parameter_server")

# The largest message of single collectives: beyond it a slow link takes each byte as long.
LARGEST = {None: "8MiB", "1gbit": "8MiB", "300mbit": "2MiB", "100mbit": "2MiB"}

# What two ranks are trained with, from which more is foretold.
PAIR: Sweeps = (
    {"strategy": "ddp", "bucket_mib": (None, 1)},
    {"strategy": ("fsdp", "zero1", "tp")},
)

# What a rank of more computes alone. Tensor parallel and ZeRO divide it otherwise at each number of ranks.
COMPUTE: Sweeps = (
    {"strategy": "ddp", "world_size": 2},
    {"strategy": ("fsdp", "zero1"), "world_size": (2, 4, 8, 16)},
    {"strategy": "tp", "world_size": (2, 4, 8)},
)

TOGETHER = (4, 8)


def together(ranks: int) -> Sweeps:
    """The same of so many ranks, all of which compute at the same time."""
    return ({"strategy": ("ddp", "fsdp", "zero1", "tp"), "world_size": ranks, "nodes": 1},)


# What is held out, in parts of which a machine has some.
DDP: Mapping[str, Any] = {"strategy": "ddp"}
FSDP: Mapping[str, Any] = {"strategy": "fsdp"}
ALGORITHMS: Sweeps = ({"strategy": "ddp", "algorithm": FLAT},)
TWO_LEVEL: Sweeps = ({"strategy": "ddp", "algorithm": "two_level"},)
QUICK: Sweeps = ({"strategy": "ddp", "algorithm": ("native", "ring", "tree")},)
BUCKETS: Sweeps = ({"strategy": "ddp", "bucket_mib": (0.5, 2, 8)},)
SHARDED: Sweeps = ({"strategy": "fsdp", "algorithm": ("native", "ring")}, {"strategy": "zero1"})
TENSOR: Sweeps = ({"strategy": "tp"},)
EVERY: Sweeps = (*ALGORITHMS, *TWO_LEVEL, *BUCKETS, *SHARDED, *TENSOR)


def base() -> list[Session]:
    """Trainings of one device and of pairs with instrumented steps, and collectives of pairs."""
    pairs = [Machine(1, 2), *(Machine(2, 1, rate) for rate in RATES)]
    protocol: dict[str, Any] = {"warmup": 2, "steps": 8, "launches": 3, "instrumented": 4}
    return [
        trainings("train-1x1", Machine(1, 1), [{"strategy": "single"}], COMPUTE, **protocol),
        # The nodes of an emulated cluster have one machine's cores, so as many ranks compute at the same time.
        *(
            trainings(f"compute-{n}", Machine(1, 1), [{"strategy": "single"}], together(n), **protocol)
            for n in TOGETHER
        ),
        *(trainings(f"train-{pair}", pair, PAIR, **protocol) for pair in pairs),
        *(_collectives(pair) for pair in pairs),
    ]


def _collectives(pair: Machine) -> Session:
    """Single operations of two ranks; over a link so few calls that a session takes about a minute."""
    words = ["collectives", "--world-size", str(pair.ranks), "--algorithm", ",".join(FLAT), "--min", "8KiB"]
    words += ["--max", LARGEST[pair.rate]]
    if pair.rate is None:
        words += ["--launches", "2", "--batches", "5", "--measure-seconds", "0.05"]
    else:
        launches = "1" if pair.rate == "100mbit" else "2"
        words += ["--launches", launches, "--batches", "3", "--iterations", "1", "--warmup", "1"]
    return Session(f"collectives-{pair}", pair, tuple(words))


def held() -> list[Session]:
    """Trainings of four ranks and more. Many ranks have slow links and few messages, or cores would be their limit."""
    return [
        _held(Machine(1, 4), EVERY),
        _held(Machine(2, 2, "1gbit"), EVERY),
        _held(Machine(2, 2, "300mbit"), EVERY),
        _held(Machine(2, 2, "100mbit"), (*QUICK, *TWO_LEVEL, FSDP), steps=5),
        _held(Machine(4, 1, "1gbit"), (*ALGORITHMS, *SHARDED, *TENSOR)),
        _held(Machine(4, 1, "300mbit"), (*ALGORITHMS, *BUCKETS, *SHARDED, *TENSOR)),
        _held(Machine(2, 4, "1gbit"), (*QUICK, *TWO_LEVEL)),
        _held(Machine(2, 4, "300mbit"), (*ALGORITHMS, *TWO_LEVEL, *BUCKETS, FSDP), steps=5),
        _held(Machine(4, 2, "300mbit"), (*QUICK, *TWO_LEVEL, *BUCKETS, *SHARDED), steps=5),
        _held(Machine(4, 2, "100mbit"), (*QUICK, *TWO_LEVEL), steps=4),
        _held(Machine(4, 4, "300mbit"), (*QUICK, *TWO_LEVEL), steps=4),
        _held(Machine(4, 4, "100mbit"), (DDP, *TWO_LEVEL), steps=4),
    ]


def _held(machine: Machine, sweeps: Sweeps, steps: int = 8) -> Session:
    return trainings(str(machine), machine, sweeps, warmup=2, steps=steps, launches=2, instrumented=0)


KINDS: dict[str, Callable[[], list[Session]]] = {"base": base, "held": held}
