"""Two variants on fake CUDA devices: interleaved launches, and whole launches that alternate."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_nvml import GIB, Device, FakeNvml
from fake_sides import Lab
from parabench.launch.spec import LaunchSpec
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.plan.cohorts import SEEN_SHARE
from parabench.store.record import GB, Failure, Launch, Phase, Sample, Status
from parabench.store.results import load

GPUS = (Gpu("NVIDIA H200", 140 * GIB),) * 2
SUITE = '''"""Did it get slower?"""
from parabench import sweep

CASES = sweep(
    strategy="ddp", bucket_mib=(1, 25), world_size=2, backend="nccl", device="cuda", data="synthetic",
    model="gpt-nano", seq_len=8, global_batch=8, precision="ieee",
)
'''


class Devices(Lab):
    """An ab whose ranks each hold `bytes` of their device; None means unknown."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.bytes: float | None = 10.0 * GIB
        self.befalls = self.holds
        (folder / "suite.py").write_text(SUITE)

    def holds(self, name: str, spec: LaunchSpec, seen: Launch) -> None:
        if self.bytes is not None and len(spec.cases) == 1:
            ranks = range(spec.case.world_size)
            seen.samples += [Sample(rank, None, Phase.MEASURE, "peak_reserved_bytes", self.bytes) for rank in ranks]

    def measure(self, **more: Any) -> int:
        given = {"suite": str(self.folder / "suite.py"), "axes": (), "rounds": 4, "launches": 2, "steps": None}
        return self.run(**given | more)

    @property
    def pairs(self) -> list[tuple[str, int]]:
        """Return the variant and the number of cases of each interleaved launch."""
        return [(name, len(spec.cases)) for name, spec in self.specs if spec.pair]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Devices:
    monkeypatch.setattr("parabench.ab.agent.this_machine", lambda: Machine(cores=8, gpus=GPUS))
    monkeypatch.setattr("parabench.machine.gpus.describe", lambda *gpus: {"gpus": [], "links": {}, "driver": {}})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Devices(tmp_path, monkeypatch)


def devices(monkeypatch: pytest.MonkeyPatch, **of: Any) -> None:
    FakeNvml(Device(**of), Device(uuid="GPU-1", **of)).install(monkeypatch)


def test_ab_interleaves_when_both_variants_fit_into_devices(lab: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    devices(monkeypatch)
    assert lab.measure() in (0, 3), lab.output
    assert "whole launches alternate" not in lab.output
    assert lab.pairs == [("a", 2), ("b", 2)] * 2
    facts = [json.loads(text) for text in load(lab.folder / "out" / "results.db").launch["facts"]]
    assert sum("pair" in each.get("turns", {}) for each in facts) == 2 * 2 * 2


@pytest.mark.parametrize(
    ("held", "nvml", "why"),
    [
        (
            65.0 * GIB,
            {},
            # A rank of each variant has the small states of both cases, and a context.
            rf"both variants at once need {2 * 66.02 * GIB / GB:.1f} GB of device 0 \(.+\), and "
            rf"{SEEN_SHARE * 138 * GIB / GB:.1f} GB may be taken",
        ),
        (10.0 * GIB, {"compute_mode": 3}, r"a device lets one process compute at a time"),
    ],
    ids=["too large", "exclusive"],
)
def test_ab_alternates_launches_when_both_do_not_fit(
    lab: Devices, monkeypatch: pytest.MonkeyPatch, held: float | None, nvml: dict[str, Any], why: str
) -> None:
    devices(monkeypatch, **nvml)
    lab.bytes = held
    assert lab.measure() in (0, 3), lab.output
    assert lab.pairs == []
    (line,) = (line for line in lab.output.splitlines() if "whole launches alternate" in line)
    assert re.search(f"whole launches alternate in 2 configurations: {why}", line), line
    # Each case was launched equally often in both variants.
    assert len([each for each in lab.launches() if each[2] >= 0]) == 2 * 2 * 3


def test_ab_alternates_launches_after_running_out_of_memory(lab: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    devices(monkeypatch)

    def too_much(name: str, spec: LaunchSpec, seen: Launch) -> None:
        lab.holds(name, spec, seen)
        if name == "b" and spec.pair:
            seen.status, seen.failure = Status.OOM, Failure("CUDA out of memory", 0)
            seen.arms = [replace(seen.arms[0], status=Status.OOM, failure=seen.failure)]

    lab.befalls = too_much
    assert lab.measure() in (0, 3), lab.output
    assert lab.pairs == [("a", 2), ("b", 2)]
    assert "alternate in 2 configurations: the candidate ran out of memory next to the other" in lab.output
    assert set(load(lab.folder / "out" / "results.db").launch["status"]) == {"ok"}


def test_variants_with_different_step_times_agree_on_turns(lab: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    devices(monkeypatch)
    lab.step_s = {"a": 0.005, "b": 0.010}
    assert lab.measure() == 1, lab.output
    timed = {name: {spec.protocol.timed for side, spec in lab.specs if spec.pair and side == name} for name in "ab"}
    assert timed["a"] == timed["b"] == {(10, 10)}  # from the variant with the shorter steps
