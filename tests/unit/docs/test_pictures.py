"""The pictures of docs/reference/algorithms.md show the algorithms' messages, and the custom example runs."""

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import simulated
from docs.drawing import prediction
from docs.drawing.pictures import PICTURES, every
from docs.drawing.space_time import space_time
from parabench.collectives import ALGORITHMS, is_backends
from parabench.collectives.algorithm import make
from paths import DOCS

PAGE = (DOCS / "reference/algorithms.md").read_text()
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return every()


def test_committed_pictures_are_what_the_code_draws(drawn: dict[str, str]) -> None:
    committed = {path.name: path.read_text() for path in (DOCS / "pictures").glob("*.svg")}
    assert committed == drawn, "run: make pictures"
    assert prediction.FILE.read_text() == prediction.how(), "run: make pictures"


def test_the_page_shows_every_picture_and_every_algorithm(drawn: dict[str, str]) -> None:
    undrawn = {name for name in ALGORITHMS if not is_backends(name)} - {each.algorithm for each in PICTURES}
    assert not undrawn, f"docs/drawing/pictures.py: give PICTURES a Picture(algorithm=...) of {undrawn}; make pictures"
    untold = [name for name in ALGORITHMS if f"`{name}`" not in PAGE]
    assert not untold, f"docs/reference/algorithms.md: tell of {untold}, with their pictures"
    shown = re.findall(r"!\[.*\]\(../pictures/(.*)\)", PAGE)
    assert sorted(shown) == sorted(drawn), "docs/reference/algorithms.md: show them all"


def test_pictures_are_accessible_and_show_every_message(drawn: dict[str, str]) -> None:
    for name, text in drawn.items():
        root = ET.fromstring(text)
        (title,), (description,) = root.findall(f"{SVG}title"), root.findall(f"{SVG}desc")
        assert root.get("role") == "img"
        assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert "" not in (title.text or "", description.text or "")
        algorithm, _, size = name.removesuffix(".svg").rpartition("-")
        picture = next(each for each in PICTURES if each.algorithm == algorithm)
        made = make(algorithm, int(size) // 2 if picture.nodes == 2 else None)
        messages = len(space_time(made, int(size), picture.chunks or int(size)).arrows)
        heads = [line for line in root.iter(f"{SVG}line") if (line.get("marker-end") or "none") != "none"]
        assert len(heads) == messages + (3 if picture.nodes > 1 else 2)  # and the legend's


def test_example_of_a_custom_algorithm_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "how-to/own-algorithm.md").read_text(), re.DOTALL)
    algorithm, trial = blocks[:2]
    (tmp_path / "direct.py").write_text(algorithm)
    (tmp_path / "trial.py").write_text(trial)
    shutil.copy(simulated.__file__, tmp_path)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "trial.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
