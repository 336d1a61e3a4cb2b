"""What nodes sign, and what is refused: other secrets, other keys, other sessions, what a stranger writes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from guard import GUARD_S
from parabench.cluster.membership import beat_once, beats
from parabench.cluster.secret import FILE, VALUE, Seal, Secret, begin, meet, read_secret
from parabench.errors import UsageError
from parabench.launch.store_client import StoreClient

OURS, OTHER = Secret(b"0123456789abcdef"), Secret(b"0123456789abcdeF")
SESSION = "job42"


def put(store: TCPStore, key: str, value: str | bytes) -> None:
    """A set is not answered: others may read what was there before until a question of ours is answered."""
    store.set(key, value)
    store.check([key])


# -- where it is read from -------------------------------------------------------------------------------------------


def file_of(folder: Path, content: bytes, mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_secret_is_read_and_never_shown(tmp_path: Path) -> None:
    path = file_of(tmp_path, OURS.key + b"\n", 0o400)
    assert read_secret(path, {}) == read_secret(None, {FILE: path}) == OURS
    assert OURS.key.decode() not in f"{OURS} {OURS!r}"
    assert read_secret(None, {}) is None


def test_a_value_is_taken_out_of_the_environment() -> None:
    environ = {VALUE: OURS.key.decode(), "HOME": "/root"}
    assert read_secret(None, environ) == OURS
    assert environ == {"HOME": "/root"}


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (OURS.key, 0o640, r"can be read or changed by others \(mode 0640\); chmod 600 it"),
        (OURS.key, 0o602, "can be read or changed by others"),
        (b"", 0o600, "is empty; make one with"),
        (OURS.key[1:], 0o600, "has 15 bytes, and 16 are the least"),
    ],
)
def test_a_file_that_keeps_no_secret_is_refused(tmp_path: Path, content: bytes, mode: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_secret(file_of(tmp_path, content, mode), {})


def test_what_is_no_file_or_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_secret(str(tmp_path / "none"), {})
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_secret(str(tmp_path), {})
    with pytest.raises(UsageError, match="is given twice"):
        read_secret(None, {VALUE: "", FILE: "there"})
    with pytest.raises(UsageError, match=f"the secret in {VALUE} is empty"):
        read_secret(None, {VALUE: ""})


def test_the_fork_server_has_no_secret() -> None:
    """Ranks have what it has."""
    program = (
        "import multiprocessing.forkserver as forkserver, parabench.launch.processes as processes\n"
        "processes.PRELOAD = 'abc'\n"
        "processes.start_server()\n"
        "print(open(f'/proc/{forkserver._forkserver._forkserver_pid}/environ').read())"
    )
    environment = {**os.environ, VALUE: "no rank needs this", "SHOWN": "this it has"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "SHOWN=this it has" in done.stdout
    assert "no rank needs this" not in done.stdout


# -- what is signed --------------------------------------------------------------------------------------------------


def test_a_seal_is_of_one_secret_session_key_and_content() -> None:
    ours = Seal(OURS, SESSION, b"nonce")
    sealed = ours.seal("launch/3/result/1", b"[1]")
    assert ours.unseal("launch/3/result/1", sealed) == b"[1]"
    others = [Seal(OTHER, SESSION, b"nonce"), Seal(OURS, "job4", b"2nonce"), Seal(OURS, SESSION, b"other")]
    for seal, key, value in [
        *((each, "launch/3/result/1", sealed) for each in others),
        (ours, "launch/4/result/1", sealed),
        (ours, "launch/3/result/1", sealed[:-1] + b"2"),
        (ours, "launch/3/result/1", b"[1]"),
        (ours, "launch/3/result/1", b""),
        (ours, "launch/3/result/", sealed[:32] + b"1" + sealed[32:]),
    ]:
        with pytest.raises(ValueError, match="another tag"):
            seal.unseal(key, value)


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=GUARD_S), wait_for_workers=False)


@pytest.fixture
def clients(store: TCPStore) -> Iterator[list[StoreClient]]:
    made = [StoreClient("127.0.0.1", store.port, "here") for _ in range(2)]
    yield made
    for each in made:
        each.end()


@pytest.fixture
def pair(clients: list[StoreClient]) -> list[StoreClient]:
    """Two that have met with one secret."""
    begin(clients[0], OURS, SESSION)
    meet(clients[1], OURS, SESSION, 0.0)
    return clients


def test_an_old_heartbeat_or_an_unsigned_one_is_no_sign_of_life(store: TCPStore, pair: list[StoreClient]) -> None:
    key = "heartbeat/1"
    raw = [each.call(lambda store: store) for each in pair]
    assert beats(pair[0], raw[0], key, -1) == -1
    beat_once(pair[1], raw[1], key, 1)
    first = store.get(f"here/{key}")
    beat_once(pair[1], raw[1], key, 2)
    assert beats(pair[0], raw[0], key, -1) == 2
    for stale in (first, b"3", b""):
        put(store, f"here/{key}", stale)
        assert beats(pair[0], raw[0], key, 2) == 2
