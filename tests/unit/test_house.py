"""Project rules that no linter checks: `make measure` prints all sizes, and documents name only existing modules."""

import re
import subprocess

import pytest

from benchmarks import measure
from docs.drawing import rooms
from paths import ROOT

TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
# Files whose text may name modules: documents, and comments and docstrings of what is shipped.
NAMING = [name for name in TRACKED if name.endswith(".md") or (name.startswith("parabench/") and name.endswith(".py"))]
# Files that a user writes, and files of other projects.
NOT_OURS = {
    "direct.py", "digits.py", "mine.py", "my_formats.py", "my_model.py", "suites/training.py", "train.py", "version.py",
}  # fmt: skip
OTHERS = ("torch/", "torchtitan/", "mnist/", "2/blob/")


def test_measure_prints_a_number_and_a_limit_in_each_row() -> None:
    for what, now, limit in measure.sizes():
        assert "" not in (now, limit), what


def test_the_picture_of_the_rooms_is_what_the_code_draws() -> None:
    assert rooms.FILE.read_text() == rooms.draw(), "run: make pictures"


@pytest.mark.skipif(not TRACKED, reason="without a git checkout, the files of the project are unknown")
def test_every_module_that_is_named_exists() -> None:
    there = {"/".join(name.split("/")[at:]) for name in TRACKED for at in range(name.count("/") + 1)}
    stale = []
    for name in NAMING:
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            named = re.findall(r"(?<![\w/.<{*])[\w/]*\w\.py\b(?![\w(])", line)
            stale += [
                f"{name}:{number}: {each}"
                for each in named
                if each not in there | NOT_OURS and not each.startswith(OTHERS)
            ]
    assert "\n".join(stale) == ""
