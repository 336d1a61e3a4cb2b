"""What both parameter servers share: a model as one flat buffer, and an optimizer whose step is done elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from parabench.errors import UsageError
from parabench.strategies.base import StrategyContext

# The rank that holds the optimizer.
SERVER = 0


class FlatParameters:
    """The trainable parameters of `module` as one buffer, `values`, of which they become views; and one `gradient`.

    So a message carries the whole model without a copy, and what is received into `values` is in the module.
    `wire_values` and `wire_gradient` are what messages are sent from and received into: the same memory, or with
    `on_host` pinned host memory, where the backend can't send from the device. Raises UsageError for parameters of
    several dtypes, which one buffer can't hold.
    """

    def __init__(self, module: nn.Module, context: StrategyContext, *, on_host: bool) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        dtypes = {str(p.dtype) for p in self.parameters}
        if len(dtypes) != 1:
            raise UsageError(
                f"{context.case.strategy} sends parameters of one dtype, model {context.case.model!r} has "
                f"{', '.join(sorted(dtypes)) or 'no parameters'}; convert the module, or use another strategy"
            )
        self.values = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        for parameter, view in zip(self.parameters, self._views(self.values), strict=True):
            parameter.data = view
        self.gradient = torch.zeros_like(self.values)
        self._gradients = self._views(self.gradient)
        self.wire_values, self.wire_gradient = self.values, self.gradient
        if on_host and self.values.is_cuda:
            self.wire_values = torch.empty_like(self.values, device="cpu", pin_memory=True).copy_(self.values)
            self.wire_gradient = torch.zeros_like(self.gradient, device="cpu", pin_memory=True)

    def _views(self, buffer: Tensor) -> list[Tensor]:
        parts = buffer.split([p.numel() for p in self.parameters])
        return [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    def take_gradients(self) -> list[bool]:
        """Move every gradient into the buffer and to the wire; the parameters keep none. Returns which had one."""
        had = []
        for parameter, view in zip(self.parameters, self._gradients, strict=True):
            had.append(parameter.grad is not None)
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
                parameter.grad = None
        self.wire_gradient.copy_(self.gradient)  # nothing to do where they are the same
        return had

    def give_gradients(self, had: list[bool]) -> None:
        """Make what came over the wire the parameters' gradients. One that nobody used keeps none, as on one device."""
        self.gradient.copy_(self.wire_gradient)
        for parameter, view, mine in zip(self.parameters, self._gradients, had, strict=True):
            if mine or bool(view.any()):
                parameter.grad = view


class RemoteStep:
    """The optimizer of a rank that doesn't update its parameters itself: a step is `fetch()`, which brings them.

    `state` is the optimizer state that this rank holds all the same, when it is the server.
    """

    def __init__(
        self, parameters: list[nn.Parameter], fetch: Callable[[], None], state: Mapping[Any, Any] | None = None
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": parameters}]
        self.state: Mapping[Any, Any] = {} if state is None else state
        self._parameters, self._fetch = parameters, fetch

    def step(self) -> None:
        self._fetch()

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
