"""Where tokens come from, checked before anything is launched. Free of torch."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from parabench.errors import UsageError

BYTES_VOCABULARY = 256


def check(data: str, needed: int) -> None:
    """Raise UsageError unless `data` names a source that holds at least `needed` tokens (one batch).

    `text` is the text that parabench ships, `text:PATH` a file read as bytes, `synthetic` seeded random tokens.
    """
    if data == "synthetic":
        return
    if data != "text" and not data.startswith("text:"):
        raise UsageError(f"data {data!r} is unknown; use text, text:PATH or synthetic")
    have = len(read_bytes(data))
    if have < needed:
        raise UsageError(
            f"data {data!r} holds {have} bytes, one batch needs {needed}; "
            "give a longer file, or a smaller global_batch or seq_len"
        )


def read_bytes(data: str) -> bytes:
    """The bytes behind `text` or `text:PATH`. Raises UsageError when the file cannot be read."""
    path = data.partition(":")[2]
    if path and not os.path.isfile(path):
        raise UsageError(f"data file {path!r} cannot be read: there is no such file")
    try:
        return Path(path).read_bytes() if path else files("parabench.data").joinpath("sample.txt").read_bytes()
    except OSError as error:
        raise UsageError(f"data file {path!r} cannot be read: {error.strerror or error}") from error
