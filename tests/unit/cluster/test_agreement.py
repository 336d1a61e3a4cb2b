"""Facts that all nodes must share, and sources of a secret."""

import hashlib
from pathlib import Path

import pytest

from parabench.cluster import agreement
from parabench.cluster.agreement import SECRET, SECRET_FILE, read_secret
from parabench.errors import UsageError
from parabench.plan.case import Case

OURS = b"0123456789abcdef"


def test_differences_have_both_values() -> None:
    mine = {"torch": "2.13.0", "NCCL": None, "options": None}
    theirs = {"torch": "2.11.0", "NCCL": "2.27", "options": None}
    assert agreement.differences(mine, dict(mine)) == []
    expected = ["torch 2.11.0, and node 0 has 2.13.0", "NCCL 2.27, and node 0 has none"]
    assert agreement.differences(mine, theirs) == expected


def test_user_code_is_identified_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_code_of_own.py").write_text("def model(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    case = Case(strategy="ddp", world_size=4, nodes=2, device="cpu", backend="gloo")
    cases = [case.replace(model="my_code_of_own:model"), case.replace(algorithm="nccl:ring"), case]
    assert agreement.user_code(cases) == ["my_code_of_own:model"]
    digest = hashlib.sha256(b"def model(): ...\n").hexdigest()[: agreement.SHOWN]
    found = agreement.code_facts(["my_code_of_own:model", "no_such_module_at_all:model"])
    assert found == {"my_code_of_own:model": digest, "no_such_module_at_all:model": agreement.ABSENT}


def file_of(folder: Path, content: bytes, mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_read_secret_reads_a_file_or_takes_the_variable(tmp_path: Path) -> None:
    path = file_of(tmp_path, OURS + b"\n", 0o400)
    environ = {SECRET: OURS.decode(), "HOME": "/root"}
    assert read_secret(path, {}) == read_secret(None, {SECRET_FILE: path}) == read_secret(None, environ) == OURS
    assert environ == {"HOME": "/root"}
    assert read_secret(None, {}) is None


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (OURS, 0o640, r"can be read or changed by others \(mode 0640\); chmod 600 it"),
        (OURS, 0o602, "can be read or changed by others"),
        (b"", 0o600, "is empty; make one with"),
        (OURS[1:], 0o600, "has 15 bytes, and 16 are the least"),
    ],
)
def test_read_secret_refuses_open_and_short_files(tmp_path: Path, content: bytes, mode: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_secret(file_of(tmp_path, content, mode), {})


def test_read_secret_refuses_missing_and_double_sources(tmp_path: Path) -> None:
    for path, environ, why in (
        (str(tmp_path / "none"), {}, "cannot be read: No such file"),
        (None, {SECRET: "", SECRET_FILE: "there"}, "is given twice"),
        (None, {SECRET: ""}, f"the secret in {SECRET} is empty"),
    ):
        with pytest.raises(UsageError, match=why):
            read_secret(path, environ)
