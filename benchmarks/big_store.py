"""Write a simulated store of 1,000 launches, to measure the cost of reading and reporting.

    python -m benchmarks.big_store [--cases 200] [--launches 5] [--steps 50] [--ranks 8] [--explained 8] OUT

Everything goes through the store's own writer. The cases are sweeps of many works (model, batch, dtype) over
strategies, algorithms, buckets and world sizes of half of, exactly and twice RANKS; the last work takes what is left.
Every launch has what a real one has of its warm-up and timed steps: the time and the parts of every step and the loss,
of every rank, its memory, and its facts. Some cases run out of memory, some launches crash or hang. The first EXPLAINED
cases of several ranks also have instrumented steps: spans, calls and memory by parts. `--only-step-times` leaves the
parts and the losses out. The numbers are simulated by seed; nothing is measured.
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
from parabench.store.record import MIB, WAIT, CollectiveSample, Failure, Finding, Launch, Sample, Span, Status
from parabench.store.store import Store

WARMUP, INSTRUMENTED = 5, 4
SEED = 7
STARTED = "2026-01-31T14:05:00.000Z"
MODELS_SWEPT, BATCHES, PRECISIONS_SWEPT = (
    ("gpt-nano", "gpt-mini", "gpt2", "mlp", "gpt2-medium"),
    (64, 128, 256),
    ("ieee", "bf16-mixed"),
)
ALGORITHMS = ("native", "ring", "tree", "halving_doubling", "parameter_server")
BUCKETS = (None, 1.0, 4.0, 10.0, 25.0, 100.0)
# Shares of a step, of which the last takes what is left.
PARTS = {"data_s": 0.02, "forward_s": 0.31, "backward_s": 0.57, "optimizer_s": 0.10}
IN_TURNS = {"data_s": 0.02, "forward_backward_s": 0.88, "optimizer_s": 0.10}
ENVIRONMENT: dict[str, Any] = {
    "host": "simulated",
    "os": "Linux 6.1",
    "python": "3.11.2",
    "cpu": "Some CPU",
    "cores": 64,
    "memory_bytes": 256 * 2**30,
    "gpus": [],
    "nvml": {"available": False, "reason": "no NVIDIA driver"},
    "versions": {"torch": "2.13.0", "numpy": "2.4.6"},
    "env": {"OMP_NUM_THREADS": "1"},
    "container": {"kind": None},
}
SLOWNESS = {"ddp": 1.0, "zero1": 1.04, "zero2": 1.09, "fsdp": 1.15, "tp": 1.4, "pp": 1.3, "local_only": 0.85}
OF_ALGORITHM = {"native": 1.0, "ring": 0.97, "tree": 1.03, "halving_doubling": 0.99, "parameter_server": 1.35}
OF_BUCKET = {None: 1.03, 1.0: 1.12, 4.0: 1.04, 10.0: 1.0, 25.0: 1.005, 100.0: 1.06}


def work_cases(ranks: int, **work: Any) -> Iterator[Case]:
    """The sweep of one work."""
    sizes = tuple(dict.fromkeys((max(1, ranks // 2), ranks, 2 * ranks)))
    yield Case(strategy="single", **work)
    for size, algorithm, bucket in itertools.product(sizes, ALGORITHMS, BUCKETS):
        reducing = {"algorithm": algorithm, "bucket_mib": bucket, "world_size": size} | work
        for view in (False, True):
            yield Case(strategy="ddp", gradient_as_bucket_view=view, **reducing)
        if bucket in (None, 4.0, 25.0):
            for strategy in ("zero1", "zero2", "fsdp"):
                yield Case(strategy=strategy, **reducing)
    for size, algorithm, sequence in itertools.product(sizes, ALGORITHMS, (False, True)):
        yield Case(strategy="tp", algorithm=algorithm, sequence_parallel=sequence, world_size=size, **work)
    for size, schedule, parts in itertools.product(sizes, ("gpipe", "1f1b"), (4, 8)):
        yield Case(strategy="pp", schedule=schedule, microbatches=parts, world_size=size, **work)
    for size, strategy in itertools.product(sizes, ("parameter_server", "parameter_server_async", "local_only")):
        yield Case(strategy=strategy, world_size=size, **work)


def sweep(cases: int, ranks: int) -> list[Case]:
    works = itertools.product(BATCHES, PRECISIONS_SWEPT, MODELS_SWEPT)
    every = (
        case
        for batch, precision, model in works
        for case in work_cases(
            ranks, model=model, global_batch=batch, precision=precision, device="cpu", backend="gloo"
        )
    )
    found = list(itertools.islice(every, cases))
    if len(found) < cases:
        raise SystemExit(f"--cases {cases}: the sweeps hold no more than {len(found)}")
    return found


def truth(case: Case) -> float:
    """Seconds of a step."""
    parameters = MODELS[case.model].parameters or 0
    alone = 0.02 * (parameters / 1e6) ** 0.5 * case.global_batch / 64 * (0.7 if case.precision == "bf16-mixed" else 1.0)
    exchange = 0 if case.world_size == 1 else 0.004 * (parameters / 1e6) ** 0.5 * (1 + case.world_size / 16)
    slowness = SLOWNESS.get(case.strategy, 1.2) * OF_ALGORITHM[case.algorithm] * OF_BUCKET[case.bucket_mib]
    schedule = 1 + 0.1 * (case.schedule == "gpipe") + (0.2 if case.microbatches == 4 else 0)
    return (alone / case.world_size + exchange) * slowness * schedule * (0.995 if case.gradient_as_bucket_view else 1)


class Maker:
    """Launches of cases, the same for the same seed."""

    def __init__(self, steps: int, only_step_times: bool) -> None:
        self.steps, self.only_step_times = steps, only_step_times
        self.random = np.random.default_rng(SEED)
        # Of every number of ranks and set of parts: all but the values of the rows of steps.
        self.places: dict[tuple[int, tuple[str, ...]], list[tuple[int, int, str, str]]] = {}

    def launch(self, case: Case, block: int, position: int, explained: bool) -> Launch:
        failed = self.fate(case, block)
        made = Launch(
            case=case,
            status=failed[0] if failed else Status.OK,
            started_utc=STARTED,
            wall_s=4.0,
            block=block,
            position=position,
            failure=failed[1] if failed else None,
        )
        if failed is None:
            seconds = truth(case) * np.exp(0.01 * self.random.standard_normal() + 0.003 * block)
            made.samples = [*self.of_steps(case, seconds), *self.of_launch(case)]
            made.facts = facts(case)
            if explained:
                explain(made, seconds, self.steps)
        return made

    def fate(self, case: Case, block: int) -> tuple[Status, Failure] | None:
        """How a launch failed, if it did. What is too large for its ranks is so every time."""
        if block < 0:
            return None
        large = case.model == "gpt2-medium" and case.global_batch == BATCHES[-1] and case.precision == "ieee"
        if large and case.strategy in ("single", "local_only", "parameter_server_async"):
            return Status.OOM, Failure("DefaultCPUAllocator: can't allocate memory", rank=0)
        luck = self.random.random()
        if luck < 0.001:
            return Status.HUNG, Failure("no answer for 60 s", rank=case.world_size - 1)
        if luck < 0.003:
            text = 'Traceback (most recent call last):\n  File "worker.py", line 3, in step\nRuntimeError: peer closed'
            return Status.CRASHED, Failure("killed by SIGKILL", rank=0, signal="SIGKILL", traceback=text)
        return None

    def of_steps(self, case: Case, seconds: float) -> list[Sample]:
        n, count = case.world_size, WARMUP + self.steps
        noise = self.random.gamma(2.0, 0.01, (count, 1)) + self.random.gamma(2.0, 0.002, (count, n))
        step = seconds * (1 + noise)
        step[0] *= 8
        shares = IN_TURNS if case.batch_parts > case.data_ranks else PARTS
        metrics: tuple[str, ...] = ("step_s",)
        values = [step]
        if not self.only_step_times:
            metrics = ("step_s", *shares, "loss")
            uneven = 1 + 0.02 * self.random.standard_normal((len(shares), count, n))
            parts = step * np.array(list(shares.values()))[:, None, None] * uneven
            parts[-1] = step - parts[:-1].sum(axis=0)
            loss = np.broadcast_to(np.linspace(5.5, 3.8, count)[:, None], (count, n))
            values = [step, *parts, loss]
        places = self.places.get((n, metrics))
        if places is None:
            phases = ["warmup"] * WARMUP + ["measure"] * self.steps
            each = itertools.product(range(n), enumerate(phases), metrics)
            places = self.places[n, metrics] = [(rank, at, phase, metric) for rank, (at, phase), metric in each]
        ordered = np.stack(values).transpose(2, 1, 0).ravel().tolist()  # as a rank tells it: by step
        return [Sample(*place, value) for place, value in zip(places, ordered, strict=True)]

    def of_launch(self, case: Case) -> Iterator[Sample]:
        """What belongs to no step: what every rank holds, and what only some strategies tell."""
        whole = 4.0 * (MODELS[case.model].parameters or 0)
        share = whole if case.strategy in ("ddp", "single", "zero1", "local_only") else whole / case.world_size
        own = {
            "parameter_bytes": share,
            "gradient_bytes": share,
            "optimizer_bytes": 2 * (whole / case.world_size if case.strategy == "zero1" else share),
            "peak_rss_bytes": 300 * MIB + 5 * share,
        }
        if case.strategy == "parameter_server_async":
            own |= {"staleness_mean": 0.9 * (case.world_size - 1), "staleness_max": 2.0 * case.world_size}
        if case.strategy == "pp":
            own |= {"stage_busy_share": 0.75}
        for rank in range(case.world_size):
            for metric, value in own.items():
                measured = value + float(self.random.integers(1 << 20)) if metric == "peak_rss_bytes" else value
                yield Sample(rank, None, "measure", metric, measured)


def facts(case: Case) -> dict[str, Any]:
    """What ranks report of how a case ran."""
    whole = 4 * (MODELS[case.model].parameters or 0)
    told: dict[str, Any] = {
        "model": {"bytes": whole, "tensor_parallel_bytes": whole * 2 // 3, "parameters": whole // 4},
        "unit_bytes": [whole // 5] * 5,
        "clock": {"began_s": 500.0},
        "phases": {"warmup": [500.2, 500.6], "measure": [500.6, 503.0], "instrument": [503.0, 503.5]},
    }
    if case.strategy == "ddp":
        size = int((case.bucket_mib or 25.0) * MIB)
        count = max(1, whole // size)
        told["bucket_bytes"] = [min(size, whole)] * min(count, 64)
    if case.strategy == "pp":
        n, parts = case.world_size, case.microbatches or 1
        bubble = (n - 1) / (parts + n - 1)
        told["pipeline"] = {"stages": n, "microbatches": parts, "schedule": case.schedule, "bubble": bubble}
    return told


def explain(made: Launch, seconds: float, steps: int) -> None:
    """Add instrumented steps: their spans, the memory of their parts, and the calls of two buckets in backward."""
    names = [name.removesuffix("_s") for name in (PARTS if made.case.batch_parts == made.case.data_ranks else IN_TURNS)]
    shares = PARTS if len(names) == len(PARTS) else IN_TURNS
    n = made.case.world_size
    for rank, at in itertools.product(range(n), range(INSTRUMENTED)):
        step, begin = WARMUP + steps + at, 503.0 + at * seconds * 1.1
        made.samples.append(Sample(rank, step, "instrument", "step_s", seconds * 1.05))
        moment = begin
        for name, share in zip(names, shares.values(), strict=True):
            made.spans.append(Span(rank, step, name, moment, moment + share * seconds * 1.05))
            held = 300.0 * MIB + 20 * MIB * (name == "backward")
            made.samples.append(Sample(rank, step, "instrument", f"{name}_rss_bytes", held))
            moment += share * seconds * 1.05
        ends = moment - shares["optimizer_s"] * seconds * 1.05
        for bucket in range(2):
            start = ends - (0.25 - 0.15 * bucket) * seconds + 1e-4 * rank
            call = CollectiveSample(
                rank, step, at * 2 + bucket, "all_reduce", made.case.algorithm, n, 4 * MIB, start, 0.1 * seconds,
                "instrument", None, None, f"0-{n - 1}", "float32", start, bucket, start - 1e-4,
            )  # fmt: skip
            made.collectives.append(call)
        made.spans.append(Span(rank, step, WAIT, ends - 0.08 * seconds, ends - 1e-4 * (n - rank)))


def begin(
    store: Store,
    cases: list[Case],
    *,
    launches: int,
    steps: int,
    instrumented: int = 0,
    suite: str = "big",
    label: str = "big",
) -> int:
    """Begin a session of these cases, and return its id."""
    return store.begin_session(
        label=label,
        suite=suite,
        argv=["parabench", "run", suite, "--label", label],
        seed=SEED,
        environment=ENVIRONMENT,
        question="Which strategy, algorithm and bucket size is fastest, for each work?",
        plan={
            "kind": "training",
            "cases": [case.to_dict() for case in cases],
            "skipped": [],
            "protocol": {"warmup": WARMUP, "steps": steps, "launches": launches, "deadline_s": None,
                         "instrumented": instrumented},
            "seed": SEED,
        },
    )  # fmt: skip


def write(
    out: Path, *, cases: int, launches: int, steps: int, ranks: int, explained: int, only_step_times: bool
) -> None:
    """Write the store, or leave what is there alone."""
    if out.exists():
        raise SystemExit(f"{out} exists; give another")
    out.parent.mkdir(parents=True, exist_ok=True)
    chosen = sweep(cases, ranks)
    make = Maker(steps, only_step_times)
    told = {case.id for case in [each for each in chosen if each.world_size > 1][:explained]}
    with Store.open_or_create(out) as store:
        session = begin(store, chosen, launches=launches, steps=steps, instrumented=INSTRUMENTED if explained else 0)
        for case in chosen:
            if case.strategy == "single":
                store.append(session, make.launch(case, -1, 0, explained=False))
        for block in range(launches):
            for position, place in enumerate(make.random.permutation(len(chosen))):
                case = chosen[place]
                store.append(session, make.launch(case, block, position, explained=case.id in told))
        store.add_finding(session, Finding("power", "The CPU governor is powersave.", "Set it to performance."))
        store.add_finding(
            session, Finding("unverified", "No reference ran.", "Run one.", case_id=chosen[len(chosen) // 2].id)
        )
        store.finish_session(session)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name, usual in {"cases": 200, "launches": 5, "steps": 50, "ranks": 8, "explained": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--only-step-times", action="store_true")
    write(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
