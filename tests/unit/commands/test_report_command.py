"""`parabench report`: stores, files, templates and browsers, as a user gives them."""

from __future__ import annotations

import webbrowser

import pytest

import fake_results as fake
from command_line import parabench
from parabench.report import page


def refused(result, *said):
    """One line on standard error, and exit code 2."""
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stdout == ""
    for each in said:
        assert each in result.stderr
    return True


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


def own(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, ["nothing in", "would be used", "page.html", "script/start.js", "style/page.css", "--copy-templates"]),
        ({"report.html": "\n\n{{ what_is_this }}"}, ["report.html, line 3", "'what_is_this' is undefined"]),
        ({"report.html": b"\xff\xfe"}, ["report.html cannot be read", "make it a file of UTF-8 text"]),
        ({"style/page.css": b"\xff"}, ["page.css cannot be read", "make it a file of UTF-8 text"]),
    ],
)
def test_wrong_template_is_refused_and_the_page_stays(stores, tmp_path, files, said):
    (tmp_path / "r.html").write_text("the old page")
    (tmp_path / "mine").mkdir()
    folder = own(tmp_path / "mine", files)
    result = parabench("report", stores / "old.db", "-o", tmp_path / "r.html", "--template", folder)
    assert refused(result, *said)
    assert (tmp_path / "r.html").read_text() == "the old page"


def test_custom_templates_replace_the_shipped_ones(stores, tmp_path):
    files = {"page.html": "{% block main %}{% endblock %}<p>{{ 2 * 3 }} mine</p>{% include 'own.html' %}"}
    folder = own(tmp_path / "mine", files | {"own.html": "an own part"})
    for chosen in ([stores / "old.db"], [stores / "old.db", stores / "new.db"]):
        assert parabench("report", *chosen, "-o", tmp_path / "r.html", "--template", folder).exit_code == 0
        page = (tmp_path / "r.html").read_text(encoding="utf-8")
        assert page.endswith("<p>6 mine</p>an own part")


def test_the_templates_can_be_copied_and_give_the_same_page(stores, tmp_path):
    folder = tmp_path / "deep" / "mine"
    result = parabench("report", "--copy-templates", folder)
    assert (result.exit_code, result.output.strip()) == (0, str(folder))
    copied = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert copied == set(page.names())
    pages = []
    for more in ([], ["--template", folder]):
        assert parabench("report", stores / "old.db", "-o", tmp_path / "r.html", *more).exit_code == 0
        pages.append((tmp_path / "r.html").read_bytes())
    assert pages[0] == pages[1]


def test_the_page_is_shown_in_the_browser(stores, tmp_path, shown, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parabench("report", stores / "old.db", "-o", "a page.html", "--open").exit_code == 0
    assert shown == [(tmp_path / "a page.html").as_uri()]
