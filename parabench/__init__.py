"""parabench: profiling and benchmarking of distributed PyTorch training.

The public API has names for suite files, custom models and custom strategies; `watch` for your own training loop; and
`load` and `compare` for notebooks. Each name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parabench.analysis.answer import Answer
    from parabench.models.base import Model
    from parabench.notebook import LoadedSession, compare, load
    from parabench.plan.case import Case
    from parabench.plan.protocol import Protocol
    from parabench.plan.suite import Sweep, sweep
    from parabench.strategies.base import ParallelModel, StrategyContext
    from parabench.watching.watch import watch

__all__ = [
    "Answer", "Case", "LoadedSession", "Model", "ParallelModel", "Protocol", "StrategyContext",
    "Sweep", "__version__", "compare", "load", "sweep", "watch",
]  # fmt: skip
__version__ = "0.1.0"

_PUBLIC = {
    "Answer": "parabench.analysis.answer",
    "Case": "parabench.plan.case",
    "LoadedSession": "parabench.notebook",
    "Model": "parabench.models.base",
    "ParallelModel": "parabench.strategies.base",
    "Protocol": "parabench.plan.protocol",
    "StrategyContext": "parabench.strategies.base",
    "Sweep": "parabench.plan.suite",
    "compare": "parabench.notebook",
    "load": "parabench.notebook",
    "sweep": "parabench.plan.suite",
    "watch": "parabench.watching.watch",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
