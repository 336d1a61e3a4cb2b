"""Define the errors that end a command and are not bugs, and format error messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from itertools import groupby
from typing import IO

# The packages that parabench depends on: {name in an import: name for pip}.
PACKAGES = {name: name for name in (
    "click", "jinja2", "msgspec", "numpy", "pandas", "plotly", "psutil", "pytest", "rich", "scipy", "torch",
)} | {"pynvml": "nvidia-ml-py", "pytest_benchmark": "pytest-benchmark"}  # fmt: skip

# The variable for the log level of torch's C++, and the level that logs only fatal errors.
LOG_LEVEL, SILENT = "TORCH_CPP_LOG_LEVEL", "FATAL"

# A node that sends nothing for this time is lost.
DEAD_AFTER_S = 10.0


class NodeGone(Exception):
    """A node of the session is lost, or did not join in time."""


class UsageError(ValueError):
    """An error in the input, such as an option or a file. The command line prints it as one line and exits with 2."""


def did_you_mean(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """Return "did you mean 'x'? " with the known names that are most similar to an unknown name; "" if none is similar.

    Args:
        most: the largest number of names.
        cutoff: the smallest similarity, from 0 to 1 (difflib).
    """
    import difflib  # takes 10 ms, which known names do not need

    near = difflib.get_close_matches(name, list(known), n=most, cutoff=cutoff)
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


def unknown(kind: str, name: object, known: Iterable[str], otherwise: str = "") -> UsageError:
    """Return the error for an unknown name of a kind, with a similar name and all known names.

    `otherwise` follows the known names in the text: other valid inputs.
    """
    known = list(known)
    hint = did_you_mean(str(name), known)
    return UsageError(f"{kind} {name!r} is unknown; {hint}use one of {', '.join(known)}{otherwise}")


def runs(numbers: Iterable[int], comma: str = ", ") -> str:
    """Return whole numbers as a sorted text, with ranges for consecutive numbers: '1-4, 9'."""
    # Consecutive numbers have the same distance from their indices.
    groups = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in group] for _, group in groups]
    return comma.join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ends)


def needs_package(name: str) -> str:
    """Return the message for a missing package of PACKAGES, with the remedy."""
    return f"needs {name}, which is not installed: pip install {PACKAGES[name]}"


def print_error(line: str) -> None:
    """Print a line on standard error. If that fails, as on a closed terminal, ignore the failure."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: IO[str]) -> None:
    """Redirect a stream to /dev/null, with the text that it still holds, because its flush at exit would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def worker_error(message: str) -> str | None:
    """Return the error of a DataLoader's worker as one line; None if the message is not from a worker.

    torch's message is the whole traceback of the worker, and its last line is the error.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) < 2 or not lines[0].startswith("Caught "):
        return None
    return f"{lines[-1]} ({lines[0].rstrip('.')})"
