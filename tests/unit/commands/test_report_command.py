"""`parabench report`: results databases, files and browsers."""

import webbrowser

import pytest

import fake_results as fake
from command_line import parabench


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    cases = [fake.case(bucket_mib=b) for b in (1.0, 4.0)]
    for name in ("old", "new"):
        fake.write(folder / f"{name}.db", fake.sweep(cases, lambda c: 0.04, noise=0.01), label=f"label-{name}")
    return folder


@pytest.fixture
def shown(monkeypatch):
    """Return the addresses that the browser opened."""
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or True)
    return asked


def test_report_shows_several_stores_on_one_page(stores, tmp_path):
    result = parabench("report", stores / "old.db", f"{stores / 'new.db'}@label-new", "-o", tmp_path / "both.html")
    assert (result.exit_code, result.output.strip()) == (0, str(tmp_path / "both.html"))
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "label-old" in page
    assert "label-new" in page


def test_the_page_is_shown_in_the_browser(stores, tmp_path, shown, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parabench("report", stores / "old.db", "-o", "a page.html", "--open").exit_code == 0
    assert shown == [(tmp_path / "a page.html").as_uri()]
