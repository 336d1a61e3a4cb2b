"""Results databases with hostile text: pages hold it as text. Browsers are tested in tests/browser/."""

import json
import re

import pytest

import hostile_helpers as hostile
from page_helpers import Page, figures
from parabench.analysis.compare.comparison import compared
from parabench.analysis.compare.gate import compare
from parabench.analysis.compare.machines import answer
from parabench.analysis.compare.sides import side_of
from parabench.analysis.history import history
from parabench.report.build import render
from parabench.report.sections import history as over_time
from parabench.report.views.comparison import gate_view, machines_view
from parabench.store.results import load

PAGES = {
    "training": lambda one, two, calls: render(one),
    "collectives": lambda one, two, calls: render(calls),
    "gate": lambda one, two, calls: gate_view(compare(side_of(one), side_of(two))).html(),
    "machines": lambda one, two, calls: machines_page(side_of(one), side_of(two, role="b")),
    "history": lambda one, two, calls: over_time.render(history([one, two])),
}


def machines_page(*sides):
    return machines_view(sides, answer(compared(*sides))).html()


ELEMENTS = {"img", "iframe", "object", "embed", "base", "form"}
HANDLERS = {"onerror", "onload", "onmouseover", "onfocus", "autofocus"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    paths = [hostile.trainings(folder / f"{name}.db", name) for name in ("one", "two")]
    paths.append(hostile.collectives(folder / "calls.db"))
    for path in paths:
        hostile.poison(path)
    return [load(path) for path in paths]


@pytest.mark.parametrize("which", PAGES)
def test_hostile_text_stays_text_on_every_page(stores, which):
    html = PAGES[which](*stores)
    page = Page(html)
    assert hostile.CALL in page.text
    assert not [tag for tag in page.tags if tag[0] in ELEMENTS or HANDLERS & tag[1].keys()]
    runs = ["type" not in attrs for tag, attrs in page.tags if tag == "script"]
    assert not [text for text, does in zip(page.scripts, runs, strict=True) if does and hostile.CALL in text]
    for figure in figures(html).values():
        shown = [trace | dict.fromkeys(("customdata", "legendgroup", "meta")) for trace in figure["data"]]  # but no ids
        assert not re.findall(r"<(?:script|img|svg|iframe|a) ?[^>]*", json.dumps([shown, figure["layout"]]))
