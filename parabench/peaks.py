"""Peak arithmetic of known devices, from their vendor's documents: what a share of the peak is a share of."""

from __future__ import annotations

import re
from dataclasses import dataclass

T = 10**12


@dataclass(frozen=True, slots=True)
class Device:
    """FLOP/s of one device by dtype, without sparsity; a dtype that is missing has no unit of its own there.

    `name` is a pattern of the whole name that NVML gives. float32 is the rate of the ordinary FP32 units: PyTorch
    multiplies float32 matrices there, and not in TF32, unless it is told otherwise. bfloat16 is the tensor cores' rate
    with sums in float32.
    """

    name: str
    peak: dict[str, float]
    source: str


_A100 = "NVIDIA A100 Tensor Core GPU datasheet"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet"
_V100 = "NVIDIA V100 Tensor Core GPU datasheet"

# Where a document gives the rate with sparsity, half of it.
DEVICES = (
    Device(r"(NVIDIA )?A100[- ].*", {"float32": 19.5 * T, "bfloat16": 312 * T}, _A100),
    Device(r"NVIDIA H100 80GB HBM3", {"float32": 67 * T, "bfloat16": 1979 / 2 * T}, f"{_H100} (SXM)"),
    Device(r"NVIDIA H100 PCIe", {"float32": 51 * T, "bfloat16": 1513 / 2 * T}, "NVIDIA H100 datasheet of 2023 (PCIe)"),
    Device(r"NVIDIA H100 NVL", {"float32": 60 * T, "bfloat16": 1671 / 2 * T}, f"{_H100} (NVL)"),
    Device(r"NVIDIA H200", {"float32": 67 * T, "bfloat16": 1979 / 2 * T}, f"{_H200} (SXM)"),
    Device(r"NVIDIA H200 NVL", {"float32": 60 * T, "bfloat16": 1671 / 2 * T}, f"{_H200} (NVL)"),
    Device(
        r"NVIDIA B200",
        {"float32": 600 / 8 * T, "bfloat16": 36_000 / 8 / 2 * T},
        "NVIDIA HGX B200 specifications, an eighth of its 8 GPUs",
    ),
    Device(r"NVIDIA L4", {"float32": 30.3 * T, "bfloat16": 242 / 2 * T}, "NVIDIA L4 Tensor Core GPU datasheet"),
    Device(r"NVIDIA L40S", {"float32": 91.6 * T, "bfloat16": 362.05 * T}, "NVIDIA L40S datasheet"),
    Device(r"NVIDIA A10", {"float32": 31.2 * T, "bfloat16": 125 * T}, "NVIDIA A10 Tensor Core GPU datasheet"),
    Device(r"(NVIDIA )?(Tesla )?T4", {"float32": 8.1 * T}, "NVIDIA T4 Tensor Core GPU datasheet"),
    Device(r"(NVIDIA )?(Tesla )?V100-SXM2-.*", {"float32": 15.7 * T}, f"{_V100} (SXM2)"),
    Device(r"(NVIDIA )?(Tesla )?V100-PCIE-.*", {"float32": 14 * T}, f"{_V100} (PCIe)"),
    Device(
        r"NVIDIA GeForce RTX 4090",
        {"float32": 82.6 * T, "bfloat16": 165.2 * T},
        "NVIDIA Ada GPU architecture whitepaper, appendix A",
    ),
)


def peak_of(name: str, dtype: str) -> tuple[float | None, str]:
    """(FLOP/s of one device of that name, the document it is from), or (None, why it is not known)."""
    device = next((device for device in DEVICES if re.fullmatch(device.name, name)), None)
    # A part of a device calls itself "... MIG 1g.5gb", and its share of the peak is in no document.
    if device is None or " MIG " in name:
        return None, f"the peak of {name!r} is in no table here"
    if dtype not in device.peak:
        return None, f"{name} has no arithmetic unit for {dtype}"
    return device.peak[dtype], device.source
