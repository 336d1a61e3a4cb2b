"""Models that are hard to train in parallel compute the same as one device, or fail with the reason."""

import re
from typing import Any, NamedTuple

import pytest

from parabench.plan.case import Case
from verified_helpers import verified

OK = "ok"


class Row(NamedTuple):
    """A model, its axes, and a pattern of the result of `verified`."""

    name: str
    axes: dict[str, Any]
    expected: str

    @property
    def case(self) -> Case:
        usual: dict[str, Any] = {"device": "cpu", "backend": "gloo", "data": "synthetic", "seq_len": 1, "world_size": 2}
        if self.axes["strategy"] in ("pp", "layer_split"):
            usual["microbatches"] = 4
        return Case(model=f"zoo:{self.name}", **(usual | self.axes))

    def __str__(self) -> str:
        return " ".join([self.name, *(key if value is True else str(value) for key, value in self.axes.items())])


def rows(name: str, expected: str, *strategies: str, **axes: Any) -> list[Row]:
    return [Row(name, {"strategy": strategy, **axes}, expected) for strategy in strategies]


EVERY = ("ddp", "fsdp", "zero1", "parameter_server")
UNUSED = {"find_unused_parameters": True}
WRONG = "wrong: "

ROWS: list[Row] = [
    *rows("plain", OK, *EVERY, "zero2", "pp", "layer_split"),
    # tied weights
    *rows("tied", OK, *EVERY, "zero2", "pp"),
    # frozen weights
    *rows("frozen_body", OK, *EVERY),
    # which parameters are used, and how often
    *rows("unused", OK, "ddp", **UNUSED),
    *rows("unused", OK, "ddp", static_graph=True),
    *rows("unused", OK, "fsdp"),
    *rows("unused", "failed: .*: the loss does not depend on every parameter; use --set find_unused.*=on$", "ddp"),
    *rows("experts", OK, "ddp", **UNUSED),
    *rows("experts", OK, "parameter_server"),
    *rows("unread_output", OK, "ddp", **UNUSED),
    *rows("unread_output", "failed: .*finished reduction", "ddp", static_graph=True),
    *rows("unread_field", "failed: .*finished reduction", "ddp", **UNUSED),
    *rows("unread_field", WRONG + "grad_norm", "ddp", static_graph=True),
    *rows("reentrant", OK, "ddp"),
    *rows("reentrant_twice", "failed: .* ready only once: a parameter is used .*; use --set static_graph=on$", "ddp"),
    *rows("reused", OK, "ddp", "pp"),
    *rows("reused", OK, "fsdp", activation_checkpointing=True),
    *rows("by_keyword", OK, "ddp", activation_checkpointing=True),
    # batch statistics, dropout, layouts, parametrizations
    *rows("batch_norm", WRONG + ".*BatchNorm.*verification=same_split", "ddp", "fsdp"),
    *rows("batch_norm_same_split", OK, "ddp", "pp", verification="same_split"),
    *rows("batch_norm_same_split", OK, "ddp", grad_accumulation=2, verification="same_split"),
    *rows("centered", WRONG + ".*forward changes buffer 1.mean, 1.calls; .*verification=same_split", "ddp"),
    *rows("centered", OK, "ddp", "pp", verification="same_split"),
    *rows("centered", OK, "ddp", grad_accumulation=2, verification="same_split"),
    *rows("centered", WRONG + ".* buffer 1.mean, 1.calls, and only DDP sends", "fsdp", verification="same_split"),
    *rows("dropout", WRONG + ".*dropout.*verification=same_split", "ddp", "fsdp"),
    *rows("dropout_same_split", OK, "ddp", "zero1", verification="same_split"),
    *rows("dropout_same_split", OK, "ddp", grad_accumulation=2, verification="same_split"),
    # dtypes and shapes of parameters and buffers
    *rows("complex_buffer", OK, "fsdp"),
    *rows("complex_buffer", OK, "ddp", "fsdp", precision="bf16-true"),
    *rows("all_bfloat16", OK, "ddp", "fsdp", "parameter_server"),
    # outputs, inputs and losses
    *rows("gives_dataclass", OK, "ddp"),
    *rows("two_inputs", OK, "ddp", "fsdp"),
    *rows("two_inputs_by_name", OK, "fsdp"),
    *rows("loss_inside", OK, "ddp", "fsdp"),
    *rows("loss_inside", OK, "ddp", grad_accumulation=2),
    *rows("ignoring", WRONG + ".*labels of -100.*verification=same_split", "ddp", "fsdp"),
    *rows("ignoring_same_split", OK, "ddp", "fsdp", verification="same_split"),
    *rows("summed", WRONG + ".*2 times too small, the number of ranks: the loss must be the mean", "ddp", "fsdp"),
    *rows("summed", WRONG + ".*4 times too small", "ddp", grad_accumulation=2),
    # optimizers, schedulers and clipping
    *rows("own_step", OK, *EVERY, "zero2", "pp"),
    *rows("own_step", OK, "fsdp", grad_accumulation=2),
    # data
    *rows("plain", OK, "fsdp", data="zoo:stream"),
    *rows("plain", OK, "pp", data="zoo:stream"),
    *rows("plain", OK, "ddp", data="zoo:loader"),
    *rows("plain", OK, "ddp", data="zoo:stream", workers=1),
    *rows("plain", WRONG + ".*different each time it is read", "ddp", data="zoo:augmented"),
    *rows("pads", OK, "fsdp", data="zoo:ragged"),
]  # fmt: skip


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return how each row's training ended; the same ranks train all of them."""
    cases = [row.case for row in ROWS]
    return dict(zip(map(str, ROWS), verified(cases, tmp_path_factory.mktemp("zoo")), strict=True))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_training_run_ends_as_expected(row: Row, ended: dict[str, str]) -> None:
    assert re.match(row.expected, ended[str(row)], re.DOTALL), ended[str(row)]
