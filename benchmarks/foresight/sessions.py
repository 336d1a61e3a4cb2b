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

# How many samples a strategy's cases have, the same in the base and held out. A sample is 72 ms of timers; tensor
# parallel and FSDP need some 70 and 100 ms of a core for a step of each rank, so with few samples cores would be their
# limit. Where all ranks share the batch, it is that of all.
SAMPLES: Mapping[str, Mapping[str, int]] = {
    "ddp": {"batch_per_rank": 2},
    "zero1": {"batch_per_rank": 2},
    "fsdp": {"batch_per_rank": 4},
    "tp": {"global_batch": 16},
    "pp": {"global_batch": 8},
    "parameter_server": {"batch_per_rank": 2},
}
# Of one device, for the naive forecasts of each of them.
SINGLE: Mapping[str, Any] = {"strategy": "single", "global_batch": (2, 4, 8, 16)}


def of(strategy: str, **axes: Any) -> Mapping[str, Any]:
    """Cases of a strategy, with its samples."""
    return {"strategy": strategy, **SAMPLES[strategy], **axes}


def pipeline(schedule: str | tuple[str, ...], microbatches: int, **axes: Any) -> Mapping[str, Any]:
    """Cases of pipelines."""
    return of("pp", schedule=schedule, microbatches=microbatches, **axes)


SCHEDULES = ("gpipe", "1f1b")

# What two ranks are trained with, from which more is foretold.
PAIR: Sweeps = (
    of("ddp", bucket_mib=(None, 1)),
    *(of(strategy) for strategy in ("fsdp", "zero1", "tp", "parameter_server")),
    pipeline(SCHEDULES, 4),
)

# What a rank of more computes alone. Tensor parallel, ZeRO and pipelines divide it otherwise at each number of ranks.
COMPUTE: Sweeps = (
    of("ddp", world_size=2),
    of("fsdp", world_size=(2, 4, 8)),
    of("zero1", world_size=(2, 4, 8)),
    of("tp", world_size=(2, 4)),
    pipeline(SCHEDULES, 4, world_size=(2, 4), nodes=1),
    pipeline("1f1b", 8, world_size=4, nodes=1),
    of("parameter_server", world_size=(2, 4), nodes=1),
)

TOGETHER = (4, 8)


def together(ranks: int) -> Sweeps:
    """The same of so many ranks, all of which compute at the same time."""
    own = {"world_size": ranks, "nodes": 1}
    cases = [*(of(each, **own) for each in ("ddp", "fsdp", "zero1")), pipeline("1f1b", 8, **own)]
    # Nothing of tensor parallel is held out among 8 ranks, which would need all cores for themselves; and 1F1B keeps
    # as many micro-batches on their way as there are ranks.
    if ranks < max(TOGETHER):
        return (*cases, of("tp", **own), of("parameter_server", **own), pipeline(SCHEDULES, 4, **own))
    return (*cases, pipeline("gpipe", 4, **own))


# What is held out, in parts of which a machine has some.
FSDP = of("fsdp")
ZERO = of("zero1")
TENSOR = of("tp")
QUICK = of("ddp", algorithm=("native", "ring", "tree"))
HALVING = of("ddp", algorithm="halving_doubling")
SERVER = of("ddp", algorithm="parameter_server")
SERVING = of("parameter_server")
TWO_LEVEL = of("ddp", algorithm="two_level")
BUCKETS = of("ddp", bucket_mib=(0.5, 2))
SHARDED: Sweeps = (of("fsdp", algorithm=("native", "ring")), ZERO)
PIPELINES = pipeline(SCHEDULES, 4)
FEW_PARTS, MORE_PARTS = pipeline("gpipe", 4), pipeline("1f1b", 8)


def base() -> list[Session]:
    """Trainings of one device and of pairs with instrumented steps, and collectives of pairs."""
    pairs = [Machine(1, 2), *(Machine(2, 1, rate) for rate in RATES)]
    protocol: dict[str, Any] = {"warmup": 2, "steps": 8, "launches": 2, "instrumented": 3}
    return [
        trainings("train-1x1", Machine(1, 1), [SINGLE], COMPUTE, **protocol),
        # The nodes of an emulated cluster have one machine's cores, so as many ranks compute at the same time.
        *(
            trainings(f"compute-{n}", Machine(1, 1), [SINGLE | {"global_batch": 2}], together(n), **protocol)
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
        _held(Machine(1, 4), (QUICK, HALVING, SERVER, BUCKETS, *SHARDED, TENSOR, PIPELINES, MORE_PARTS)),
        _held(Machine(2, 2, "1gbit"), (QUICK, HALVING, TWO_LEVEL, BUCKETS, *SHARDED, TENSOR, PIPELINES)),
        _held(
            Machine(2, 2, "300mbit"),
            (QUICK, HALVING, TWO_LEVEL, BUCKETS, *SHARDED, TENSOR, PIPELINES, MORE_PARTS, SERVING),
        ),
        _held(Machine(2, 2, "100mbit"), (QUICK, TWO_LEVEL, FSDP, PIPELINES), steps=4),
        _held(Machine(4, 1, "1gbit"), (QUICK, HALVING, SERVER, SERVING, *SHARDED, TENSOR, PIPELINES)),
        _held(Machine(4, 1, "300mbit"), (QUICK, HALVING, BUCKETS, *SHARDED, TENSOR, PIPELINES, MORE_PARTS)),
        _held(Machine(2, 4, "1gbit"), (QUICK, TWO_LEVEL, FSDP)),
        _held(Machine(2, 4, "300mbit"), (QUICK, TWO_LEVEL, BUCKETS, FSDP, FEW_PARTS, MORE_PARTS), steps=4),
        _held(Machine(4, 2, "300mbit"), (QUICK, TWO_LEVEL, BUCKETS, FSDP, ZERO, MORE_PARTS), steps=4),
        _held(Machine(4, 2, "100mbit"), (QUICK, TWO_LEVEL), steps=4),
        _held(Machine(4, 4, "300mbit"), (of("ddp"), TWO_LEVEL), steps=4),
        _held(Machine(4, 4, "100mbit"), (of("ddp"), TWO_LEVEL), steps=4),
    ]


def _held(machine: Machine, sweeps: Sweeps, steps: int = 5) -> Session:
    return trainings(str(machine), machine, sweeps, warmup=2, steps=steps, launches=2, instrumented=0)


KINDS: dict[str, Callable[[], list[Session]]] = {"base": base, "held": held}
