"""The secret that the nodes of a session may share: they sign their messages with it."""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from parabench.errors import UsageError
from parabench.launch.processes import SECRET

# The variables that may hold a secret, or its file. The command line cannot: every user of a machine can read it.
VALUE, FILE = SECRET, f"{SECRET}_FILE"

# 128 bits.
LEAST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Secret:
    """A key that only the nodes have. `repr` does not show it."""

    key: bytes = field(repr=False)

    def tag(self, *parts: bytes) -> bytes:
        """Return the HMAC of these parts, in this order and division."""
        whole = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self.key, whole, "sha256")


def read_secret(path: str | None, environ: MutableMapping[str, str] = os.environ) -> Secret | None:
    """Return the secret in the file `path`, or that the environment has or names a file of; `None` if there is none.

    A value is removed from the environment, so that no process that starts later has it. Raises UsageError.
    """
    value, path = environ.pop(VALUE, None), path or environ.get(FILE)
    if value is not None and path is not None:
        raise UsageError(f"a secret is given twice, in {VALUE} and as the file {path}; give it once")
    if path is not None:
        return _checked(_content(Path(path)), f"the secret in {path}")
    return None if value is None else _checked(value.encode(errors="surrogateescape"), f"the secret in {VALUE}")


def _content(path: Path) -> bytes:
    """Return the content of a file that only its owner can read."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (os.geteuid(), 0):
                raise UsageError(f"{path} belongs to another user, who can read the secret; create another file")
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                mode = stat.S_IMODE(status.st_mode)
                raise UsageError(f"{path} can be read or changed by others (mode {mode:04o}); chmod 600 it")
            return file.read()
    except OSError as error:
        raise UsageError(f"the secret in {path} cannot be read: {error.strerror or error}") from error


def _checked(content: bytes, what: str) -> Secret:
    """Return the secret without the white space around it, which an editor leaves. Raises UsageError if it is short."""
    key = content.strip()
    if len(key) < LEAST_BYTES:
        found = f"has {len(key)} bytes, and {LEAST_BYTES} are the least" if key else "is empty"
        raise UsageError(f"{what} {found}; make one with: (umask 077; openssl rand -hex 32 > FILE)")
    return Secret(key)
