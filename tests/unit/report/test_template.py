"""The files of a page: all are shipped and used, and the script has every module before those that import it."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs_version

from parabench.analysis.answer import Answer
from parabench.report.page import STYLES, bundle, shipped
from parabench.report.spec import Section, Table
from parabench.report.views.answer import AnswerView
from paths import ROOT

REPORTS = ROOT / "reports"


def files(pattern):
    return sorted(str(file.relative_to(REPORTS)) for file in REPORTS.glob(pattern) if file.is_file())


def page_script():
    return bundle(lambda path: shipped(f"script/{path}"))


def test_every_file_of_a_page_is_shipped():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    page = {name for name in files("**/*") if not name.endswith((".py", ".pyc")) and not name.startswith("sample")}
    assert {name for name in page if any(Path(name).match(each) for each in patterns["parabench.reports"])} == page


def test_plotly_js_has_the_version_of_plotly():
    """CONTRIBUTING.md describes how to update it."""
    start = shipped("vendor/plotly-basic.min.js")[:200]
    assert f"plotly.js (basic - minified) v{get_plotlyjs_version()}\n" in start


def test_page_has_every_script_and_style():
    modules = re.findall(r'modules\["(.+?)"\] = ', page_script())
    assert sorted(f"script/{name}" for name in modules) == files("script/**/*.js")
    assert sorted(f"style/{name}.css" for name in STYLES) == files("style/*.css")


def test_page_script_parses(tmp_path):
    driver = pytest.importorskip("playwright._impl._driver", reason="playwright is not installed")
    node = driver.compute_driver_executable()[0]
    if not Path(node).is_file():
        pytest.skip("playwright's driver has no node")
    (tmp_path / "page.js").write_text(page_script(), encoding="utf-8")
    done = subprocess.run([node, "--check", tmp_path / "page.js"], capture_output=True, text=True)
    assert done.stderr == ""


def test_answer_page_escapes_text_and_marks_commands():
    section = Section(
        "s", "S", "Run `a`.", lead="Run `<b>`.", reading="Run `c`.", tables=(Table("T", ("n",), [("1",)]),)
    )
    page = AnswerView("</main>", "<b>&", Answer(("<script>",)), [section]).html()
    assert re.findall("<code>(.*?)</code>", page) == ["&lt;b&gt;", "a", "c"]
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page
    assert "<script>\n" not in page.replace('<script>"use strict"', "")
