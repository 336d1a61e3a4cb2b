"""How many floating-point operations one step takes, counted from the operations that torch really calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from parabench.models.batches import Batch
from parabench.strategies.base import Compute


def count_flops(compute: Compute, batches: Iterator[Batch]) -> dict[str, Any]:
    """Take forward and backward of the next batch under torch's FlopCounterMode.

    {"counted": operations, "by": {operation: its share}}, or {"counted": None, "reason": why}. The counter knows matrix
    products, convolutions and attention, a multiplication and an addition as two, and nothing else: sums, norms and
    activations are small beside them. It counts what runs, so attention's backward with the scores that it computes
    again. To be called when everything of the training has been read: it leaves gradients behind.
    """
    try:
        # A CUDA build of torch imports triton here: only those who count pay for that.
        from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

        aten = torch.ops.aten
        # The CPU's attention begins with the same arguments as CUDA's, but the counter doesn't know it.
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
    # A user's model may do what no counter foresees; the training itself is over and well.
    except Exception as error:
        return {"counted": None, "reason": f"the counter failed: {type(error).__name__}: {error}"[:500]}
    counted = int(counter.get_total_flops())
    if not counted:
        return {"counted": None, "reason": "torch's counter knows none of the model's operations"}
    by = {str(operation).removeprefix("aten."): int(n) for operation, n in counter.get_flop_counts()["Global"].items()}
    return {"counted": counted, "by": by}


class _NoClock:
    """Nothing is timed here."""

    def mark(self) -> None: ...

    def skip(self) -> None: ...
