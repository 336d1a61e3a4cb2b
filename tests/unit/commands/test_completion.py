"""What a shell completes, as click asks for it."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from guard import GUARD_S
from parabench.cli import main
from parabench.plan.suite import AXES, shipped
from paths import ROOT


def completed(*words: str) -> list[str]:
    """What the last of the words is completed to; files by the kind."""
    *before, incomplete = words
    found = ShellComplete(main, {}, "parabench", "_PARABENCH_COMPLETE").get_completions(before, incomplete)
    return [each.type if each.type == "file" else each.value for each in found]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("re",), ["report"]),
        (("run", "qu"), ["quick"]),
        (("run", ""), list(shipped())),
        (("run", "my/own"), ["file"]),
        (("ab", "--a", "x", "qu"), ["quick"]),
        (("run", "quick", "--set", ""), [f"{name}=" for name in AXES]),
        (("run", "quick", "--set", "strat"), ["strategy="]),
        (("run", "quick", "--set", "strategy=ddp,fs"), ["strategy=ddp,fsdp"]),
        (("run", "quick", "--set", "precision=bf"), ["precision=bf16-mixed", "precision=bf16-true"]),
        (("run", "quick", "--set", "world_size=2"), []),
        (("run", "quick", "--set", "nothing=x"), []),
        (("run", "quick", "--model", "gpt-"), ["gpt-nano", "gpt-mini"]),
        (("run", "quick", "--data", "sy"), ["synthetic"]),
        (("best", "res"), ["file"]),
        (("compare", "a", "b"), ["file"]),
        (("export", "--mlf"), ["--mlflow"]),
    ],
)
def test_names_are_completed(words: tuple[str, ...], names: list[str]) -> None:
    assert completed(*words) == names


def test_a_tab_imports_no_torch_and_prints_nothing_else() -> None:
    asked = {
        "_PARABENCH_COMPLETE": "bash_complete",
        "COMP_WORDS": "parabench run quick --set strategy=dd",
        "COMP_CWORD": "4",
    }
    code = (
        "import sys, parabench.cli\n"
        "try: parabench.cli.main(prog_name='parabench')\n"
        "except SystemExit: assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "plain,strategy=ddp\n"


# Commands take a second of Python for each tab; what is typed stays in the line until then.
BASH = "eval \"$(_PARABENCH_COMPLETE=bash_source parabench)\"; PS1='ready> '\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_what_follows_an_equals_sign_or_a_colon(tmp_path: Path) -> None:
    """In a real one: what it takes for a word is its own business."""
    command = tmp_path / "parabench"
    code = "from parabench.cli import main; main(prog_name='parabench')"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{code}" "$@"\n')
    command.chmod(0o755)
    ours, theirs = pty.openpty()
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    words = ["bash", "--norc", "--noprofile", "-i"]
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    ) as bash:
        os.close(theirs)
        try:
            typed(ours, BASH, "\nready> ")
            for begun, completed in (
                ("--set strat", "--set strategy="),
                ("--set strategy=ddp,fs", "--set strategy=ddp,fsdp "),
                ("--set algorithm=nccl:pa", "--set algorithm=nccl:pat "),
                ("--model=gpt-n", "--model=gpt-nano "),
            ):
                typed(ours, f"parabench run quick {begun}\t", completed)
                typed(ours, "\x15\n", "ready> ")  # the line is dropped
        finally:
            bash.kill()
            os.close(ours)


def typed(terminal: int, text: str, until: str) -> None:
    """Type into a terminal, and read it until it shows what is expected."""
    os.write(terminal, text.encode())
    shown = ""
    while until not in shown.replace("\r", ""):
        assert select.select([terminal], [], [], GUARD_S)[0], f"{until!r} is not in {shown!r}"
        shown += os.read(terminal, 1 << 16).decode()
