"""Peak FLOP/s of known devices, from their vendors' documents."""

from __future__ import annotations

import re
from typing import NamedTuple

from parabench.models import BF16, FP16, IEEE, TF32

T = 10**12


class Device(NamedTuple):
    """Peak TFLOP/s of one device for each arithmetic, without sparsity; None if it does not support the arithmetic."""

    name: str  # whole words in the name from NVML or torch
    source: str
    ieee: float  # FP32 units (AMD: FP32 matrix cores)
    tf32: float | None
    half: float  # float16 and, since Ampere, bfloat16, with sums in float32
    bf16: bool = True
    multiprocessors: int | None = None  # the number of a whole device, if a partition has its name

    def peak(self, arithmetic: str) -> float | None:
        """Return the peak FLOP/s of one arithmetic: ieee, tf32, bf16 or fp16."""
        half = self.half
        tera = {IEEE: self.ieee, TF32: self.tf32, BF16: half if self.bf16 else None, FP16: half}.get(arithmetic)
        return None if tera is None else tera * T


_H100 = "NVIDIA H100 Tensor Core GPU datasheet"
_H100_PCIE = "NVIDIA H100 datasheet of 2023 (PCIe)"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet"
_V100 = "NVIDIA V100 Tensor Core GPU datasheet"
_GB200 = "NVIDIA GB200 NVL72 specifications, half of a superchip's 2 GPUs"
_GB300 = "NVIDIA Blackwell Ultra datasheet (GB300 NVL72), half of a superchip's 2 GPUs"
_GA102 = "NVIDIA Ampere GA102 GPU architecture whitepaper"
_ADA = "NVIDIA RTX 6000 Ada datasheet, a quarter of the FP8 rate with sparsity"
_CDNA3 = "AMD CDNA 3 architecture white paper, endnote MI300-11"
_MI325X = "AMD Instinct MI325X specifications, footnote MI325-002"
_PRO = "NVIDIA RTX PRO 6000 Blackwell datasheet, an eighth of the FP4 rate with sparsity"

