"""Split, select and map batches: structures of tensors (tuple, dict, ...) whose first dimension is the samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

# A tensor, or a tuple, list, mapping, named tuple or dataclass of batches. Other values stay unchanged.
Batch = Any


def map_tensors(function: Callable[[Tensor], Any], batch: Batch) -> Batch:
    """Apply `function` to each tensor of a batch. Return the same structure with the results."""

    def mapped(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf)
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            names = [each.name for each in dataclasses.fields(leaf) if each.init]
            return dataclasses.replace(leaf, **{name: map_tensors(function, getattr(leaf, name)) for name in names})
        if isinstance(leaf, Mapping):  # pytrees do not support transformers' BatchEncoding
            return {key: map_tensors(function, value) for key, value in leaf.items()}
        return leaf

    return tree_map(mapped, batch)


def tensors_of(batch: Batch) -> list[Tensor]:
    """Return the tensors of a batch, in the order of its structure."""
    found: list[Tensor] = []

    def kept(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(kept, batch)
    return found


def rows_of(batch: Batch) -> int:
    """Return the number of samples in a batch. Raises ValueError if its tensors disagree, or if it has no tensors."""
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in tensors_of(batch)}
    if len(sizes) != 1 or None in sizes:
        raise ValueError(f"the tensors of a batch have the shapes {shapes_of(batch)}")
    return int(sizes.pop() or 0)


def shapes_of(batch: Batch) -> str:
    """Return the shapes of a batch's tensors as text: '(8, 10), (8, 1)'."""
    shapes = [str(tuple(tensor.shape)) for tensor in tensors_of(batch)]
    return ", ".join(shapes[:4]) + (", ..." if len(shapes) > 4 else "") or "none"


def take_rows(batch: Batch, rows: slice | Sequence[int]) -> Batch:
    """Return the batch with only these samples."""
    return map_tensors(lambda tensor: tensor[rows], batch)


def split(batch: Batch, parts: int) -> list[Batch]:
    """Split a batch into equal parts of consecutive samples. Raises ValueError if this is not possible."""
    if parts == 1:
        return [batch]
    rows = rows_of(batch)
    if rows % parts:
        raise ValueError(f"a batch of {rows} samples does not split into {parts} equal parts")
    size = rows // parts
    return [take_rows(batch, slice(at, at + size)) for at in range(0, rows, size)]


def is_pair(batch: Batch) -> bool:
    """Return whether a batch is a pair (inputs, targets)."""
    return isinstance(batch, (tuple, list)) and len(batch) == 2


def inputs_of(batch: Batch) -> Batch:
    """Return the input of the module: the first of a pair, else the whole batch."""
    return batch[0] if is_pair(batch) else batch


def targets_of(batch: Batch) -> Batch:
    """Return the targets of the loss: the second of a pair, else the whole batch."""
    return batch[1] if is_pair(batch) else batch


def map_inputs(function: Callable[[Tensor], Any], batch: Batch) -> Batch:
    """Apply `function` to each tensor of the inputs. Return the batch with the results and the same targets."""
    if not is_pair(batch):
        return map_tensors(function, batch)
    pair = (map_tensors(function, batch[0]), batch[1])
    return type(batch)(*pair) if hasattr(batch, "_fields") else type(batch)(pair)


def call(module: nn.Module, inputs: Batch) -> Any:
    """Call a module with a tensor, with the items of a tuple or list, or with the named fields of another structure."""
    if dataclasses.is_dataclass(inputs) and not isinstance(inputs, (type, Mapping)):
        inputs = {each.name: getattr(inputs, each.name) for each in dataclasses.fields(inputs)}
    if isinstance(inputs, Mapping):
        return module(**inputs)
    if isinstance(inputs, (tuple, list)):
        return module(*inputs)
    return module(inputs)


def count_up(n: int, length: int, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Return n sequences that count up from a random start in steps of 1 to 4, modulo the vocabulary."""
    start = torch.randint(vocabulary, (n, 1), generator=generator, device="cpu")
    stride = torch.randint(1, 5, (n, 1), generator=generator, device="cpu")
    return (start + stride * torch.arange(length, device="cpu")) % vocabulary
