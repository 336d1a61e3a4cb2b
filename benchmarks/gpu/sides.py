"""`parabench ab` of two sides that are the same: both hold their contexts on one device, and take turns."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.gpu.check import Check, Seen
from parabench.ab.driver import AbRequest, Turns, measure
from parabench.analysis.compare.gate import Comparison, compare
from parabench.analysis.compare.rule import ALPHA, TOLERANCE
from parabench.analysis.compare.sides import sides_of
from parabench.session.request import TrainingRequest
from parabench.store.record import FIRST_BLOCK
from parabench.store.results import Results, load
from parabench.store.store import STORE_NAME

TREE = Path(__file__).parents[2]
SUITE = '''"""Are two sides that are the same as fast as each other?"""
from parabench import Protocol, sweep

PROTOCOL = Protocol(instrumented=0)
CASES = sweep(
    strategy="ddp", bucket_mib=(1, 25), world_size=2, backend="gloo", device="{device}", model="gpt-nano",
    data="synthetic", seq_len=16, global_batch=8,
)
'''
LAUNCHES, ROUNDS, CASES = 4, 20, 2
# Of mean log-ratios of launches of so many rounds.
MOST_APART = 0.02


def equal_sides(device: torch.device) -> Seen:
    """Whether both sides' launches took turns, all of them ended well, and the sides are as fast as each other."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "equal.py").write_text(SUITE.format(device=device.type))
        out = folder / "out"
        run = TrainingRequest.of(
            suite=str(folder / "equal.py"), argv=["parabench", "ab"], out=out, launches=LAUNCHES, rounds=ROUNDS
        )
        request = AbRequest(a=str(TREE), b=str(TREE), run=run, tolerance=TOLERANCE, alpha=ALPHA)
        found: list[tuple[Results, Comparison]] = []

        def compared(turns: Turns) -> int:
            results = load(out / STORE_NAME)
            found.append((results, compare(*sides_of(results, turns.sessions), TOLERANCE, ALPHA)))
            return 0

        measure(request, Console(file=said, width=200), compared)
        results, comparison = found[0]
        launches = results.launch[results.launch["block"] >= FIRST_BLOCK]
        statuses = launches["status"].value_counts().to_dict()
        in_turns = int(launches["facts"].str.contains('"pair"', regex=False).sum())
    whole = [line for line in said.getvalue().splitlines() if "whole launches alternate" in line]
    ratios = {row.label: row.ratio for row in comparison.rows}
    apart = max((abs(ratio - 1) for ratio in ratios.values() if ratio is not None), default=float("inf"))
    text = f"{in_turns} launches in turns, {statuses}; sides {apart:.2%} apart {'; '.join(whole)}".rstrip()
    passed = set(statuses) == {"ok"} and in_turns == 2 * CASES * LAUNCHES and not whole
    return Seen.judged(text, passed and (apart < MOST_APART or device.type == "cpu"), ratios=ratios)


CHECKS = (
    Check(
        "ab",
        f"two sides that are the same take turns, gloo on 2 ranks each: less than {MOST_APART:.0%} apart",
        400,
        equal_sides,
        rehearsed=True,
    ),
)
