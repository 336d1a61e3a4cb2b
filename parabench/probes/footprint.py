"""What a rank holds of the training state, counted from tensors: parameters, gradients, optimizer state.

The resident set of a process is mostly torch itself; these are the bytes that a strategy promises to divide.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from parabench.strategies.base import Steps, local_part


class Footprint:
    """Counts at the three moments of one step at which each kind is there.

    Parameters are counted at the end of forward, when what was gathered for it and not given back is still held,
    and again after backward; the larger counts. A shard and what was gathered from it both count.
    """

    def __init__(self, module: nn.Module, optimizer: Steps) -> None:
        self._module, self._optimizer = module, optimizer
        self._bytes = {"parameter_bytes": 0, "gradient_bytes": 0, "optimizer_bytes": 0}
        self._hook = module.register_forward_hook(lambda *_: self._parameters())

    def after_backward(self) -> None:
        """Gradients are whole now. Ends what was looked at in forward."""
        self._hook.remove()
        self._parameters()
        gradients = (p.grad for p in self._own() if p.grad is not None)
        self._bytes["gradient_bytes"] = held_bytes(gradients)

    def after_step(self) -> dict[str, int]:
        """{metric: bytes} of all three."""
        # What is split between ranks is in the optimizer that each of them has inside.
        optimizer = self._optimizer
        # ZeroRedundancyOptimizer calls it `optim`; importing its module would bring torch.jit's into every process.
        inner: Steps = getattr(optimizer, "optim", optimizer)
        # The count of steps is a scalar for each parameter, which no formula counts.
        states = (v for state in inner.state.values() for v in state.values())
        self._bytes["optimizer_bytes"] = held_bytes(v for v in states if isinstance(v, Tensor) and v.dim() > 0)
        return self._bytes

    def _parameters(self) -> None:
        count = held_bytes(self._own())
        self._bytes["parameter_bytes"] = max(self._bytes["parameter_bytes"], count)

    def _own(self) -> list[Tensor]:
        """Those that this rank updates or differentiates: sharded ones as their shards."""
        updated = [p for group in self._optimizer.param_groups for p in group["params"]]
        return [*updated, *self._module.parameters()]


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of this rank's parts of `tensors`, what is stored once counted once."""
    seen: dict[tuple[int, int], int] = {}
    for tensor in tensors:
        local = local_part(tensor)
        if local.numel():
            seen[local.data_ptr(), local.nbytes] = local.nbytes
    return sum(seen.values())
