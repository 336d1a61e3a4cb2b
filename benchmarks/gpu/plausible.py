"""A copy and a matrix product against the vendor's data sheet: is this device as fast as its name says?"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.gpu.arithmetic import memory_bandwidth_of
from benchmarks.gpu.check import Outcome, Target, check
from parabench.machine import accelerator
from parabench.machine.accelerator import clock_of, elapsed_s
from parabench.machine.peaks import peak_of
from parabench.models import BF16

COPY_BYTES, SIZE = 1 << 30, 8192
CALLS = 20
# Shares of the data sheet's rate. Memory with ECC in it, or a power limit, costs much; some clocks boost beyond it.
COPY_SHARE, PRODUCT_SHARE = (0.5, 1.05), (0.3, 1.2)
EXPECTED = "a copy at {:.0%} to {:.0%}, a bf16 product at {:.0%} to {:.0%} of the data sheet".format(
    *COPY_SHARE, *PRODUCT_SHARE
)
# If the device is in no table: what no CUDA device of these years falls below or exceeds, in B/s and FLOP/s.
COPY_SANE, PRODUCT_SANE = (2e10, 3e13), (1e11, 2e16)


@check("plausible", EXPECTED, 60, holds_gpu=True)
def plausible(target: Target) -> Outcome:
    """Time copies within the device's memory, and products of bfloat16 matrices."""
    small = target.is_cpu or (target.memory_bytes or 0) < 8 * COPY_BYTES
    size, width = (COPY_BYTES >> 6, 256) if target.is_cpu else (COPY_BYTES >> small, SIZE)
    source = torch.empty(size, dtype=torch.uint8, device=target.device)
    copy = torch.empty_like(source)
    copied_s = seconds_of(target, lambda: copy.copy_(source))
    factor = torch.randn(width, width, device=target.device).to(torch.bfloat16)
    product = torch.empty_like(factor)
    multiplied_s = seconds_of(target, lambda: torch.mm(factor, factor, out=product))
    rates = {
        "copy": (2 * size / copied_s, *memory_bandwidth_of(target.name), COPY_SHARE, COPY_SANE, "B/s"),
        "product": (2 * width**3 / multiplied_s, *peak_of(target.name, BF16), PRODUCT_SHARE, PRODUCT_SANE, "FLOP/s"),
    }
    texts, passed, numbers = [], True, {}
    for name, (rate, peak, source_text, shares, sane, unit) in rates.items():
        text = f"{name} {rate / 1e12:.3g} T{unit}"
        if peak is None:
            texts.append(f"{text}, judged for sanity only: {source_text}")
            passed &= sane[0] < rate < sane[1]
        else:
            texts.append(f"{text}, {rate / peak:.0%} of {peak / 1e12:.3g} ({source_text})")
            passed &= shares[0] < rate / peak < shares[1]
        numbers[name] = {"rate": rate, "peak": peak, "source": source_text}
    return Outcome.judged("; ".join(texts), passed or target.is_cpu, **numbers)


def seconds_of(target: Target, call: Callable[[], object]) -> float:
    """Seconds of one call, as the mean of several back to back, after as many that raise the clocks."""
    now = clock_of(target.device)
    for _ in range(CALLS):
        call()
    begin = now()
    for _ in range(CALLS):
        call()
    end = now()
    accelerator.synchronize(target.device)
    return elapsed_s(begin, end) / CALLS
