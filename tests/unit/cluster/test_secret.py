"""Sources of a secret, and secrets that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from parabench.cluster.secret import FILE, VALUE, Secret, read_secret
from parabench.errors import UsageError

OURS = Secret(b"0123456789abcdef")


def file_of(folder: Path, content: bytes, mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_read_secret_returns_a_secret_without_showing_it(tmp_path: Path) -> None:
    path = file_of(tmp_path, OURS.key + b"\n", 0o400)
    assert read_secret(path, {}) == read_secret(None, {FILE: path}) == OURS
    assert OURS.key.decode() not in f"{OURS} {OURS!r}"
    assert read_secret(None, {}) is None


def test_read_secret_removes_the_value_from_the_environment() -> None:
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
def test_read_secret_refuses_open_and_short_files(tmp_path: Path, content: bytes, mode: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_secret(file_of(tmp_path, content, mode), {})


def test_read_secret_refuses_missing_and_double_sources(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_secret(str(tmp_path / "none"), {})
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_secret(str(tmp_path), {})
    with pytest.raises(UsageError, match="is given twice"):
        read_secret(None, {VALUE: "", FILE: "there"})
    with pytest.raises(UsageError, match=f"the secret in {VALUE} is empty"):
        read_secret(None, {VALUE: ""})
