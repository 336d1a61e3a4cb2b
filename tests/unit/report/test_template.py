"""The files that pages are made of: all of them are shipped and used, and a reader's own stand for them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs_version

import fake_collectives
import fake_results as fake
from parabench.analysis.compare.gate import compare
from parabench.analysis.compare.sides import side_of
from parabench.analysis.history import history
from parabench.errors import UsageError
from parabench.report import page
from parabench.report.build import render
from parabench.report.page import Look
from parabench.report.sections.history import render as render_history
from parabench.report.views.comparison import write_comparison
from parabench.report.views.gate import render as render_gate
from paths import DOCS, ROOT

REPORTS = ROOT / "reports"
# Not a reader's to change.
OTHERS = ("vendor/plotly-LICENSE", "vendor/plotly-basic.min.js")


def test_every_file_of_a_page_is_shipped_and_can_be_copied():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    every = {str(file.relative_to(REPORTS)) for file in REPORTS.rglob("*") if file.suffix != ".py" and file.is_file()}
    there = {name for name in every if Path(name).parts[0] not in ("sample", "__pycache__")}
    shipped = {name for name in there if any(Path(name).match(each) for each in patterns["parabench.reports"])}
    assert shipped == there == {*page.names(), *OTHERS}


def test_the_drawing_library_is_the_one_that_makes_the_figures():
    """CONTRIBUTING.md says how to take another version."""
    begin = (REPORTS / "vendor" / "plotly-basic.min.js").read_text(encoding="utf-8")[:200]
    assert f"plotly.js (basic - minified) v{get_plotlyjs_version()}\n" in begin


def test_every_script_and_style_is_part_of_the_page():
    script = Look().script()
    assert [name for name in page.names() if name.endswith(".js") and name.partition("/")[2] not in script] == []
    assert sorted(f"style/{name}.css" for name in page.STYLES) == [n for n in page.names() if n.endswith(".css")]


def test_the_script_is_one_that_parses(tmp_path):
    driver = pytest.importorskip("playwright._impl._driver", reason="playwright is not installed")
    node = driver.compute_driver_executable()[0]
    if not Path(node).is_file():
        pytest.skip("playwright's driver has no node")
    (tmp_path / "page.js").write_text(Look().script(), encoding="utf-8")
    done = subprocess.run([node, "--check", tmp_path / "page.js"], capture_output=True, text=True)
    assert done.stderr == ""


def own(folder, text, name="own.html"):
    (folder / "style").mkdir()
    (folder / "style" / "page.css").write_text("")
    (folder / name).write_text(text)
    return Look(folder)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("{% if %}", 1, "Expected an expression"),
        ("a\n{{ 1 + 'a' }}", 2, "unsupported operand"),
        ("{{ 'words' | ms }}", 1, ""),
        ("\n\n{{ 1 | no_such_filter }}", 3, "no_such_filter"),
        ("{{ what_is_this }}", 1, "'what_is_this' is undefined"),
        ("{% extends 'nowhere.html' %}", 1, "there is no nowhere.html"),
        ("{% from 'parts.html' import no_such_macro %}\n{{ no_such_macro() }}", 2, "no_such_macro"),
    ],
)
def test_what_is_wrong_with_a_template_is_said_with_its_line(tmp_path, text, line, said):
    with pytest.raises(UsageError) as refusal:
        own(tmp_path, text).render("own.html")
    assert f"{tmp_path / 'own.html'}, line {line}: " in str(refusal.value)
    assert said in str(refusal.value)
    assert str(refusal.value).endswith("; fix it")


def test_what_a_template_is_given_is_text():
    text = Look().render("waiting.html", csp="<b>&", style="", scripts=[], data="null", figures="{}")
    assert "&lt;b&gt;&amp;" in text
    assert "<b>" not in text


EVERY_PAGE = {"csp", "style", "scripts", "data", "figures", "sections"}


def test_what_templates_are_given_is_documented(tmp_path, monkeypatch):
    given: dict[str, set[str]] = {}
    render_as_before = Look.render
    monkeypatch.setattr(
        Look,
        "render",
        lambda self, template, **content: (
            given.update({template: set(content) - EVERY_PAGE}) or render_as_before(self, template, **content)
        ),
    )
    case, collective = fake.case(), fake_collectives.case("all_reduce", "native", world_size=2)
    stores = [fake.write(tmp_path / f"{name}.db", fake.sweep([case], lambda _: 0.04)) for name in "ab"]
    render(stores[0])
    render(fake_collectives.write(tmp_path / "c.db", [fake_collectives.launch(collective, lambda _: 1e-3)]))
    write_comparison([(store.path, None) for store in stores], tmp_path / "r.html")
    base, candidate = (side_of(store, role=role) for store, role in zip(stores, ("base", "candidate"), strict=True))
    render_gate(compare(base, candidate))
    render_history(history(stores))
    documented = (DOCS / "reference/report.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+\.html)` \| (`.*`) \|$", documented, re.M)
    assert {name: set(re.findall(r"`(\w+)`", names)) for name, names in rows} == given
    (filters,) = re.findall(r"^Filters, of which those for numbers.*?: (.*?)\.$", documented, re.M | re.S)
    assert set(re.findall(r"`(\w+)`", filters)) == set(page.FILTERS)
