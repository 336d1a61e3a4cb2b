"""Real sessions with planted secrets: no file or output of a session contains one."""

import gzip
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from command_line import parabench
from guard import GUARD_S
from process_helpers import COMMANDS, environment
from secret_helpers import PLANTED, VARIABLES

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
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of two sessions with planted secrets in folders, variables, the git repository and errors."""
    folder = tmp_path_factory.mktemp("box")
    names = ("home-9f2c50", "out-9f2c52", "suites-9f2c53", "temporary-9f2c54", "home-9f2c50/planted-here-9f2c51")
    home, out, suites, temporary, here = (folder / f"{PLANTED}{name}" for name in names)
    for each in (home, out, suites, temporary, here):
        each.mkdir()
    for line in GIT.splitlines():
        subprocess.run(line.split(), cwd=here, check=True)
    (suites / "mine.py").write_text(SUITE)
    run = ["run", suites / "mine.py", "--out", out, "--profile"]
    few = ["collectives", "--op", "all_reduce", "--algorithm", "native", "--min", "1K", "--max", "1K"]
    few += ["--iterations", "2", "--launches", "1", "--out", out / "planted-ops-9f2c65", "--json", out / "nccl.json"]
    words = json.dumps([list(map(str, words)) for words in (run, few)])
    own = environment(HOME=str(home), TMPDIR=str(temporary), **VARIABLES)
    command = [sys.executable, "-c", COMMANDS, words]
    done = subprocess.run(command, cwd=here, env=own, capture_output=True, text=True, timeout=GUARD_S, check=False)
    codes = [line for line in done.stdout.splitlines() if line.startswith("exit code")]
    assert codes == ["exit code 1: run", "exit code 0: collectives"], done.stdout + done.stderr
    return out


def leaks(name: str, raw: bytes) -> list[str]:
    """Return the surroundings of each planted text."""
    found = re.finditer(PLANTED.encode(), raw)
    return [f"{name}: {raw[max(0, each.start() - 60) : each.start() + 40]!r}" for each in found]


def test_session_files_have_no_planted_secret(out: Path) -> None:
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".db", ".html", ".json", ".gz"}
    for path in files:
        raw = path.read_bytes()
        assert leaks(path.name, gzip.decompress(raw) if path.suffix == ".gz" else raw) == []


def test_errors_are_kept_without_the_secrets(out: Path) -> None:
    with closing(sqlite3.connect(out / "results.db")) as db:
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


def test_exports_and_reports_have_no_planted_secret(out: Path, tmp_path: Path) -> None:
    store, copy = out / "results.db", out / "copy.db"
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
