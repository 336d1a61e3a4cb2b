"""Run the examples of watched loops that need only torch."""

from pathlib import Path

import pytest

from paths import ROOT
from process_helpers import query
from script_helpers import run_in_ranks


@pytest.mark.parametrize(
    ("example", "strategy", "steps", "parts"),
    [
        ("watch/nanogpt.py", "ddp", 40, {"data_s", "forward_backward_s", "optimizer_s", "other_s"}),
        ("watch/sharded.py", "fsdp", 40, {"data_s", "forward_s", "backward_s", "optimizer_s", "other_s"}),
        ("models/validation_loop.py", "ddp", 80, {"data_s", "forward_s", "backward_s", "optimizer_s", "other_s"}),
    ],
)
def test_an_example_is_watched(tmp_path: Path, example: str, strategy: str, steps: int, parts: set[str]) -> None:
    run_in_ranks(ROOT / "examples" / example, tmp_path, SAMPLES="640", STEPS="40")
    store = tmp_path / "parabench-results" / "results.db"
    assert query(store, "SELECT status, strategy, world_size FROM launch") == [("ok", strategy, 2)]
    counts = dict(query(store, "SELECT metric, count(*) FROM sample WHERE step IS NOT NULL GROUP BY metric"))
    ((calls,),) = query(store, "SELECT count(*) FROM collective")
    assert counts["step_s"] == 2 * steps
    assert {name for name in counts if name.endswith("_s")} - {"step_s", "device_lag_s"} == parts
    assert calls > 0
