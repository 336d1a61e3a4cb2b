"""`parabench ab` with two equal variants: both hold CUDA contexts on one device, and their launches are interleaved."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.gpu.check import Outcome, Target, check
from benchmarks.gpu.launches import MOST_APART
from parabench.ab.driver import AbRequest, measure
from parabench.analysis.compare.comparison import ALPHA, TOLERANCE
from parabench.analysis.compare.gate import compare
from parabench.analysis.compare.sides import sides_of
from parabench.analysis.format import number_or_none
from parabench.session.request import Request
from parabench.store.record import FIRST_REPETITION
from parabench.store.results import load
from parabench.store.store import STORE_NAME

TREE = Path(__file__).parents[2]
SUITE = '''"""Are two equal variants equally fast?"""
from parabench import Protocol, sweep

PROTOCOL = Protocol(instrumented=0)
CASES = sweep(
    strategy="ddp", bucket_mib={caps}, world_size=2, backend="gloo", device="{device}", model="gpt-nano",
    data="synthetic", seq_len=16, global_batch=8,
)
'''


@check("ab", f"two equal variants are interleaved, gloo on 2 ranks each: less than {MOST_APART:.0%} apart", 300)
def equal_sides(target: Target) -> Outcome:
    """Check that the variants' launches were interleaved, that all of them ended well, and that they are as fast."""
    caps, launches, rounds = ((25,), 1, 2) if target.is_cpu else ((1, 25), 2, 20)
    log = io.StringIO()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "equal.py").write_text(SUITE.format(device=target.type, caps=caps))
        out = folder / "out"
        run = Request.of(
            suite=str(folder / "equal.py"), argv=["parabench", "ab"], out=out, launches=launches, rounds=rounds
        )
        request = AbRequest(a=str(TREE), b=str(TREE), run=run, tolerance=TOLERANCE, alpha=ALPHA)
        turns = measure(request, Console(file=log, width=200))
        assert turns is not None
        results = load(out / STORE_NAME)
        comparison = compare(*sides_of(results, turns.sessions), TOLERANCE, ALPHA)
        counted = results.launch[results.launch["repetition"] >= FIRST_REPETITION]
        statuses = counted["status"].value_counts().to_dict()
        interleaved = int(counted["facts"].str.contains('"pair"', regex=False).sum())
    whole = [line for line in log.getvalue().splitlines() if "whole launches alternate" in line]
    cases = comparison.tables["cases"]
    ratios = {label: number_or_none(ratio) for label, ratio in zip(cases["label"], cases["ratio"], strict=True)}
    apart = max((abs(ratio - 1) for ratio in ratios.values() if ratio is not None), default=float("inf"))
    text = f"{interleaved} interleaved launches, {statuses}; variants {apart:.2%} apart {'; '.join(whole)}".rstrip()
    passed = set(statuses) == {"ok"} and interleaved == 2 * len(caps) * launches and not whole
    return Outcome.judged(text, passed and (apart < MOST_APART or target.is_cpu), ratios=ratios)
