"""MNIST's IDX files (http://yann.lecun.com/exdb/mnist), plain or gzipped. Free of torch.

They have two zero bytes, a type (8: unsigned bytes), the number of dimensions, each dimension as a big-endian 32-bit
number, and the elements.
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
    images, labels = _read_idx(folder, IMAGES, 3), _read_idx(folder, LABELS, 1)
    most = labels.max(initial=0)
    if images.shape[1:] != (SIDE, SIDE) or len(images) != len(labels) or most >= CLASSES:
        size = "x".join(map(str, images.shape[1:]))
        raise UsageError(
            f"data folder {folder!r} holds {len(images)} images of {size} and {len(labels)} labels up to {most}; MNIST "
            f"has a label from 0 to 9 for each image of {SIDE}x{SIDE}"
        )
    return images, labels


@cache
def count(folder: str) -> int:
    """Return the number of images. Raises UsageError like `read`."""
    return len(read(folder)[1])


def _read_idx(folder: str, name: str, dimensions: int) -> Bytes:
    """Return the array in an IDX file, which may be gzipped. Raises UsageError for other files."""
    # Unlike Path.exists, os.path.exists accepts a name that is too long.
    path = next((path for end in ("", ".gz") if os.path.exists(path := Path(folder, name + end))), None)
    if not folder or path is None:
        raise UsageError(f"data folder {folder!r} has no {name} and no {name}.gz; give mnist:DIR, their folder")
    readable("data", path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"data file {str(path)!r} cannot be read: {error}; fetch it again") from error
    start = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if content[:4] != bytes([0, 0, _UNSIGNED_BYTES, dimensions]) or len(content) != start + math.prod(shape):
        raise UsageError(f"data file {str(path)!r} is damaged, or not MNIST's {name}; fetch it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
