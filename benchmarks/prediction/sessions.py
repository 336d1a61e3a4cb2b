"""The sessions of the truth and their emulated machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.prediction.machines import Machine, Session, trainings

Sweeps = Sequence[Mapping[str, Any]]

RATES = ("300mbit", "1gbit")
FLAT = ("native", "ring", "tree", "halving_doubling", "parameter_server")

# The largest message of single collectives; the time of longer ones is proportional to their size.
LARGEST = {None: "8MiB", "1gbit": "8MiB", "300mbit": "2MiB"}

# The samples of each strategy's cases, the same in the base and held out. A sample is 72 ms of timers; tensor
# parallelism and FSDP need 70 and 100 ms of a core for a step of each rank, so with few samples cores would be their
# limit. If all ranks share the batch, it is the batch of all.
SAMPLES: Mapping[str, Mapping[str, int]] = {
    "ddp": {"batch_per_rank": 2},
    "zero1": {"batch_per_rank": 2},
    "fsdp": {"batch_per_rank": 4},
    "tp": {"global_batch": 16},
}
SINGLE: Mapping[str, Any] = {"strategy": "single", "global_batch": 2}


def of(strategy: str, **axes: Any) -> Mapping[str, Any]:
    """Return cases of a strategy with its samples."""
    return {"strategy": strategy, **SAMPLES[strategy], **axes}


# Training runs of two ranks, from which more are predicted.
PAIR: Sweeps = (
    of("ddp", bucket_mib=(None, 1)),
    of("ddp", algorithm="ring"),
    *(of(strategy) for strategy in ("fsdp", "zero1", "tp")),
)

# Compute-only runs. Tensor parallelism and ZeRO split the work differently at each number of ranks.
COMPUTE: Sweeps = (
    of("ddp", world_size=2),
    of("fsdp", world_size=(2, 4, 8)),
    of("zero1", world_size=(2, 4, 8)),
    of("tp", world_size=(2, 4)),
)

TOGETHER = (4, 8)


def together(ranks: int) -> Sweeps:
    """Return compute-only runs in which all ranks compute at the same time."""
    own = {"world_size": ranks, "nodes": 1}
    # Tensor parallelism among 8 ranks would need all cores, so none is held out.
    strategies = ("ddp", "fsdp", "zero1", "tp") if ranks < max(TOGETHER) else ("ddp", "fsdp", "zero1")
    return tuple(of(each, **own) for each in strategies)


# The parts of the held-out cases; each machine has some of them.
FSDP = of("fsdp")
ZERO = of("zero1")
TENSOR = of("tp")
QUICK = of("ddp", algorithm=("native", "ring", "tree"))
HALVING = of("ddp", algorithm="halving_doubling")
SERVER = of("ddp", algorithm="parameter_server")
TWO_LEVEL = of("ddp", algorithm="two_level")
BUCKETS = of("ddp", bucket_mib=(0.5, 2))
SHARDED: Sweeps = (of("fsdp", algorithm=("native", "ring")), ZERO)


def base() -> list[Session]:
    """Return training runs of one device and of pairs with instrumented steps, and collectives of pairs."""
    pairs = [Machine(1, 2), *(Machine(2, 1, rate) for rate in RATES)]
    protocol: dict[str, Any] = {"warmup": 2, "steps": 8, "launches": 1, "instrumented": 3}
    return [
        trainings("train-1x1", Machine(1, 1), [SINGLE], COMPUTE, **protocol),
        # The nodes of an emulated cluster have one machine's cores, so as many ranks compute at the same time.
        *(trainings(f"compute-{n}", Machine(1, 1), [SINGLE], together(n), **protocol) for n in TOGETHER),
        *(trainings(f"train-{pair}", pair, PAIR, **protocol) for pair in pairs),
        *(_collectives(pair) for pair in pairs),
    ]


def _collectives(pair: Machine) -> Session:
    """Return single operations of two ranks; over a link, few calls keep the session at about a minute."""
    words = ["collectives", "--world-size", str(pair.ranks), "--algorithm", ",".join(FLAT), "--min", "8KiB"]
    words += ["--max", LARGEST[pair.rate], "--launches", "1"]
    if pair.rate is None:
        words += ["--batches", "5", "--measure-seconds", "0.05"]
    else:
        words += ["--batches", "3", "--iterations", "1", "--warmup", "1"]
    return Session(f"collectives-{pair}", pair, tuple(words))


def held() -> list[Session]:
    """Return training runs of four or more ranks. Many ranks have slow links and few messages, to leave cores idle."""
    return [
        _held(Machine(1, 4), (QUICK, HALVING, SERVER, BUCKETS, *SHARDED, TENSOR)),
        _held(Machine(2, 2, "300mbit"), (QUICK, HALVING, TWO_LEVEL, BUCKETS, *SHARDED, TENSOR)),
        _held(Machine(4, 1, "1gbit"), (QUICK, HALVING, SERVER, *SHARDED, TENSOR)),
        _held(Machine(4, 2, "300mbit"), (QUICK, TWO_LEVEL, FSDP, ZERO), steps=4),
        _held(Machine(2, 2, "1gbit"), (QUICK, HALVING, TWO_LEVEL, *SHARDED, TENSOR)),
        _held(Machine(4, 1, "300mbit"), (QUICK, HALVING, BUCKETS, *SHARDED, TENSOR)),
        _held(Machine(2, 4, "300mbit"), (QUICK, TWO_LEVEL), steps=4),
    ]


def _held(machine: Machine, sweeps: Sweeps, steps: int = 5) -> Session:
    return trainings(str(machine), machine, sweeps, warmup=2, steps=steps, launches=1, instrumented=0)


KINDS: dict[str, Callable[[], list[Session]]] = {"base": base, "held": held}
