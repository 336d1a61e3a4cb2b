"""Captions are short: what else a reader may ask stands behind 'How to read this'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

import fake_collectives
import fake_devices
import fake_results as fake
from parabench.analysis.compare.gate import compare
from parabench.analysis.compare.sides import side_of
from parabench.analysis.history.history import history
from parabench.report.build import render
from parabench.report.sections.history import render as render_history
from parabench.report.views.comparison import write_comparison
from parabench.report.views.gate import render as render_gate

MOST_SENTENCES = 2


def sentences(caption: str) -> list[str]:
    """A sentence ends in a full stop before a capital; one in parentheses belongs to what it stands in."""
    bare = re.sub(r"\([^()]*\)", "", caption)
    return re.split(r"(?<=[.!?”])\s+(?=[A-Z“])", bare.strip())


def captions(page: str) -> Iterator[str]:
    for text in re.findall(r'<(?:p class="caption"|figcaption)[^>]*>(.*?)</(?:p|figcaption)>', page, re.DOTALL):
        yield " ".join(unescape(re.sub(r"<[^>]+>", "", text)).split())


def test_sentences_are_counted() -> None:
    assert len(sentences("Step time. Lower is better (see below. Really).")) == 2
    assert len(sentences("10.5 ms, e.g. one. “Off” is relative. Two.")) == 3
    assert list(captions('<p class="caption">A <b>b</b>\n&lt; c.</p>')) == ["A b < c."]


def pages(folder: Path) -> Iterator[tuple[str, str]]:
    """A page of every kind, with most of what sections can show."""
    launches = [fake.step(each) for each in fake_devices.gpu_launches()]
    yield "gpu", render(fake.write(folder / "gpu.db", launches))
    rich, family = fake.rich(folder / "rich.db"), fake.family(folder / "family.db")
    yield "rich", render(rich)
    yield "family", render(family)
    case = fake_collectives.case(world_size=2)
    sweep = fake_collectives.sweep([case], lambda one, size: 1e-4 + size * 1e-9, noise=0.01)
    yield "collectives", render(fake_collectives.write(folder / "bus.db", sweep))
    write_comparison([(rich.path, None), (family.path, None)], folder / "several.html")
    yield "several", (folder / "several.html").read_text()
    yield "gate", render_gate(compare(side_of(rich, role="base"), side_of(family, role="candidate")))
    yield "history", render_history(history([rich, family]))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return {name: list(captions(page)) for name, page in pages(tmp_path_factory.mktemp("pages"))}


def test_every_page_has_captions(found: dict[str, list[str]]) -> None:
    assert len(found) == 7
    assert sum(map(len, found.values())) > 60
    assert all(found.values())


def test_no_caption_has_more_than_two_sentences(found: dict[str, list[str]]) -> None:
    long = {(name, each) for name, texts in found.items() for each in texts if len(sentences(each)) > MOST_SENTENCES}
    assert sorted(long) == []
