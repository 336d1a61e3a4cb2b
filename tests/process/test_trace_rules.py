"""Traces of real launches follow the documented rules of the formats."""

import json
from pathlib import Path

import pytest

from command_line import parabench
from trace_rules import violations

SUITE = """\
'''What does a step do?'''
from parabench import Protocol, sweep

CASES = [
    sweep(strategy="ddp", algorithm=("native", "ring"), bucket_mib=0.25, world_size=2, device="cpu", global_batch=4),
    sweep(strategy=("fsdp", "tp"), world_size=2, device="cpu", global_batch=4),
    sweep(strategy="pp", microbatches=4, schedule="1f1b", world_size=2, device="cpu", global_batch=4),
]
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=2)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    (folder / "mine.py").write_text(SUITE)
    done = parabench("run", folder / "mine.py", "--out", folder / "out")
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("case", ["ddp-native", "ddp-ring", "fsdp", "tp", "pp"])
def test_a_measured_step_keeps_the_documented_rules(folder: Path, case: str) -> None:
    trace = folder / f"{case}.json"
    done = parabench("export", folder / "out", "--trace", case, "-o", trace, "-q")
    assert (done.exit_code, done.output) == (0, "")
    assert violations(trace.read_text()) == []
    kinds = {event.get("cat") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"step", "communication"} <= kinds
