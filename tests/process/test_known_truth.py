"""Instruments report the known durations of a launch whose collectives and backward sleep."""

import json
from typing import Any

import pandas as pd
import pytest

import fake_results as fake
import truth_helpers as truth
from parabench.analysis.session import SessionData, session_data
from parabench.analysis.step.breakdown import Steps, step_table
from parabench.analysis.step.calls import bucket_table, rank_calls
from parabench.analysis.step.stragglers import step_stragglers
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from real_launches import succeeded

pytestmark = pytest.mark.alone

PROTOCOL = Protocol(warmup=2, steps=1, instrumented=10)
RANKS = 2
# One bucket a layer: the smaller of the two has 2 KiB.
BUCKET_MIB = 0.001


def explained(folder: Any, **fields: Any) -> SessionData:
    """Launch a case, and return the data of its session."""
    plain = {"device": "cpu", "backend": "gloo", "world_size": RANKS, "data": "synthetic", "seq_len": 1}
    seen = succeeded(Case(**(plain | {"global_batch": truth.BATCH} | fields)), PROTOCOL)
    results = fake.write(folder / "results.db", [seen])
    return session_data(results)


def noted(seen: SessionData, what: str) -> pd.DataFrame:
    """Return the true `begin` and `end` of an event by rank and instrumented step."""
    notes = json.loads(seen.counted["facts"].iloc[0])["notes"]
    steps = Steps(seen.rows("span")).table
    rows = [
        (step["rank"], step["step"], begin, end)
        for step in steps.to_dict("records")
        for name, begin, end in notes[step["rank"]]
        if name == what and step["start_s"] <= begin <= step["end_s"]
    ]
    assert len(rows) == PROTOCOL.instrumented * RANKS
    return pd.DataFrame(rows, columns=["rank", "step", "begin", "end"]).set_index(["rank", "step"])


def reported(seen: SessionData, **of: Any) -> pd.DataFrame:
    """Return the reported call with the values `of`, by rank and instrumented step."""
    rows = seen.once(rank_calls)
    for name, value in of.items():
        rows = rows[rows[name] == value]
    assert len(rows) == PROTOCOL.instrumented * RANKS
    return rows.set_index(["rank", "step"])


def error(found: pd.Series, true: pd.Series) -> float:
    """Return the smallest relative error of the reported seconds. A process that loses its core between two clock
    readings has a larger one in single steps; an instrument's error is in every step.
    """
    return float(((found - true) / true).abs().min())


@pytest.mark.parametrize(
    ("strategy", "algorithm", "call"),
    [
        ("told_ddp", "SLOW_LAST", {"op": "all_reduce", "bucket": 0}),
        ("told_fsdp", "SLOW_LAST", {"op": "reduce_scatter", "bytes": 4 * truth.LAST}),
        ("told_tp", "SLOW_SUMMED", {"op": "all_reduce", "bytes": 4 * truth.SUMMED}),
    ],
)
def test_collective_has_its_true_duration_and_exposed_part(tmp_path, strategy, algorithm, call):
    options = {"bucket_mib": BUCKET_MIB} if strategy == "told_ddp" else {}
    names = {"strategy": f"truth_helpers:{strategy}", "algorithm": f"truth_helpers:{algorithm}"}
    seen = explained(tmp_path, model="truth_helpers:hiding", **names, **options)
    found, true = reported(seen, part="backward", **call), noted(seen, "collective")
    duration_s = exposed_s = true["end"] - true["begin"]
    assert (duration_s >= truth.COLLECTIVE_S).all()
    # However busy the machine is, what the instrument saw begins before the collective does and ends after it.
    assert (found["start_s"] <= true["begin"]).all()
    assert (found["end_s"] >= true["end"]).all()
    if strategy == "told_ddp":
        # Backward goes on, and stands still only once the other layer's gradient is handed over too. On the CPU the
        # other two wait for every collective as soon as it is called.
        exposed_s = true["end"] - noted(seen, "gradient of first")["end"]
        ready_s = noted(seen, "gradient of last")["begin"]
        assert (found["start_s"] >= ready_s).all()
        # Nothing of it where backward was held up until the collective had ended.
        most_s = (found["end_s"] - noted(seen, "gradient of first")["end"]).clip(lower=0)
        assert (found["exposed_s"] <= most_s).all()
        assert (exposed_s < 0.75 * duration_s).any()
    errors = error(found["duration_s"], duration_s), error(found["exposed_s"], exposed_s)
    print(f"{strategy}: duration off by {errors[0]:.3%}, exposed off by {errors[1]:.3%}")
    assert errors[0] < 0.02
    assert errors[1] < 0.05
    steps = step_table(seen)
    parts = steps["data_s"] + steps["compute_s"] + steps["exposed_s"] + steps["idle_s"]
    assert parts.to_numpy() == pytest.approx(steps["step_s"].to_numpy(), rel=1e-9)
    assert (steps["compute_s"] > truth.HIDDEN_S).all()
    assert (steps["unknown_calls"] == 0).all()
    if strategy == "told_ddp":
        the_other_bucket_waits_for_this_one(seen)


def the_other_bucket_waits_for_this_one(seen: SessionData) -> None:
    """Check the other bucket: its gradients are ready HIDDEN_S later, and it waits for the first collective."""
    last, first = bucket_table(seen).to_dict("records")
    assert (last["parameters"], first["parameters"]) == (["last.weight"], ["first.weight"])
    rows = reported(seen, bucket=1)
    ready_s = noted(seen, "gradient of first")["end"]
    assert (rows["ready_s"] - ready_s).abs().min() < 0.05 * truth.HIDDEN_S
    assert error((rows["start_s"] - rows["made_s"]), noted(seen, "collective")["end"] - ready_s) < 0.05


def test_collective_includes_the_wait_for_a_late_rank(tmp_path):
    names = {"strategy": "truth_helpers:told_ddp", "model": "truth_helpers:late"}
    seen = explained(tmp_path, bucket_mib=BUCKET_MIB, **names)
    ready = noted(seen, "gradient of last")["begin"].unstack("rank")
    # The early rank has the rest of backward to do first, nearly nothing.
    stands_s = ready[1] - noted(seen, "gradient of first")["end"].unstack("rank")[0]
    early = reported(seen, bucket=0).xs(0, level="rank")
    # Its own part, a few KiB, comes on top.
    errors = error(early["duration_s"], ready[1] - ready[0]), error(early["exposed_s"], stands_s)
    print(f"late rank: duration off by {errors[0]:.3%}, exposed off by {errors[1]:.3%}")
    assert max(errors) < 0.05
    steps = step_stragglers(seen).set_index("step")
    assert (steps["straggler"] == 1).all()
    assert error(steps["waited_s"], stands_s) < 0.05
