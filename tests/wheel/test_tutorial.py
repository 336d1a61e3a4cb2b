"""Run the tutorial's commands in order, in an empty folder with the wheel and without a home folder.

`make wheel` runs this with the new wheel. The tutorial's `pip install` installs parabench into its virtual environment,
with the dependencies of `.venv`. LIMITS shorten the runs.
"""

import os
import re
import shutil
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import pytest

from paths import DOCS, ROOT
from process_helpers import query

TUTORIAL = (DOCS / "tutorial/first-run.md").read_text()
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)
WHEELS = [*(ROOT / "dist").glob("*.whl")]


# Options added to commands: every command must work, but the answers need not be sharp.
LIMITS = {r"parabench run ": "--budget 0.3", r"parabench ab ": "--launches 3 --rounds 6"}


def limited(commands: str) -> str:
    """Return shell commands with the options of LIMITS."""
    commands = re.sub(r"--budget \S+", "", commands.replace("\\\n", " "))
    for command, limit in LIMITS.items():
        commands = re.sub(command, rf"\g<0>{limit} ", commands)
    return commands


def script() -> str:
    """Return the page's commands in its order; code is saved under the name it begins with."""
    lines = ["set -e"]
    for language, text in BLOCKS:
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name, "a Python block starts with the name of its file"
            lines.append(f"cat >{name[1]} <<'END OF FILE'\n{text}END OF FILE")
        else:
            lines.append(limited(text))
    return "\n".join([*lines, 'python -c "import parabench; print(parabench.__file__)" >where.txt', ""])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the tutorial in an empty folder and return it; said.txt has the output."""
    (wheel,) = WHEELS
    folder = tmp_path_factory.mktemp("empty folder")
    shutil.copy(wheel, folder)
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LD_LIBRARY_PATH", "TMPDIR")}
    environment = {
        **kept,
        "BROWSER": "true",
        # Not even root can make a folder there.
        "HOME": "/dev/null/home",
        # Installed packages are found here, and nothing is downloaded.
        "PYTHONPATH": str(distribution("torch").locate_file("")),
        "PIP_IGNORE_INSTALLED": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    with (folder / "said.txt").open("w") as said:
        command = ["bash", "-c", script()]
        ended = subprocess.run(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, check=False)
    assert ended.returncode == 0, (folder / "said.txt").read_text()
    return folder


def test_parabench_comes_from_the_wheel(folder: Path) -> None:
    where = Path((folder / "where.txt").read_text().strip())
    assert where.is_relative_to(folder / ".venv")


def sessions(store: Path) -> list[tuple[str, str]]:
    """Suite and end of each session of a store."""
    return query(store, "SELECT suite, finished_utc IS NOT NULL FROM session ORDER BY id")


def test_each_command_measured_what_the_page_says(folder: Path) -> None:
    assert sessions(folder / "first/results.db") == [("quick", 1), ("bucket_size", 1)]
    assert sessions(folder / "mine/results.db") == [("training", 1)]
    assert sessions(folder / "gate/results.db") == [("training", 1), ("training", 1)]


def test_each_launch_trained_as_one_device_does(folder: Path) -> None:
    for store in folder.glob("*/results.db"):
        assert {*query(store, "SELECT status FROM launch")} == {("ok",)}, store


def test_output_is_as_the_tutorial_shows(folder: Path) -> None:
    """Compare the outputs of the page that do not depend on the machine; a verdict may differ on a busy machine."""
    said = (folder / "said.txt").read_text()
    for line in (
        "trying the suite: each configuration once, a few steps",
        "suites/training.py\n.github/workflows/performance.yml\nPERFORMANCE.md\nnext: parabench run suites/training.py",
    ):
        assert line in TUTORIAL
        assert line in said
    assert re.search(r"^backends +gloo yes", said, re.MULTILINE)
    assert len(re.findall(r"^(?:Fastest|One of|\d+ of \d+)", said, re.MULTILINE)) >= 3
    (verdict,) = re.findall(r"^(Regression|No regression|Inconclusive)\b", said, re.MULTILINE)
    codes = {"Regression": ["1"], "No regression": [], "Inconclusive": ["3"]}
    assert re.findall(r"^exit code (\d+)$", said, re.MULTILINE) == codes[verdict]


def test_nothing_is_written_elsewhere_in_the_folder(folder: Path) -> None:
    wheel = next(each.name for each in WHEELS)
    assert {each.name for each in folder.iterdir()} - {"said.txt", "where.txt", "__pycache__"} == {
        ".github", ".venv", "PERFORMANCE.md", "before", "first", "gate", "mine", "my_model.py", "report.html", "suites",
        wheel,
    }  # fmt: skip
