"""What a rank says of the error that ended it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from parabench.rank import in_a_line


def caused(message: str, cause: BaseException) -> RuntimeError:
    error = RuntimeError(message)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("too long\nand more"), "ValueError: too long"),
        (KeyError(), "KeyError"),
        (
            caused("ring broke: ValueError: no wire", ValueError("no wire")),
            "RuntimeError: ring broke: ValueError: no wire",
        ),
        (caused("\n   [Stage 1] failed to run forward:\n", ValueError("a bomb")), "ValueError: a bomb"),
        (RuntimeError("\n  only this\n"), "RuntimeError: only this"),
    ],
)
def test_an_error_is_said_in_a_line(error: BaseException, said: str) -> None:
    assert in_a_line(error) == said


class Broken(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        raise IndexError("no such sample")


def test_a_loaders_worker_is_quoted() -> None:
    loader = DataLoader(Broken(), num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(IndexError) as caught:
        next(iter(loader))
    assert in_a_line(caught.value).startswith("IndexError: no such sample (Caught IndexError in DataLoader worker")
