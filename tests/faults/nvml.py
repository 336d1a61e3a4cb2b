"""NVML fails: at each of its calls in turn, once or from then on, in all that asks it. A stand-in takes its place."""

from __future__ import annotations

import ctypes
import importlib.metadata
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any

import pynvml
import pytest

from parabench.commands import doctor
from parabench.machine import gpu_checks, machine, nvml
from parabench.probes.devices import Devices
from parabench.probes.sampler import RankPids, Sampler, leave_pid
from parabench.store.record import DeviceSample
from tests.faults.trial import Verdict
from tests.fixtures.fake_nvml import Clock, Device, FakeNvml

# Every error that NVML has, and one that this binding has never heard of.
ERRORS = sorted({v for k, v in vars(pynvml).items() if k.startswith("NVML_ERROR_") and isinstance(v, int)} - {0})
UNHEARD_OF = 987

# A device that is well, as calls tell of it that the stand-in of the sampler does not have.
MORE: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetCudaComputeCapability": lambda d: (9, 0),
    "nvmlDeviceGetEnforcedPowerLimit": lambda d: 700_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda d: 700_000,
    "nvmlDeviceGetPowerManagementLimitConstraints": lambda d: (200_000, 700_000),
    "nvmlDeviceGetMaxClockInfo": lambda d, of: 1980,
    "nvmlDeviceGetEccMode": lambda d: [1, 1],
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda d: 4,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda d: 16,
    "nvmlDeviceGetCpuAffinity": lambda d, words: [3] + [0] * (words - 1),
    "nvmlSystemGetDriverVersion": lambda: "580.1",
    "nvmlSystemGetCudaDriverVersion": lambda: 13000,
    "nvmlDeviceGetNvLinkState": lambda d, link: 1,
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda d, link: pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH,
    "nvmlDeviceGetP2PStatus": lambda a, b, what: pynvml.NVML_P2P_STATUS_OK,
    "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: pynvml.NVML_TOPOLOGY_SYSTEM,
    "nvmlDeviceGetPersistenceMode": lambda d: 1,
    "nvmlDeviceGetRemappedRows": lambda d: (0, 0, 0, 0),
    "nvmlDeviceGetGpuFabricInfo": lambda d, info: _fabric(info),
}

_one_at_a_time = Lock()


def _fabric(info: Any) -> None:
    ctypes.cast(info, ctypes.POINTER(pynvml.c_nvmlGpuFabricInfo_t)).contents.state = 3


@dataclass
class Failing:
    """Calls of NVML, counted, of which number `at` fails with `error`, and with `on` all that follow; with `only` just
    those of that function count."""

    error: int = 0
    at: int = -1
    on: bool = False
    only: str | None = None
    calls: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **more: Any) -> Any:
            if self.only in (None, name):
                self.calls.append(name)
                number = len(self.calls) - 1
                if number == self.at or (self.on and number > self.at >= 0):
                    self.failed.append(name)
                    raise pynvml.NVMLError(self.error)
            return call(*given, **more)

        return called


@contextmanager
def installed(failing: Failing, clock: Clock) -> Iterator[FakeNvml]:
    """Two devices, through calls that fail."""
    with pytest.MonkeyPatch.context() as patch:
        fake = FakeNvml(Device(computing=[(1, 2**30)]), Device(uuid="GPU-1"), clock=clock).install(patch)
        for name, call in MORE.items():
            patch.setattr(pynvml, name, call, raising=False)
        for name in [each for each in dir(pynvml) if each.startswith("nvml") and callable(getattr(pynvml, each))]:
            if name not in ("nvmlStructToFriendlyObject", "nvmlFriendlyObjectToStruct", "nvmlErrorString"):
                patch.setattr(pynvml, name, failing.wrapped(name, getattr(pynvml, name)))
        version = importlib.metadata.version
        patch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cu130" if name == "torch" else version(name))
        patch.setattr(gpu_checks, "probe", lambda: {"archs": ["sm_90"], "devices": [None, None]})
        patch.setattr(doctor, "LOOK_S", 0.0)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        nvml.keep_nvml.cache_clear()
        try:
            yield fake
        finally:
            nvml.keep_nvml.cache_clear()


# -- what asks it -----------------------------------------------------------------------------------------------------


