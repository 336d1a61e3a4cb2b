"""The secret that the nodes of a session may share: what they hand over through the store is signed with it.

c10d's store takes every key from whoever reaches its port. With a secret a value that was not signed with it, or was
signed for another key or another session, is refused before anything is read from it.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import stat
from collections.abc import MutableMapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from parabench.errors import UsageError
from parabench.launch.processes import SECRET
from parabench.launch.store_client import Plain, StoreClient, StoreLost

# Where a secret may be given beside --secret-file; a value is never taken from the command line, which all users of a
# machine can read.
VALUE, FILE = SECRET, f"{SECRET}_FILE"

# The least is 128 bits, as openssl rand -hex 16 writes it in 32 letters; the most is more than any key has.
LEAST_BYTES, MOST_BYTES = 16, 4096

# RFC 2104's HMAC with SHA-256.
HASH, TAG_BYTES = "sha256", 32

# Where node 0 tells whether there is a secret, and what this session is called, which no other one is.
HELLO = "hello"
NONCE_BYTES = 16

HOW = "give all nodes the same --secret-file, or none"


@dataclass(frozen=True, slots=True)
class Secret:
    """What all nodes know, and nobody else. It is in no text that is made of it."""

    key: bytes = field(repr=False)

    def tag(self, *parts: bytes) -> bytes:
        """What only who knows the secret can make for these parts, in this order and division."""
        whole = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self.key, whole, HASH)


class Seal(Plain):
    """What a session's values are signed with: each with its key's name, which has the number of its launch, for the
    session that `nonce` stands for."""

    signed = True

    def __init__(self, secret: Secret, session: str, nonce: bytes) -> None:
        self._secret, self._session = secret, (session.encode(), nonce)

    def seal(self, key: str, content: bytes) -> bytes:
        return self._tag(key, content) + content

    def unseal(self, key: str, raw: bytes) -> bytes:
        content = raw[TAG_BYTES:]
        if not hmac.compare_digest(raw[:TAG_BYTES], self._tag(key, content)):
            raise ValueError("another tag")
        return content

    def _tag(self, key: str, content: bytes) -> bytes:
        return self._secret.tag(*self._session, key.encode(), content)


def new_nonce() -> str:
    """What nobody has said before, as text."""
    return secrets.token_hex(NONCE_BYTES)


def begin(client: StoreClient, secret: Secret | None, session: str) -> None:
    """Let the members know, as the one that keeps the session, what all values of it are signed with from now on."""
    if secret is None:
        client.put(HELLO, None)
        return
    nonce = new_nonce()
    client.put(HELLO, {"nonce": nonce, "tag": secret.tag(session.encode(), HELLO.encode(), nonce.encode()).hex()})
    client.seal = Seal(secret, session, nonce.encode())


def meet(client: StoreClient, secret: Secret | None, session: str, timeout_s: float) -> None:
    """Sign from now on as the coordinator does. Raises UsageError where it has another secret, StoreLost where it says
    nothing in time.

    That it is this session's coordinator, and no recording of an earlier one, is known once it has answered with what
    this member has just thought of (`Agent`).
    """
    if not client.wait(HELLO, timeout_s=timeout_s):
        raise StoreLost(f"{client.where} has not said for {timeout_s:g} s whether it has a secret")
    hello = client.get(HELLO, _hello)
    if hello is None:
        if secret is not None:
            raise UsageError(f"this node has a secret, and node 0 at {client.where} has none; {HOW}")
        return
    nonce, tag = hello
    if secret is None:
        raise UsageError(f"node 0 at {client.where} has a secret, and this node has none; {HOW}")
    if not hmac.compare_digest(tag, secret.tag(session.encode(), HELLO.encode(), nonce.encode())):
        raise UsageError(f"node 0 at {client.where} has another secret than this node; {HOW}")
    client.seal = Seal(secret, session, nonce.encode())


def _hello(content: bytes) -> tuple[str, bytes] | None:
    said = json.loads(content)
    return None if said is None else (str(said["nonce"]), bytes.fromhex(said["tag"]))


def read_secret(path: str | None, environ: MutableMapping[str, str] = os.environ) -> Secret | None:
    """The secret in the file `path`, or that the environment has or names a file of; None where there is none.

    A value is taken out of the environment, so that no process which is started later has it. Raises UsageError.
    """
    value, path = environ.pop(VALUE, None), path or environ.get(FILE)
    if value is not None and path is not None:
        raise UsageError(f"a secret is given twice, in {VALUE} and as the file {path}; give one of them")
    if path is not None:
        return _checked(_content(Path(path)), f"the secret in {path}")
    return None if value is None else _checked(value.encode(errors="surrogateescape"), f"the secret in {VALUE}")


def _content(path: Path) -> bytes:
    """What the file holds, which nobody but its owner may read."""
    try:
        with closing(os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb")) as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (os.geteuid(), 0):
                raise UsageError(f"{path} belongs to another user, who knows the secret; make a file of your own")
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                mode = stat.S_IMODE(status.st_mode)
                raise UsageError(f"{path} can be read or changed by others (mode {mode:04o}); chmod 600 it")
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the secret in {path} cannot be read: {error.strerror or error}") from error


def _checked(content: bytes, what: str) -> Secret:
    """Without the white space around it, which an editor leaves."""
    key = content.strip()
    remedy = "make one with: (umask 077; openssl rand -hex 32 > FILE)"
    if len(content) > MOST_BYTES:
        raise UsageError(f"{what} has more than {MOST_BYTES} bytes; {remedy}")
    if len(key) < LEAST_BYTES:
        found = f"has {len(key)} bytes, and {LEAST_BYTES} are the least" if key else "is empty"
        raise UsageError(f"{what} {found}; {remedy}")
    return Secret(key)
