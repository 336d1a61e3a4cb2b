"""List the sources of training data, without importing torch."""

from __future__ import annotations

from parabench.errors import UsageError
from parabench.registry import Entry, find

SYNTHETIC, TEXT, MNIST = "synthetic", "text", "mnist"

DATASETS: dict[str, Entry] = {
    SYNTHETIC: Entry(target="parabench.data.datasets:synthetic", summary="seeded samples from the model"),
    TEXT: Entry(
        target="parabench.data.datasets:text",
        summary="the text that parabench ships; text:PATH a file; bytes, or GPT-2's tokens with a vocabulary file",
    ),
    MNIST: Entry(
        target="parabench.data.datasets:mnist", summary="mnist:DIR, the handwritten digits from their IDX files"
    ),
}


def source_of(data: str) -> tuple[str | None, str]:
    """Return (source, text after the colon) of a value of the axis `data`. The source is None for custom data.

    Raises UsageError for an unknown name.
    """
    name, _, argument = data.partition(":")
    if name in DATASETS:
        return name, argument
    find(DATASETS, "data", data)
    return None, ""


def check_count(data: str, have: int, global_batch: int) -> None:
    """Raise UsageError if the number of samples, `have`, is less than `global_batch`."""
    if have < global_batch:
        raise UsageError(
            f"data {data!r} holds {have} samples, one batch needs {global_batch}; give more, or a smaller global_batch"
        )
