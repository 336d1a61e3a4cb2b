"""Count the floating-point operations of a step from the operations that torch calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from parabench.models.batches import Batch
from parabench.strategies.base import Compute


def count_flops(compute: Compute, batches: Iterator[Batch]) -> dict[str, Any]:
    """Count forward and backward of the next batch with torch's FlopCounterMode. Gradients stay behind.

    Return {"counted": FLOP, "by": {operation: FLOP}}, or {"counted": None, "reason": why}. The counter has matrix
    products, convolutions and attention.
    """
    try:
        # A CUDA build of torch imports triton here.
        from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

        aten = torch.ops.aten
        # The counter does not have the CPU's attention. It has the same first arguments as CUDA's.
        attention = {
            aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
            aten._scaled_dot_product_flash_attention_for_cpu_backward: (
                lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)
            ),
        }
        batch = next(batches)
        counter = FlopCounterMode(display=False, custom_mapping=attention)
        with counter:
            compute(batch, _NoClock())
    # A custom model may fail here. The training run has ended.
    except Exception as error:
        return {"counted": None, "reason": f"the counter failed: {type(error).__name__}: {error}"[:500]}
    counted = int(counter.get_total_flops())
    if not counted:
        return {"counted": None, "reason": "torch's counter does not have the model's operations"}
    by = {str(operation).removeprefix("aten."): int(n) for operation, n in counter.get_flop_counts()["Global"].items()}
    return {"counted": counted, "by": by}


class _NoClock:
    """A clock that times nothing."""

    def mark(self) -> None: ...

    def skip(self) -> None: ...
