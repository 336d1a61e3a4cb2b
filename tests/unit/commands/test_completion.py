"""What a shell completes, as click asks for it."""

import os
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from parabench.cli import main
from parabench.plan.suite import shipped


def completed(*words: str) -> list[str]:
    """Return the completions of the last word. Files have their kind instead of a name."""
    *before, incomplete = words
    found = ShellComplete(main, {}, "parabench", "_PARABENCH_COMPLETE").get_completions(before, incomplete)
    return [each.type if each.type == "file" else each.value for each in found]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("re",), ["report"]),
        (("run", "qu"), ["quick"]),
        (("run", ""), list(shipped())),
        (("ab", "--baseline", "x", "qu"), ["quick"]),
        (("best", "res"), ["file"]),
        (("export", "--mlf"), ["--mlflow"]),
    ],
)
def test_names_are_completed(words: tuple[str, ...], names: list[str]) -> None:
    assert completed(*words) == names


def test_a_tab_imports_no_torch_and_prints_nothing_else() -> None:
    asked = {"_PARABENCH_COMPLETE": "bash_complete", "COMP_WORDS": "parabench run qui", "COMP_CWORD": "2"}
    code = (
        "import sys, parabench.cli\n"
        "try: parabench.cli.main(prog_name='parabench')\n"
        "except SystemExit: assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "plain,quick\n"