def sampled(clock: Clock) -> tuple[dict[str, str], list[DeviceSample]]:
    """A launch of two ranks of which the sampler reads: which sources could not be read, and the rows."""
    with tempfile.TemporaryDirectory() as folder:
        leave_pid(Path(folder), 0)
        source = Devices(clock.began_s, RankPids(Path(folder), range(2)), lambda: nvml.used_devices(2), clock=clock)
        sampler = Sampler(clock.began_s, [source], clock=clock, stop=clock)
        sampler.run()
        return sampler.facts()["unread"], sampler.samples(DeviceSample)


def recorded(clock: Clock) -> dict[str, Any]:
    """What a session records of its machine."""
    return machine.environment(machine.this_machine())


def examined(clock: Clock) -> list[str]:
    """What the doctor says."""
    said: list[str] = []
    said += doctor.lines(*doctor.examination())
    return said


def kept(clock: Clock) -> None:
    """What holds the driver in memory while a session lasts."""
    nvml.keep_nvml()


ASKS: dict[str, Callable[[Clock], Any]] = {
    "sampler": sampled,
    "record": recorded,
    "doctor": examined,
    "kept": kept,
}


# -- the trials -------------------------------------------------------------------------------------------------------


def every_call(lot: Random, most: int = 60) -> Verdict:
    """Each call of one of them fails, by lot with which error and whether for ever; of so many calls at most."""
    name, error, on = lot.choice(list(ASKS)), lot.choice([*ERRORS, UNHEARD_OF]), lot.random() < 0.5
    verdict = Verdict()
    with _one_at_a_time:
        whole = Failing()
        well = _answer(name, whole, verdict)
        numbers = range(len(whole.calls))
        for at in numbers if len(numbers) <= most else sorted(lot.sample(numbers, most)):
            failing = Failing(error, at, on)
            answer = _answer(name, failing, verdict)
            if not failing.failed:
                verdict.fault("wrong_status", "the call was never made")
            _check(verdict, name, well, answer, f"{whole.calls[at]}, call {at}")
    verdict.words[:] = [f"{name}, error {error}{' for ever' * on}: {each}" for each in verdict.words]
    return verdict


def _answer(name: str, failing: Failing, verdict: Verdict) -> Any:
    """What is said while calls fail; NVML is begun and ended as often."""
    clock = Clock(1.25)
    with installed(failing, clock) as fake:
        try:
            answer = ASKS[name](clock)
        except Exception as error:
            call = failing.calls[failing.at] if 0 <= failing.at < len(failing.calls) else "no call"
            verdict.fault("wrong_exit", f"{call}, call {failing.at}: {type(error).__name__}: {error}")
            return None
        if name != "kept" and fake.begun > failing.failed.count("nvmlShutdown"):
            verdict.fault("files_left", f"call {failing.at}: NVML was begun {fake.begun} times more often than ended")
        return answer


def _check(verdict: Verdict, name: str, well: Any, answer: Any, what: str) -> None:
    if answer is None:
        return
    if name == "sampler":
        unread, rows = answer
        if any(row.value is None and not row.reason for row in rows):
            verdict.fault("lost", f"{what}: a null without its reason")
        if any(row.value is not None and (math.isnan(row.value) or row.value < 0) for row in rows):
            verdict.fault("lost", f"{what}: a value that cannot be")
        # What another call tells is there all the same: by device and metric each has a row, or the source says why.
        gone = {(row.device, row.metric) for row in well[1]} - {(row.device, row.metric) for row in rows}
        if gone and not unread and not all(metric in ("used_bytes", "mps_servers") for _, metric in gone):
            verdict.fault("lost", f"{what}: nothing is said of {sorted(gone)}")
    if name == "record":
        for gpu in answer["gpus"]:
            reasons = gpu.get("reasons", {})
            bare = [key for key, value in gpu.items() if value is None and key not in reasons and "all" not in reasons]
            if bare and "memory_bytes" not in bare:
                verdict.fault("lost", f"{what}: {bare} are null, and nothing says why")
        if not answer["gpus"] and not answer["nvml"]["reason"]:
            verdict.fault("lost", f"{what}: there are no devices, and nothing says why")


FAMILIES = {"NVML fails": every_call}
