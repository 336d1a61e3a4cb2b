"""What a shell completes beyond commands and options: suites, stores, axes and their values.

Nothing here imports torch: a person waits for it at each tab.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def suites(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of shipped suites; where none begins so, files."""
    from parabench.plan.suite import shipped

    return _beginning(incomplete, shipped()) or stores(context, param, incomplete)


def stores(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and folders, which the shell completes by itself."""
    return [CompletionItem(incomplete, type="file")]


def axes(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`AXIS=`, and after that its values where they are names, also one after a comma."""
    from parabench.plan.suite import AXES

    axis, is_set, text = incomplete.partition("=")
    if not is_set:
        return _beginning(incomplete, (f"{name}=" for name in AXES))
    begin = incomplete.removesuffix(text.rpartition(",")[2])
    return _beginning(incomplete, (f"{begin}{name}" for name in _values(axis)))


def values_of(axis: str) -> Completion:
    """Completes the names that an axis takes."""
    return lambda context, param, incomplete: _beginning(incomplete, _values(axis))


def _beginning(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _values(axis: str) -> Iterable[str]:
    from parabench.collectives import ALGORITHMS
    from parabench.data import DATASETS
    from parabench.models import MODELS
    from parabench.plan.suite import AXES
    from parabench.strategies import STRATEGIES

    tables: Mapping[str, Mapping[str, Any]] = {
        "strategy": STRATEGIES, "algorithm": ALGORITHMS, "model": MODELS, "data": DATASETS,
    }  # fmt: skip
    if axis in tables:
        return tables[axis]
    return AXES[axis].field.choices if axis in AXES else ()
