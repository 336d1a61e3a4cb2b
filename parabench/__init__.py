"""parabench: profiling and benchmarking of distributed PyTorch training.

What a suite file needs is here, a module with a model or strategy of your own, and `watch` for a training loop of
your own: `from parabench import sweep`.
Each name is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parabench.models.base import Model
    from parabench.plan.case import Case
    from parabench.plan.protocol import ComputeProtocol, Protocol
    from parabench.plan.suite import Sweep, sweep
    from parabench.strategies.base import ParallelModel, StrategyContext
    from parabench.watching.watch import watch

__all__ = [
    "Case", "ComputeProtocol", "Model", "ParallelModel", "Protocol", "StrategyContext", "Sweep", "__version__", "sweep",
    "watch",
]  # fmt: skip
__version__ = "0.1.0"

_PUBLIC = {
    "Case": "parabench.plan.case",
    "ComputeProtocol": "parabench.plan.protocol",
    "Model": "parabench.models.base",
    "ParallelModel": "parabench.strategies.base",
    "Protocol": "parabench.plan.protocol",
    "StrategyContext": "parabench.strategies.base",
    "Sweep": "parabench.plan.suite",
    "sweep": "parabench.plan.suite",
    "watch": "parabench.watching.watch",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
