"""Write a simulated results database of 1,000 launches, to measure the cost of reading and reporting.

    python -m benchmarks.big_store [--cases 200] [--launches 5] [--steps 50] [--ranks 8] [--explained 8] OUT

Everything goes through the store's own writer. The cases are sweeps of several workloads (model and batch) over
strategies, algorithms, bucket caps and world sizes. Every launch has the samples of a real one: for each rank the time
and parts of every step, the loss, and its memory. The first EXPLAINED cases of several ranks also have instrumented
steps: spans, calls and memory by parts. The numbers are random with a fixed seed; nothing is measured.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.store.record import MIB, WAIT, CollectiveSample, Launch, Sample, Span, Status
from parabench.store.store import Store

WARMUP, INSTRUMENTED = 5, 4
SEED = 7
STARTED = "2026-01-31T14:05:00.000Z"
WORKS = tuple(itertools.product((64, 128, 256), ("gpt-nano", "gpt-mini", "gpt2", "mlp", "gpt2-medium")))
# Step times relative to the fastest.
STRATEGIES = {"ddp": 1.0, "zero1": 1.04, "zero2": 1.09, "fsdp": 1.15, "single": 1.2}
ALGORITHMS = {"native": 1.0, "ring": 0.97, "tree": 1.03, "halving_doubling": 0.99, "parameter_server": 1.35}
BUCKETS = {None: 1.03, 1.0: 1.12, 4.0: 1.04, 10.0: 1.0, 25.0: 1.005, 100.0: 1.06}
# Shares of a step.
PARTS = {"data_s": 0.02, "forward_s": 0.31, "backward_s": 0.57, "optimizer_s": 0.10}
ENVIRONMENT: dict[str, Any] = {
    "host": "simulated", "os": "Linux 6.1", "python": "3.11.2", "cpu": "Some CPU", "cores": 64,
    "memory_bytes": 256 * 2**30, "gpus": [], "nvml": {"available": False, "reason": "no NVIDIA driver"},
    "versions": {"torch": "2.13.0", "numpy": "2.4.6"}, "env": {"OMP_NUM_THREADS": "1"}, "container": {"kind": None},
}  # fmt: skip


def sweep(cases: int, ranks: int) -> list[Case]:
    """Return the first `cases` cases, workload after workload."""

    def every() -> Iterator[Case]:
        for batch, model in WORKS:
            work = {"model": model, "global_batch": batch, "device": "cpu", "backend": "gloo"}
            yield Case(strategy="single", **work)
            sizes = dict.fromkeys((max(2, ranks // 2), ranks, 2 * ranks))
            for size, strategy, algorithm, bucket in itertools.product(sizes, [*STRATEGIES][:4], ALGORITHMS, BUCKETS):
                if strategy == "ddp" or bucket in (None, 4.0, 25.0):
                    yield Case(strategy=strategy, algorithm=algorithm, bucket_mib=bucket, world_size=size, **work)

    found = list(itertools.islice(every(), cases))
    if len(found) < cases:
        raise SystemExit(f"--cases {cases}: the sweeps have only {len(found)}")
    return found


def launch(
    random: np.random.Generator, case: Case, repetition: int, position: int, steps: int, explained: bool
) -> Launch:
    """Return a launch of a case with random noise."""
    size = ((MODELS[case.model].parameters or 0) / 1e6) ** 0.5
    compute = 0.02 * size * case.global_batch / 64 / case.world_size
    exchange = 0 if case.world_size == 1 else 0.004 * size * (1 + case.world_size / 16)
    seconds = (compute + exchange) * STRATEGIES[case.strategy] * ALGORITHMS[case.algorithm] * BUCKETS[case.bucket_mib]
    seconds *= float(np.exp(0.01 * random.standard_normal() + 0.003 * repetition))
    made = Launch(
        case=case, status=Status.OK, started_utc=STARTED, wall_s=4.0, repetition=repetition, position=position
    )
    made.samples = [*step_samples(random, case, seconds, steps)]
    for rank in range(case.world_size):
        made.samples.append(Sample(rank, None, "measure", "peak_rss_bytes", 300.0 * MIB + random.integers(1 << 20)))
    whole = 4 * (MODELS[case.model].parameters or 0)
    bucket = min(whole, int((case.bucket_mib or 25.0) * MIB))
    made.facts = {
        "model": {"bytes": whole, "tensor_parallel_bytes": whole * 2 // 3, "parameters": whole // 4},
        "unit_bytes": [whole // 5] * 5,
        "clock": {"began_s": 500.0},
        "phases": {"warmup": [500.2, 500.6], "measure": [500.6, 503.0], "instrument": [503.0, 503.5]},
        **({"bucket_bytes": [bucket] * min(max(1, whole // bucket), 64)} if case.strategy == "ddp" else {}),
    }
    if explained:
        explain(made, seconds, steps)
    return made


def step_samples(random: np.random.Generator, case: Case, seconds: float, steps: int) -> Iterator[Sample]:
    shape = (WARMUP + steps, case.world_size)
    step = seconds * (1 + random.gamma(2.0, 0.01, (shape[0], 1)) + random.gamma(2.0, 0.002, shape))
    step[0] *= 8
    uneven = 1 + 0.02 * random.standard_normal((len(PARTS), *shape))
    parts = step * np.array(list(PARTS.values()))[:, None, None] * uneven
    parts[-1] = step - parts[:-1].sum(axis=0)
    loss = np.broadcast_to(np.linspace(5.5, 3.8, shape[0])[:, None], shape)
    values = dict(zip(("step_s", *PARTS, "loss"), (step, *parts, loss), strict=True))
    for rank, at in itertools.product(range(case.world_size), range(shape[0])):
        for metric, value in values.items():
            yield Sample(rank, at, "warmup" if at < WARMUP else "measure", metric, float(value[at, rank]))


def explain(made: Launch, seconds: float, steps: int) -> None:
    """Add instrumented steps: their spans, the memory of their parts, and the calls of two buckets in backward."""
    n = made.case.world_size
    for rank, at in itertools.product(range(n), range(INSTRUMENTED)):
        step, begin = WARMUP + steps + at, 503.0 + at * seconds * 1.1
        made.samples.append(Sample(rank, step, "instrument", "step_s", seconds * 1.05))
        moment = begin
        for part, share in PARTS.items():
            name = part.removesuffix("_s")
            made.spans.append(Span(rank, step, name, moment, moment + share * seconds * 1.05))
            held = 300.0 * MIB + 20 * MIB * (name == "backward")
            made.samples.append(Sample(rank, step, "instrument", f"{name}_rss_bytes", held))
            moment += share * seconds * 1.05
        ends = moment - PARTS["optimizer_s"] * seconds * 1.05
        for bucket in range(2):
            start = ends - (0.25 - 0.15 * bucket) * seconds + 1e-4 * rank
            call = CollectiveSample(
                rank, step, at * 2 + bucket, "all_reduce", made.case.algorithm, n, 4 * MIB, start, 0.1 * seconds,
                "instrument", None, None, f"0-{n - 1}", "float32", start, bucket, start - 1e-4
            )  # fmt: skip
            made.collectives.append(call)
        made.spans.append(Span(rank, step, WAIT, ends - 0.08 * seconds, ends - 1e-4 * (n - rank)))


def write(out: Path, *, cases: int, launches: int, steps: int, ranks: int, explained: int) -> None:
    """Write the database. Raises SystemExit if the file exists."""
    if out.exists():
        raise SystemExit(f"{out} exists; give another")
    out.parent.mkdir(parents=True, exist_ok=True)
    chosen, random = sweep(cases, ranks), np.random.default_rng(SEED)
    told = {case.id for case in [each for each in chosen if each.world_size > 1][:explained]}
    protocol = {"warmup": WARMUP, "steps": steps, "launches": launches, "deadline_s": None}
    protocol["instrumented"] = INSTRUMENTED if explained else 0
    plan = {"kind": "training", "cases": [case.to_dict() for case in chosen], "skipped": [], "protocol": protocol}
    question = "Which strategy, algorithm and bucket size is fastest, for each workload?"
    with Store.open_or_create(out) as store:
        session = store.begin_session(
            label="big", suite="big", argv=["parabench", "run", "big", "--label", "big"], seed=SEED,
            environment=ENVIRONMENT, question=question, plan=plan | {"seed": SEED}
        )  # fmt: skip
        for case in chosen:
            if case.strategy == "single":
                store.append(session, launch(random, case, -1, 0, steps, explained=False))
        for repetition in range(launches):
            for position, place in enumerate(random.permutation(len(chosen))):
                case = chosen[place]
                store.append(session, launch(random, case, repetition, position, steps, case.id in told))
        store.finish_session(session)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name, usual in {"cases": 200, "launches": 5, "steps": 50, "ranks": 8, "explained": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    write(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
