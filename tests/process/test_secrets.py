"""Real sessions with planted secrets: no file or output of a session contains one."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from command_line import parabench
from guard import GUARD_S
from process_helpers import COMMANDS
from secret_helpers import PLANTED, VARIABLES, Box

SUITE = '''\
"""What leaves?"""

from parabench import Protocol, sweep

COMMON = dict(world_size=2, data="synthetic", seq_len=8, model="gpt-nano")
CASES = [
    sweep(strategy="ddp", bucket_mib=25, **COMMON),
    sweep(strategy=("secret_helpers:careless", "secret_helpers:crashing"), **COMMON),
]
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=1)
'''
GIT = """\
git init -q
git config user.email planted-mail-9f2c60@host
git config user.name planted-name-9f2c61
git commit -q --allow-empty -m planted-message-9f2c62
git checkout -q -b planted-branch-9f2c63
git remote add origin https://user:planted-remote-9f2c64@host/repo.git
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """A session of training runs with planted secrets, and everything that is made from it."""
    made = Box(tmp_path_factory.mktemp("box"))
    made.make()
    for line in GIT.splitlines():
        subprocess.run(line.split(), cwd=made.here, check=True)
    (made.suites / "mine.py").write_text(SUITE)
    out = made.out
    run = ["run", made.suites / "mine.py", "--out", out, "--profile"]
    few = ["collectives", "--op", "all_reduce", "--algorithm", "native", "--min", "1K", "--max", "1K"]
    few += ["--iterations", "2", "--launches", "1", "--out", out / "planted-ops-9f2c65", "--json", out / "nccl.json"]
    commands = [[str(word) for word in words] for words in (run, few)]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=made.here,
        env=made.environment(),
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert [line for line in done.stdout.splitlines() if line.startswith("exit code")] == [
        "exit code 1: run",
        "exit code 0: collectives",
    ], done.stdout + done.stderr
    return made


def left(box: Box) -> Iterator[tuple[str, bytes]]:
    """Every file that is left in the output folder, with what it holds."""
    for path in box.out.rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            yield path.name, gzip.decompress(raw) if path.suffix == ".gz" else raw


def leaks(name: str, raw: bytes) -> list[str]:
    shown = []
    at = raw.find(PLANTED.encode())
    while at >= 0:
        shown.append(f"{name}: {raw[max(0, at - 60) : at + 40]!r}")
        at = raw.find(PLANTED.encode(), at + 1)
    return shown


def test_no_file_of_a_session_holds_what_was_planted(box: Box) -> None:
    names = [name for name, _ in left(box)]
    assert {Path(name).suffix for name in names} == {".db", ".html", ".json", ".gz"}
    assert [leak for name, raw in left(box) for leak in leaks(name, raw)] == []


def test_no_column_of_the_store_does(box: Box) -> None:
    found = []
    with closing(sqlite3.connect(box.out / "results.db")) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert len(tables) > 8
        for table in tables:
            for row in db.execute(f"SELECT * FROM {table}"):
                found += [leak for value in row if isinstance(value, str) for leak in leaks(table, value.encode())]
    assert found == []


def test_message_is_kept_without_the_secret(box: Box) -> None:
    """The test has planted what could leak: the errors are there, and so are their causes."""
    with closing(sqlite3.connect(box.out / "results.db")) as db:
        errors = dict(db.execute("SELECT strategy, error FROM launch WHERE status IN ('failed', 'crashed')"))
        (traceback,) = db.execute("SELECT traceback FROM launch WHERE strategy LIKE '%careless'").fetchone()
        (lines,) = db.execute("SELECT traceback FROM launch WHERE strategy LIKE '%crashing'").fetchone()
        argv, environment = db.execute("SELECT argv, environment FROM session WHERE id = 1").fetchone()
    assert "cannot read missing with ..., http://...@127.0.0.1:1, ..." in errors["secret_helpers:careless"]
    assert 'File "secret_helpers.py"' in traceback
    assert "[Errno 2] No such file or directory: 'missing'" in traceback
    assert 'File "secret_helpers.py"' in lines
    assert json.loads(argv) == ["parabench", "run", "mine.py", "--profile"]
    known = json.loads(environment)
    assert known["env"]["NCCL_NET_PLUGIN"] == "set"
    assert not VARIABLES.keys() - {"NCCL_NET_PLUGIN"} & known["env"].keys()
    assert known["git"]["commit"] is not None


def test_nor_does_what_is_made_of_a_store(box: Box, tmp_path: Path) -> None:
    store, copy = box.out / "results.db", box.out / "copy.db"
    shutil.copy(store, copy)
    with closing(sqlite3.connect(copy)) as db, db:  # a copy of a session is not compared with it
        db.execute("UPDATE session SET started_utc = '2026-01-01T00:00:00.000Z'")
    files = [
        word for kind in ("json", "markdown", "junit", "html") for word in (f"--{kind}", tmp_path / f"compare.{kind}")
    ]
    commands = [
        ["compare", f"{store}@1", f"{copy}@1", *files],
        ["best", store, "--json", tmp_path / "best.json"],
        ["history", store, "--json", tmp_path / "history.json"],
        ["report", f"{store}@1", "-o", tmp_path / "report.html"],
        ["export", "--trace", "ddp native 25 MiB, 2 ranks", f"{store}@1", "-o", tmp_path / "step.json"],
    ]
    for words in commands:
        done = parabench(*words)
        assert done.exit_code == (3 if words[0] == "compare" else 0), done.output
    made = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(made) == 8
    found = [leak for path in made for leak in leaks(path.name, path.read_bytes())]
    # These files have the names of the databases, which contain the folder.
    named = ("compare.", "best.json", "history.json")
    assert [leak for leak in found if not (leak.startswith(named) and "/planted-out" in leak)] == []
