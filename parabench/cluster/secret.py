"""The secret that the nodes of a session may share: they sign their messages in the rendezvous store with it.

The rendezvous store accepts every key from anyone who reaches its port. With a secret, a value that is not signed, or
was signed for another key or session, is refused before it is parsed.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import stat
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from parabench.errors import UsageError
from parabench.launch.processes import SECRET
from parabench.launch.store_client import Plain, StoreClient, StoreLost

# The variables that may hold a secret, or its file. The command line cannot: every user of a machine can read it.
VALUE, FILE = SECRET, f"{SECRET}_FILE"

# 128 bits.
LEAST_BYTES = 16
# HMAC (RFC 2104) with SHA-256.
HASH, TAG_BYTES = "sha256", 32
# The key under which node 0 publishes whether there is a secret, and the nonce of this session.
HELLO = "hello"
NONCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Secret:
    """A key that only the nodes know. Its text does not show it."""

    key: bytes = field(repr=False)

    def tag(self, *parts: bytes) -> bytes:
        """Return the HMAC of these parts, in this order and division."""
        whole = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self.key, whole, HASH)


class Seal(Plain):
    """Sign each value with the name of its key, which has the number of its launch, and the session's nonce."""

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
    """Return a random text."""
    return secrets.token_hex(NONCE_BYTES)


def begin(client: StoreClient, secret: Secret | None, session: str) -> None:
    """Publish how node 0 signs the session's values, and sign them from now on."""
    if secret is None:
        client.put(HELLO, None)
        return
    nonce = new_nonce()
    client.put(HELLO, {"nonce": nonce, "tag": secret.tag(session.encode(), HELLO.encode(), nonce.encode()).hex()})
    client.seal = Seal(secret, session, nonce.encode())


def meet(client: StoreClient, secret: Secret | None, session: str, timeout_s: float) -> None:
    """Sign values from now on as node 0 does. Only its answer to a member's own nonce proves that it is node 0.

    Raises UsageError if node 0 has another secret, StoreLost if it does not publish how it signs in time.
    """
    if not client.wait(HELLO, timeout_s=timeout_s):
        raise StoreLost(f"{client.where} has not said for {timeout_s:g} s whether it has a secret")
    hello = client.get(HELLO, _hello)
    if hello is None and secret is None:
        return
    nonce, tag = hello or ("", b"")
    if secret is None or not hmac.compare_digest(tag, secret.tag(session.encode(), HELLO.encode(), nonce.encode())):
        has = "has a secret, and this node has none" if secret is None else "has another secret than this node"
        has = has if hello else "has no secret, and this node has one"
        raise UsageError(f"node 0 at {client.where} {has}; give all nodes the same --secret-file, or none")
    client.seal = Seal(secret, session, nonce.encode())


def _hello(content: bytes) -> tuple[str, bytes] | None:
    hello = json.loads(content)
    return None if hello is None else (str(hello["nonce"]), bytes.fromhex(hello["tag"]))


def read_secret(path: str | None, environ: MutableMapping[str, str] = os.environ) -> Secret | None:
    """Return the secret in the file `path`, or that the environment has or names a file of; `None` if there is none.

    A value is removed from the environment, so that no process that starts later has it. Raises UsageError.
    """
    value, path = environ.pop(VALUE, None), path or environ.get(FILE)
    if value is not None and path is not None:
        raise UsageError(f"a secret is given twice, in {VALUE} and as the file {path}; give one of them")
    if path is not None:
        return _checked(_content(Path(path)), f"the secret in {path}")
    return None if value is None else _checked(value.encode(errors="surrogateescape"), f"the secret in {VALUE}")


def _content(path: Path) -> bytes:
    """Return the content of a file that only its owner can read."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (os.geteuid(), 0):
                raise UsageError(f"{path} belongs to another user, who knows the secret; make a file of your own")
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
