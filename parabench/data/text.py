"""Data `text` and `text:PATH`: bytes, or GPT-2's tokens with a vocabulary file of the user. Free of torch.

The driver encodes a text before the first launch, and keeps the int32 tokens in the user's cache folder.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
from functools import cache
from pathlib import Path

import numpy as np

from parabench.errors import UsageError
from parabench.files import replacing

SHIPPED = Path(__file__).with_name("sample.txt")

# From github.com/openai/gpt-2/blob/master/src/encoder.py: the split of a text before pairs are merged, and the token
# between two documents, which has the last number.
SPLIT = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END_OF_TEXT = "<|endoftext|>"

TOKEN_BYTES = 4


def path_of(data: str) -> Path:
    """Return the file that `text` or `text:PATH` names."""
    path = data.partition(":")[2]
    return Path(path) if path else SHIPPED


def readable(what: str, path: Path) -> None:
    """Raise UsageError unless `path` is a regular file that can be opened. `what` names its purpose."""
    if not os.path.exists(path):
        raise UsageError(f"{what} file {str(path)!r} cannot be read: there is no such file")
    if not path.is_file():
        raise UsageError(f"{what} file {str(path)!r} cannot be read: it is not a regular file; give one")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"{what} file {str(path)!r} cannot be read: {error.strerror or error}") from error


def vocabulary_size(vocabulary: str) -> int:
    """Return the number of tokens of a vocabulary file, including the end of a text.

    Raises UsageError if tiktoken is not installed, or if the file is not a vocabulary of tiktoken.
    """
    if importlib.util.find_spec("tiktoken") is None:
        raise UsageError("vocabulary needs a package that is not installed: pip install tiktoken")
    readable("vocabulary", Path(vocabulary))
    return max(_ranks(vocabulary).values()) + 2


def token_file(data: str, vocabulary: str) -> Path:
    """Return the file with the int32 tokens of a text, in the user's cache: one for each state of text and vocabulary.

    Raises UsageError if the text cannot be read or encoded.
    """
    path = path_of(data)
    readable("data", path)
    readable("vocabulary", Path(vocabulary))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if cache.startswith("~"):
        raise UsageError("tokens need a folder, and this user has no home; set XDG_CACHE_HOME to a folder")
    states = [(str(each.resolve()), each.stat().st_size, each.stat().st_mtime_ns) for each in (path, Path(vocabulary))]
    state = hashlib.sha256(json.dumps(states).encode()).hexdigest()[:32]
    kept = Path(cache, "parabench", f"{state}.tokens")
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
    """Return the int32 tokens of a text. <|endoftext|> is one token."""
    import tiktoken

    last = vocabulary_size(vocabulary) - 1
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=SPLIT, mergeable_ranks=_ranks(vocabulary), special_tokens={END_OF_TEXT: last}
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
def _ranks(path: str) -> dict[bytes, int]:
    """Return {token: rank} of a vocabulary file in tiktoken's format: a token in base64 and its rank on each line.

    tiktoken's reader keeps a copy by name, and does not detect changes of the file.
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
