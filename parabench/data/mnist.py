"""MNIST's files: IDX, plain or gzipped. Free of torch.

The format (http://yann.lecun.com/exdb/mnist): two zero bytes, a byte for the type (8: unsigned bytes), one for the
number of dimensions, each dimension as four bytes, the highest first, then the elements.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parabench.data.text import readable, stamp
from parabench.errors import UsageError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
SIDE, CLASSES = 28, 10

_UNSIGNED_BYTES = 8
# The largest set of such images, EMNIST's by class, has 550 million bytes.
MOST_BYTES = 600_000_000

Bytes = npt.NDArray[np.uint8]


def read(folder: str) -> tuple[Bytes, Bytes]:
    """Images (n, 28, 28) and their digits (n), of the training set in `folder`.

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


def count(folder: str) -> int:
    """How many images there are, when all is well with them. Raises UsageError as `read` does."""
    return _count(folder, *(stamp(_find(folder, name)) for name in (IMAGES, LABELS)))


@cache
def _count(folder: str, *states: tuple[str, int, int]) -> int:
    return len(read(folder)[1])


def read_idx(path: Path, dimensions: int) -> Bytes:
    """The array of unsigned bytes in an IDX file. Raises UsageError for anything else."""
    magic, length = bytes([0, 0, _UNSIGNED_BYTES, dimensions]), 4 + 4 * dimensions
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(length)
            if head[:4] != magic:
                raise UsageError(
                    f"data file {str(path)!r} begins with {head[:4].hex() or 'nothing'}, MNIST's with {magic.hex()}; "
                    "give the IDX file of that name"
                )
            shape = [int.from_bytes(head[at : at + 4], "big") for at in range(4, length, 4)]
            size = math.prod(shape)
            # No more than the head says, however much a small file unpacks to.
            elements = _read(file, min(size, MOST_BYTES) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"data file {str(path)!r} cannot be read: {error}; fetch it again") from error
    if len(head) + len(elements) != length + size:
        there = f"{len(head) + len(elements)} bytes{' or more' * (len(elements) > min(size, MOST_BYTES))}"
        raise UsageError(f"data file {str(path)!r} has {there}, and by its head {length + size}; fetch it again")
    if size > MOST_BYTES:
        raise UsageError(f"data file {str(path)!r} holds {size} bytes, and {MOST_BYTES} are read at most; give a part")
    return np.frombuffer(elements, np.uint8).reshape(shape)


def _read(file: io.BufferedIOBase, most: int) -> bytearray:
    """What is left of a file, up to `most` bytes."""
    found = bytearray()
    while len(found) < most and (part := file.read(min(most - len(found), 1 << 20))):
        found += part
    return found


def _find(folder: str, name: str) -> Path:
    for path in (Path(folder, name), Path(folder, f"{name}.gz")):
        if os.path.exists(path):  # unlike Path's, it takes a name that is too long for a file
            readable("data", path)
            return path
    raise UsageError(f"data folder {folder!r} has no {name} and no {name}.gz; give the folder of MNIST's IDX files")
