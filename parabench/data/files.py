"""Read the files of the data `text` and `mnist`. Free of torch.

With a vocabulary file, the driver encodes a text before the first launch, and keeps the int32 tokens in the user's
cache folder.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
import math
import os
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parabench.errors import UsageError
from parabench.files import replacing

SHIPPED = Path(__file__).with_name("sample.txt")

# From github.com/openai/gpt-2/blob/master/src/encoder.py: the split of a text before pairs are merged, and the token
# between two documents, which has the last number.
SPLIT = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END_OF_TEXT = "<|endoftext|>"

TOKEN_BYTES = 4


def text_path(data: str) -> Path:
    """Return the file of data `text:PATH`, or the text that parabench ships for `text`."""
    path = data.partition(":")[2]
    return Path(path) if path else SHIPPED


def check_readable(what: str, path: Path) -> None:
    """Raise UsageError unless `path` is a regular file that can be opened. `what` is the purpose in the message."""
    if not os.path.exists(path):
        raise UsageError(f"{what} file {str(path)!r} cannot be read: there is no such file")
    if not path.is_file():
        raise UsageError(f"{what} file {str(path)!r} cannot be read: it is not a regular file; give one")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"{what} file {str(path)!r} cannot be read: {error.strerror or error}") from error


def vocabulary_size(vocabulary: str) -> int:
    """Return the number of tokens of a vocabulary file, including <|endoftext|>.

    Raises UsageError if tiktoken is not installed, or if the file is not a vocabulary of tiktoken.
    """
    if importlib.util.find_spec("tiktoken") is None:
        raise UsageError("vocabulary needs a package that is not installed: pip install tiktoken")
    check_readable("vocabulary", Path(vocabulary))
    return max(_token_ranks(vocabulary).values()) + 2


def token_file(data: str, vocabulary: str) -> Path:
    """Return the file with the int32 tokens of a text. It is in the user's cache.

    It is written again if the text or the vocabulary has changed.

    Raises UsageError if a file cannot be read, encoded or written.
    """
    path = text_path(data)
    check_readable("data", path)
    check_readable("vocabulary", Path(vocabulary))
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if folder.startswith("~"):
        raise UsageError("tokens need a folder, and this user has no home; set XDG_CACHE_HOME to a folder")
    states = [(str(each.resolve()), each.stat().st_size, each.stat().st_mtime_ns) for each in (path, Path(vocabulary))]
    state = hashlib.sha256(json.dumps(states).encode()).hexdigest()[:32]
    kept = Path(folder, "parabench", f"{state}.tokens")
    if not kept.is_file():
        tokens = encode(path, vocabulary)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as part:
                tokens.tofile(part)
        except OSError as error:
            raise UsageError(
                f"tokens cannot be written to {str(kept.parent)!r}: {error.strerror or error}; set XDG_CACHE_HOME to a "
                "writable folder"
            ) from error
    return kept


def encode(path: Path, vocabulary: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return the int32 tokens of the file `path`. <|endoftext|> is one token."""
    import tiktoken

    last = vocabulary_size(vocabulary) - 1
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=SPLIT, mergeable_ranks=_token_ranks(vocabulary), special_tokens={END_OF_TEXT: last}
    )
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"data file {str(path)!r} is not UTF-8 text at byte {error.start}; give UTF-8, or drop vocabulary to read "
            "it as bytes"
        ) from error
    return np.asarray(encoding.encode_to_numpy(text, allowed_special="all"), dtype=np.int32)


@cache
def _token_ranks(path: str) -> dict[bytes, int]:
    """Return {token: its number} of a vocabulary file. Each line is a token in base64 and its number.

    This is tiktoken's format. tiktoken's own reader keeps a copy by name, and does not detect that a file has changed.
    """
    lines = [line.split() for line in Path(path).read_bytes().splitlines() if line]
    try:
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
        valid = sorted(ranks.values()) == list(range(len(lines))) and all(bytes([each]) in ranks for each in range(256))
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"vocabulary file {path!r} is not tiktoken's: each line must be a token in base64 and its rank, with every "
            "single byte, and every rank from 0 on once"
        )
    return ranks


# ---- MNIST: files in the format IDX (http://yann.lecun.com/exdb/mnist), plain or gzipped

# A file has two zero bytes, a type (8: unsigned bytes), the number of dimensions, each dimension as a big-endian 32-bit
# number, and the elements.
_UNSIGNED_BYTES = 8
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
SIDE, CLASSES = 28, 10

Bytes = npt.NDArray[np.uint8]


def read_mnist(folder: str) -> tuple[Bytes, Bytes]:
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
def count_mnist(folder: str) -> int:
    """Return the number of training images in `folder`. Raises UsageError like `read_mnist`."""
    return len(read_mnist(folder)[1])


def _read_idx(folder: str, name: str, dimensions: int) -> Bytes:
    """Return the array in an IDX file, which may be gzipped. Raises UsageError for other files."""
    # Unlike Path.exists, os.path.exists accepts a name that is too long.
    path = next((path for end in ("", ".gz") if os.path.exists(path := Path(folder, name + end))), None)
    if not folder or path is None:
        raise UsageError(f"data folder {folder!r} has no {name} and no {name}.gz; give mnist:DIR, their folder")
    check_readable("data", path)
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
