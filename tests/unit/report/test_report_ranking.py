"""The ranking relative to the best, and a race, as the page shows them."""

import numpy as np
import pytest

import fake_results as fake
import fake_turns
from page_helpers import Page, data, drawn, made
from parabench.analysis import format
from parabench.analysis.ranking.best import answered, interleaving_lines
from parabench.analysis.ranking.race import exits
from parabench.analysis.session import session_data
from parabench.report.build import render
from parabench.report.sections import answer as sections
from parabench.store.record import TWIN_REPETITION

# As fast as the fixture makes them, which has the last 10% slower than the first.
CASES = [fake.case(bucket_mib=size) for size in (1.0, 2.0, 4.0, 8.0, 25.0)]
RACED = {"cases": [each.to_dict() for each in CASES], "protocol": {"launches": None, "rounds": 4}}


def raced(path, repetitions=8):
    """A race of CASES and a twin of the first: the last leaves after a few repetitions."""
    rng, written = np.random.default_rng(3), [fake.launch(each, 0.01, repetition=0) for each in CASES]
    for repetition in range(1, repetitions + 1):
        own = CASES[:4] if repetition > 4 else CASES
        ids = [*(each.id for each in own), own[0].id]
        of = fake_turns.shared(ids, rng, seed=repetition, noise=0.02, of_launch=0.008, disturbed=0.0)
        of.turns[-1] -= 0.1  # as fast as its twin
        arms = fake_turns.launches(of, [*own, own[0]], repetition)
        arms[-1].repetition = TWIN_REPETITION
        written += arms
    return fake.write(path / "results.db", written, plan=RACED)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return raced(tmp_path_factory.mktemp("raced"))


@pytest.fixture(scope="module")
def seen(results):
    return session_data(results)


def test_ranking_is_relative_to_the_best_with_intervals(results, seen):
    (rows,) = seen.once(answered)
    last = rows["candidates"][-1]
    assert last["case_id"] == CASES[-1].id
    assert 0 < last["slower_low"] < last["slower"] < last["slower_high"]
    left = exits(rows)[last["case_id"]]
    page = data(render(results))
    cases = page["cases"]
    at = cases["case_id"].index(last["case_id"])
    assert cases["slower_low"][at] == pytest.approx(last["slower_low"], rel=1e-3)
    assert cases["left_at_least"][at] == pytest.approx(left["at_least"], rel=1e-3)
    first = cases["case_id"].index(CASES[0].id)
    assert cases["left_after_repetition"][first] is None
    (slower,) = [column for column in page["tables"]["cases"]["columns"] if column["name"] == "slower"]
    assert slower["cells"][at]["text"] == format.percent(last["slower"])
    assert slower["cells"][at]["sub"].endswith(f"%, eliminated after repetition {left['repetition'] + 1}")
    assert slower["cells"][first] == "–"
    (panel,) = made(seen, sections.ranking_section)["ranking"].panels
    assert drawn(panel).layout.xaxis.title.text == "slower than the best (%)"
    assert set(drawn(panel).data[0].customdata) == {row["case_id"] for row in rows["candidates"]}


def test_page_shows_interference_of_shared_launches(results, seen):
    message = interleaving_lines(seen)
    assert message[0].startswith("Two copies of ddp native 1 MiB, 2 ranks differed by ")
    assert "nterference between interleaved configurations" in message[1]
    text = Page(render(results)).text
    assert all(each in text for each in message)
    assert "9 repetitions, 20 to 24 measured steps each" in text
