"""MNIST's files: IDX, plain or gzipped. Free of torch.

The format (http://yann.lecun.com/exdb/mnist): two zero bytes, a byte for the type (8: unsigned bytes), one for the
number of dimensions, each dimension as four bytes, the highest first, then the elements.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parabench.data.text import readable
from parabench.errors import UsageError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
SIDE, CLASSES = 28, 10

_UNSIGNED_BYTES = 8

Bytes = npt.NDArray[np.uint8]


def read(folder: str) -> tuple[Bytes, Bytes]:
    """Return the images (n, 28, 28) and digits (n) of the training set in `folder`.

    Raises UsageError for a file that is missing, damaged or not MNIST's.
    """
    found = {name: _find(folder, name) for name in (IMAGES, LABELS)}
    images, labels = read_idx(found[IMAGES], 3), read_idx(found[LABELS], 1)
    if images.shape[1:] != (SIDE, SIDE):
        size = "x".join(map(str, images.shape[1:]))
        raise UsageError(f"data file {str(found[IMAGES])!r} holds images of {size}; MNIST's are {SIDE}x{SIDE}")
    if len(images) != len(labels):
        raise UsageError(
            f"data folder {folder!r} holds {len(images)} images and {len(labels)} labels; give files that belong "
            "together"
        )
    if labels.size and labels.max() >= CLASSES:
        raise UsageError(f"data file {str(found[LABELS])!r} holds the label {labels.max()}; MNIST's are 0 to 9")
    return images, labels


@cache
def count(folder: str) -> int:
    """Return how many images there are. Raises UsageError as `read` does."""
    return len(read(folder)[1])


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Return the array of unsigned bytes in an IDX file. Raises UsageError for anything else."""
    magic, length = bytes([0, 0, _UNSIGNED_BYTES, dimensions]), 4 + 4 * dimensions
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"data file {str(path)!r} cannot be read: {error}; fetch it again") from error
    if content[:4] != magic:
        raise UsageError(
            f"data file {str(path)!r} begins with {content[:4].hex() or 'nothing'}, MNIST's with {magic.hex()}; "
            "give the IDX file of that name"
        )
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, length, 4)]
    if len(content) != length + math.prod(shape):
        raise UsageError(
            f"data file {str(path)!r} has {len(content)} bytes, and by its head {length + math.prod(shape)}; fetch it "
            "again"
        )
    return np.frombuffer(content, np.uint8, offset=length).reshape(shape)


def _find(folder: str, name: str) -> Path:
    for path in (Path(folder, name), Path(folder, f"{name}.gz")):
        if os.path.exists(path):  # unlike Path's, it takes a name that is too long for a file
            readable("data", path)
            return path
    raise UsageError(f"data folder {folder!r} has no {name} and no {name}.gz; give the folder of MNIST's IDX files")
