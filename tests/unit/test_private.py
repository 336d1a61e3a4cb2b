"""Private paths and secrets are removed from stored texts and command lines."""

import json

import pytest

import fake_results as fake
from parabench.private import public_argv, public_text
from parabench.store.record import Failure, Status
from parabench.store.store import Store

ENVIRONMENT = {
    "HF_TOKEN": "hf_abcdefgh",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
    "AWS_SECRET_ACCESS_KEY_ID": "wJalrXUtnFEMI-longer",
    "MY_PASSWORD": "hunter2",
    "PIN_KEY": "1234",  # too short to be a secret
    "http_proxy": "http://user:p%40ssword@proxy:3128",
    "HOME": "/home/ann",
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("RuntimeError: 401 for hf_abcdefgh", "RuntimeError: 401 for ..."),
        ("wJalrXUtnFEMI-longer and wJalrXUtnFEMI", "... and ..."),
        ("1234 steps", "1234 steps"),
        ("no answer of http://user:p%40ssword@proxy:3128/x", "no answer of http://...@proxy:3128/x"),
        ("https://else:where@host/repo.git", "https://...@host/repo.git"),
        ('  File "/home/ann/my work/own.py", line 3, in f', '  File "own.py", line 3, in f'),
        ('File "/home/ann/v/lib/python3.11/site-packages/torch/nn/init.py", line 3', 'File "torch/nn/init.py", line 3'),
        ("[Errno 2] No such file or directory: '/home/ann/x'", "[Errno 2] No such file or directory: 'x'"),
        ("cannot read ~/keys/x, nor /srv/ann/y", "cannot read x, nor y"),
        ("/dev/shm is full; see /proc/1/status", "/dev/shm is full; see /proc/1/status"),
        ("3/4 of all/gather at 1.5 GB/s, and/or", "3/4 of all/gather at 1.5 GB/s, and/or"),
        ("torch/csrc/distributed/c10d/x.cpp:12", "torch/csrc/distributed/c10d/x.cpp:12"),
        ("[../third_party/gloo/gloo/pair.cc:553] x", "[../third_party/gloo/gloo/pair.cc:553] x"),
    ],
)
def test_paths_and_secrets_are_removed_from_texts(text, shown):
    assert public_text(text, ENVIRONMENT) == shown


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("HF_TOKEN PGPASSWORD MYSQL_PWD OPENAI_API_KEY SSH_KEY_FILE sentry_dsn", "see ..."),
        ("PWD OLDPWD TOKENIZERS_PARALLELISM XKB_KEYBOARD AUTHOR NCCL_DEBUG", "see abcdefgh"),
    ],
)
def test_variables_with_secret_names_are_hidden(names, shown):
    assert [public_text("see abcdefgh", {name: "abcdefgh"}) for name in names.split()] == [shown] * 6


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("run quick --set strategy=ddp,fsdp --launches 3", "run quick --set strategy=ddp,fsdp --launches 3"),
        ("run /home/ann/suites/mine.py --out /home/ann/out", "run mine.py"),
        ("run suites/mine.py --out=out --seed 3", "run suites/mine.py --seed 3"),
        ("run quick --data text:/home/ann/book.txt", "run quick --data text:book.txt"),
        ("run quick --set data=text:/home/ann/a.txt,text:b.txt", "run quick --set data=text:a.txt,text:b.txt"),
        ("run quick --set x=https://ann:secret@host/y", "run quick --set x=https://...@host/y"),
        ("collectives --json /home/ann/x.json --op all_reduce", "collectives --op all_reduce"),
        ("run quick --rdzv-endpoint host0:29400 --out", "run quick --rdzv-endpoint host0:29400"),
        ("pytest /home/ann/suites --parabench-set seq_len=8 --their-key=abc -p own --benchmark-json=/x/y.json -k ring",
         "pytest suites --parabench-set seq_len=8 --their-key=... -p own -k ring"),
    ],
)  # fmt: skip
def test_a_command_line_says_what_is_measured_and_not_where(words, kept):
    program = [] if words.startswith("pytest ") else ["parabench"]
    assert public_argv([*program, *words.split()]) == [*program, *kept.split()]


def test_the_store_holds_no_more(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    path = tmp_path / "r.db"
    failure = Failure(
        "cannot read /home/somebody/x with hf_abcdefgh", rank=1, traceback='File "/home/somebody/own.py", line 3'
    )
    argv = ["parabench", "run", "/home/somebody/s.py", "--out", "/home/somebody/o"]
    with Store.open_or_create(path) as store:
        session = store.begin_session(label=None, suite="s", argv=argv, seed=0, environment={}, question="?", plan={})
        store.append(session, fake.launch(fake.case(), status=Status.FAILED, failure=failure))
        (row,) = store._rows("SELECT error, traceback FROM launch")
        assert row == ("rank 1: cannot read x with ...", 'File "own.py", line 3')
        ((argv,),) = store._rows("SELECT argv FROM session")
        assert json.loads(argv) == ["parabench", "run", "s.py"]
    for planted in (b"somebody", b"hf_abcdefgh"):
        assert planted not in path.read_bytes()
