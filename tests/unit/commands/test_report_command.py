"""`parabench report`: several sessions on one page, which a browser opens."""

import webbrowser

import fake_results as fake
from command_line import parabench


def test_report_shows_several_stores_in_the_browser(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        fake.write(tmp_path / f"{name}.db", [fake.launch(fake.case())], label=f"label-{name}")
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    done = parabench("report", "old.db", "new.db@label-new", "-o", "a page.html", "--open")
    assert (done.exit_code, done.output) == (0, "a page.html\n")
    assert opened == [(tmp_path / "a page.html").as_uri()]
    page = (tmp_path / "a page.html").read_text(encoding="utf-8")
    assert "label-old" in page
    assert "label-new" in page
