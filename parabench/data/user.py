"""A user's own Dataset: `package.module:name`, a function that returns a map-style torch Dataset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from parabench.data import SOURCES, check_count
from parabench.errors import UsageError
from parabench.models import ModelEntry
from parabench.models.build import call_factory
from parabench.plan.case import Case
from parabench.registry import load, one_line


def user_dataset(case: Case) -> Dataset[Any]:
    """What the user's function gives; one that takes an argument is given the case. Raises UsageError for what is no
    map-style Dataset."""
    factory = load(SOURCES, "data", case.data)
    if not callable(factory):
        raise UsageError(
            f"data {case.data!r} is {type(factory).__name__}; it must be a function that returns a Dataset"
        )
    try:
        dataset = call_factory(factory, case)
    except (Exception, SystemExit) as error:  # whatever a user's function does
        raise UsageError(f"data {case.data!r} cannot be made: {one_line(error)}; mend that function") from error
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"data {case.data!r} gives {type(dataset).__name__}; return a Dataset with __len__ and __getitem__"
        )
    made: Dataset[Any] = dataset
    return made


def check_dataset(case: Case, model: ModelEntry) -> None:
    """Raise UsageError for a Dataset that is too short, or whose first and last item are nothing that the model takes.

    The last one shows whether it is as long as it says, and whether items are alike.
    """
    dataset: Any = user_dataset(case)
    count = _ask_dataset(case, "no length", "__len__", lambda: len(dataset))
    check_count(case.data, count, case.global_batch)
    ends = [_ask_dataset(case, f"no item {i}", "__getitem__", partial(dataset.__getitem__, i)) for i in (0, count - 1)]
    batch = _ask_dataset(case, "items that do not stack", "__getitem__", lambda: default_collate(ends))
    if not (isinstance(batch, (list, tuple)) and len(batch) == 2 and all(isinstance(each, Tensor) for each in batch)):
        raise UsageError(f"data {case.data!r} gives items that are no pair of numbers; each must be (input, target)")
    if model.vocabulary is not None and batch[0].is_floating_point():
        kind = str(batch[0].dtype).removeprefix("torch.")
        raise UsageError(f"data {case.data!r} gives inputs of {kind}, model {case.model} takes tokens; give integers")


def _ask_dataset(case: Case, failing: str, where: str, ask: Callable[[], Any]) -> Any:
    """What a user's Dataset answers. Raises UsageError, saying what it gives then and where, when it fails."""
    try:
        return ask()
    except (Exception, SystemExit) as error:  # whatever it does
        raise UsageError(f"data {case.data!r} gives {failing}: {one_line(error)}; mend its {where}") from error