# If a document has the rate with sparsity, half of it is used. Twice the bits halve the rate of tensor cores.
DEVICES = (
    Device("A100", "NVIDIA A100 Tensor Core GPU datasheet", 19.5, 156, 312),
    Device("A800", "NVIDIA A800 datasheet", 19.5, 156, 312),
    Device("A30", "NVIDIA A30 Tensor Core GPU datasheet", 10.3, 82, 165),
    Device("A40", "NVIDIA A40 datasheet", 37.4, 74.8, 149.7),
    Device("A10", "NVIDIA A10 Tensor Core GPU datasheet", 31.2, 62.5, 125),
    Device("A10G", "NVIDIA A10G datasheet", 31.52, 35, 70),
    Device("H100 80GB HBM3", f"{_H100} (SXM)", 67, 989 / 2, 1979 / 2),
    # HBM2e is on the board for PCIe alone.
    Device("H100 80GB HBM2e", _H100_PCIE, 51, 756 / 2, 1513 / 2),
    Device("H100 PCIe", _H100_PCIE, 51, 756 / 2, 1513 / 2),
    Device("H100 NVL", f"{_H100} (NVL)", 60, 835 / 2, 1671 / 2),
    Device("H800", "NVIDIA H800 datasheet (SXM)", 67, 989 / 2, 1979 / 2),
    Device("H800 PCIe", "NVIDIA H800 datasheet (PCIe)", 51, 756 / 2, 1513 / 2),
    Device("H20", "NVIDIA H20 datasheet", 44, 74, 148),
    Device("H200", f"{_H200} (SXM)", 67, 989 / 2, 1979 / 2),
    Device("H200 NVL", f"{_H200} (NVL)", 60, 835 / 2, 1671 / 2),
    Device("GH200", "NVIDIA GH200 Grace Hopper Superchip datasheet", 67, 989 / 2, 1979 / 2),
    Device("B200", "NVIDIA HGX B200 specifications, an eighth of its 8 GPUs", 600 / 8, 18_000 / 8 / 2, 36_000 / 8 / 2),
    Device("B300", "NVIDIA HGX B300 specifications, an eighth of its 8 GPUs", 600 / 8, 18_000 / 8 / 2, 36_000 / 8 / 2),
    Device("GB200", _GB200, 160 / 2, 5_000 / 2 / 2, 10_000 / 2 / 2),
    Device("GB300", _GB300, 160 / 2, 5_000 / 2 / 2, 10_000 / 2 / 2),
    Device("L4", "NVIDIA L4 Tensor Core GPU datasheet", 30.3, 120 / 2, 242 / 2),
    Device("L40", "NVIDIA L40 datasheet", 90.5, 90.5, 181.05),
    Device("L40S", "NVIDIA L40S datasheet", 91.6, 183, 362.05),
    Device("RTX 6000 Ada", _ADA, 91.1, 1_457 / 8, 1_457 / 4),
    Device("RTX PRO 6000 Blackwell Workstation Edition", f"{_PRO} (Workstation)", 125, 4_000 / 16, 4_000 / 8),
    Device("RTX PRO 6000 Blackwell Server Edition", f"{_PRO} (Server)", 120, 4_000 / 16, 4_000 / 8),
    Device("RTX PRO 6000 Blackwell Max-Q Workstation Edition", f"{_PRO} (Max-Q)", 110, 3_511 / 16, 3_511 / 8),
    Device("T4", "NVIDIA T4 Tensor Core GPU datasheet", 8.1, None, 65, bf16=False),
    Device("V100-SXM2", f"{_V100} (SXM2)", 15.7, None, 125, bf16=False),
    Device("V100-PCIE", f"{_V100} (PCIe)", 14, None, 112, bf16=False),
    Device("V100S-PCIE", f"{_V100} (V100S)", 16.4, None, 130, bf16=False),
    Device("GeForce RTX 3090", f"{_GA102}, appendix A", 35.6, 35.6, 71),
    Device("RTX A6000", f"{_GA102}, table 3", 38.7, 77.4, 154.8),
    Device("GeForce RTX 4090", "NVIDIA Ada GPU architecture whitepaper, appendix A", 82.6, 82.6, 165.2),
    Device("GeForce RTX 5090", "NVIDIA RTX Blackwell GPU architecture whitepaper, table 3", 104.8, 104.8, 209.5),
    Device("Instinct MI300X", _CDNA3, 163.4, 653.7, 1307.4, multiprocessors=304),
    Device("Instinct MI325X", _MI325X, 163.4, 653.7, 1307.4, multiprocessors=304),
    # CDNA 4 has no TF32.
    Device("Instinct MI355X", "AMD Instinct MI355X specifications", 157.3, None, 2_500, multiprocessors=256),
)

# Devices that are slower than the device whose name they contain: parts of it (MIG, virtual GPUs), laptop devices, and
# a custom A100.
_OTHERS = re.compile(r" MIG |^GRID |-\d+[ABCQ]$|Laptop|A100-SXM-64GB")
# Suffixes of consumer devices with other rates.
_VARIANTS = "D|Ti|SUPER"


def peak_of(name: str, arithmetic: str, multiprocessors: int | None = None) -> tuple[float | None, str]:
    """Return (FLOP/s of the device, the source document), or (None, the reason).

    `name` is from NVML or torch. If it contains several names of the table, the longest counts. `arithmetic` is ieee,
    tf32, bf16 or fp16.
    """
    found = [
        device for device in DEVICES if re.search(rf"(?<![\w-]){re.escape(device.name)}(?!\w| (?:{_VARIANTS})\b)", name)
    ]
    device = max(found, key=lambda device: len(device.name), default=None)
    if device is None or _OTHERS.search(name):
        return None, f"the peak of {name!r} is not in the table"
    if None not in (multiprocessors, device.multiprocessors) and multiprocessors != device.multiprocessors:
        return None, f"{name} is a partition: {multiprocessors} of {device.multiprocessors} compute units"
    peak = device.peak(arithmetic)
    return (None, f"{name} has no arithmetic unit for {arithmetic}") if peak is None else (peak, device.source)
