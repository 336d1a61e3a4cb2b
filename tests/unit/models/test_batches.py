"""Batches of any structure, by exact numbers."""

from collections import UserDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from parabench.models.batches import call, inputs_of, is_pair, map_inputs, rows_of, split, targets_of

FOUR = torch.arange(8.0).view(4, 2)
LABELS = torch.arange(4)


@dataclass
class Sample:
    text: Tensor
    labels: Tensor
    note: str = "kept"
    count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.count = len(self.text)


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


def test_split_cuts_every_structure_by_samples() -> None:
    batches: list[tuple[Any, Any]] = [
        (FOUR, lambda part: part),
        ((FOUR, LABELS), lambda part: part[0]),
        ([FOUR, LABELS, "a word"], lambda part: part[0]),
        ({"x": FOUR, "more": {"y": [LABELS, None]}}, lambda part: part["x"]),
        (Pair(FOUR, LABELS), lambda part: part.inputs),
        (Sample(FOUR, LABELS), lambda part: part.text),
        (UserDict(x=FOUR, n=3), lambda part: part["x"]),
        (({"x": Sample(FOUR, LABELS)}, LABELS), lambda part: part[0]["x"].text),
    ]
    for batch, first in batches:
        one, two = split(batch, 2)
        assert first(one).tolist() == [[0, 1], [2, 3]], batch
        assert first(two).tolist() == [[4, 5], [6, 7]], batch


def test_split_rejects_parts_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="4 samples does not split into 3 equal parts"):
        split((FOUR, LABELS), 3)


@pytest.mark.parametrize(
    ("batch", "shapes"),
    [
        ((FOUR, LABELS[1:]), r"\(4, 2\), \(3,\)"),
        ((FOUR, torch.tensor(1.0)), r"\(4, 2\), \(\)"),
        (["a word", 3], "none"),
        ([LABELS] * 5 + [LABELS[1:]], r"\(4,\), \(4,\), \(4,\), \(4,\), \.\.\."),
    ],
)
def test_rows_of_rejects_tensors_that_disagree(batch: Any, shapes: str) -> None:
    with pytest.raises(ValueError, match=f"the tensors of a batch have the shapes {shapes}"):
        rows_of(batch)


def test_is_pair_requires_two_items() -> None:
    for pair in ((FOUR, LABELS), [FOUR, LABELS], Pair(FOUR, LABELS)):
        assert is_pair(pair)
        assert inputs_of(pair) is FOUR
        assert targets_of(pair) is LABELS
    for whole in (FOUR, (FOUR, FOUR, LABELS), {"x": FOUR, "y": LABELS}, Sample(FOUR, LABELS)):
        assert not is_pair(whole)
        assert inputs_of(whole) is whole
        assert targets_of(whole) is whole


def test_map_inputs_leaves_the_targets_of_a_pair() -> None:
    for pair in ((FOUR, FOUR), [FOUR, FOUR], Pair(FOUR, FOUR)):
        mapped = map_inputs(torch.neg, pair)
        assert type(mapped) is type(pair)
        assert mapped[0].tolist() == (-FOUR).tolist()
        assert mapped[1] is FOUR
    assert map_inputs(torch.neg, {"x": FOUR})["x"].tolist() == (-FOUR).tolist()


class Called(nn.Module):
    def forward(self, *args: Any, **named: Any) -> Any:
        return args, named


def test_call_passes_items_by_position_and_fields_by_name() -> None:
    assert call(Called(), FOUR) == ((FOUR,), {})
    assert call(Called(), (FOUR, LABELS)) == ((FOUR, LABELS), {})
    assert call(Called(), UserDict(x=FOUR)) == ((), {"x": FOUR})
    _, named = call(Called(), Sample(FOUR, LABELS))
    assert named == {"text": FOUR, "labels": LABELS, "note": "kept", "count": 4}
