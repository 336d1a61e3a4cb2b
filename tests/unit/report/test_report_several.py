"""Two or more sessions on one page: ratios of a known truth, and unknown comparisons."""

import functools
import math
import re

import plotly.graph_objects as go
import pytest

import fake_collectives
import fake_results as fake
from fake_results import OOM
from page_helpers import section
from parabench.analysis.compare.comparison import Outcome, compare_sessions
from parabench.analysis.compare.machines import answer
from parabench.analysis.compare.sides import read_several
from parabench.errors import UsageError
from parabench.report.views.comparison import sessions_view, write_comparison
from several_sides import CASES, dead_store, four_stores, write


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return four_stores(tmp_path_factory.mktemp("several"))


@functools.cache
def read(*stores):
    return compare_sessions(*read_several(stores))


def told(of):
    """Return the mean of step times, the outcomes of configurations, and the sentences about two sessions."""
    found = answer(of)
    mean = next(found.tables["means"].itertuples())
    return mean, dict(found.tables["outcomes"][["outcome", "cases"]].to_numpy().tolist()), " ".join(found.sentences)


def view_of(*stores):
    sides = read_several(stores)
    answers = [answer(compare_sessions(sides[0], other)) for other in sides[1:]]
    return sessions_view(sides, answers, ["parabench", "report"])


def sections(view):
    return {section.id: section for section in view.sections}


def test_sessions_of_a_known_truth(stores):
    _, outcomes, text = told(read(stores["old"], stores["new"]))
    assert outcomes == {Outcome.FASTER: 6}
    assert re.match(
        r"new is faster overall: a step takes 0\.80 times as long on new as on old \(geometric mean of 6 "
        r"configurations; 95%: "
        r".*\)\. Not interleaved: the intervals contain a standard deviation between sessions of 5\.0% \(assumed\)\. "
        r"Configuration by configuration against old: new faster in 6\.",
        text,
    )
    *_, text = told(read(stores["new"], stores["old"]))
    assert text.startswith("new is faster overall: a step takes 1.25 times as long on old as on new")


def test_difference_below_session_variation_is_unclear(stores, tmp_path):
    """The launches of a session agree within 0.5%, and the session is 4% slower."""
    _, outcomes, text = told(read(stores["old"], write(tmp_path, "later", 1.04, seed=1)))
    assert set(outcomes) == {Outcome.UNCLEAR}
    assert "old and later are not statistically distinguishable overall" in text
    # By hand: launches next to no noise, an allowance of 5% in each session, the normal quantile.
    quiet = [fake.sweep(CASES, lambda c: 0.08 / c.world_size, repetitions=4) for _ in "ab"]
    own = [write(tmp_path, name, cases=[], launches=each) for name, each in zip("ab", quiet, strict=True)]
    mean, *_ = told(read(*own))
    assert math.log(mean.high) == pytest.approx(1.95996 * 0.05 * math.sqrt(2), rel=1e-3)
    assert (mean.session_sd, mean.sessions) == (0.05, 0)


def test_comparison_error_is_one_line(stores, tmp_path):
    fake_collectives.write(tmp_path / "c.db", fake_collectives.sweep([fake_collectives.case()], lambda c, s: 1e-4))
    cases = {
        "one session has nothing to be compared with": [stores["old"]],
        "old of .* is given twice": [stores["old"], stores["new"], (stores["old"][0], "1")],
        "session 'none' is not in": [stores["old"], (stores["new"][0], "none")],
        "measured collectives, not training": [stores["old"], (tmp_path / "c.db", None)],
    }
    for message, given in cases.items():
        with pytest.raises(UsageError, match=message) as found:
            write_comparison(given, tmp_path / "x.html")
        assert "\n" not in str(found.value)
    assert not (tmp_path / "x.html").exists()


def test_page_of_four_sessions_has_every_section(stores, tmp_path):
    view = view_of(*stores.values())
    assert [sentence.partition(":")[0] for sentence in view.answer.sentences[:3]] == [
        "new is faster overall",
        "old and alike are not statistically distinguishable overall",
        "old is faster overall",
    ]
    found = sections(view)
    assert [*found] == ["ratios", "best", "differs", "sources"]
    (table,) = found["ratios"].tables
    assert table.head[:8] == (
        "Configuration", "old, ms", "new, ms", "alike, ms", "other, ms", "new, times", "alike, times", "other, times",
    )  # fmt: skip
    assert [row[5][:4] for row in table.rows] == ["0.80"] * 6
    assert [row[0] for row in found["best"].tables[0].rows] == ["old", "new", "alike", "other"]
    assert found["best"].tables[0].rows[3][1] == "16 cores of Other CPU"
    assert found["differs"].lead == "torch, CPU and cores for ranks can each explain a different step time."
    assert ("torch", "2.13.0", "2.14.0", "2.13.0", "2.13.0") in found["differs"].tables[0].rows
    page = write_comparison(list(stores.values()), tmp_path / "four.html").read_text()
    assert "18 of 18" not in section(page, "sources")
    assert "24 of 24 succeeded" in section(page, "sources")
    assert f"parabench report {stores['old'][0]}@1 {stores['new'][0]}@1" in section(page, "reproduce")


def test_configurations_without_a_ratio_have_a_reason(stores, tmp_path):
    added = fake.case(strategy="fsdp")
    more = write(tmp_path, "more", cases=[*CASES[:3], added], launches=[fake.launch(CASES[3], repetition=0, **OOM)])
    every, missing = sections(view_of(stores["old"], more))["ratios"].tables
    row = {label: cells for label, *cells in every.rows}
    assert len(row) == 7
    assert row[CASES[3].label][1:3] == ["oom", "–"]
    assert row["fsdp native, 2 ranks"][0] == "not measured"
    assert row[CASES[5].label][1] == "not measured"
    assert [cells for cells in missing.rows if cells[0] == "fsdp native, 2 ranks"] == [
        ("fsdp native, 2 ranks", "more", "only in more: not measured in old")
    ]
    assert len(missing.rows) == 4


def test_sessions_without_ratios_have_a_sentence(stores, tmp_path):
    empty, nothing = (write(tmp_path, name, cases=[]) for name in ("empty", "nothing"))
    view = view_of(stores["old"], dead_store(tmp_path))
    assert "No ranked configuration succeeded both on old and on dead, so nothing can be compared." in view.html()
    sentences = view_of(empty, nothing).answer.sentences
    assert sentences[0] == "Nothing can be compared, because the sessions have no launches."


# ---- figures


def scaled(folder, name, factors, **more):
    """Write a session whose launches take exactly `factors` times 40 ms, by case."""
    launches = [
        fake.launch(case, 0.04 * factor, repetition=repetition)
        for repetition in range(3)
        for case, factor in factors.items()
    ]
    return write(folder, name, cases=[], launches=launches, **more)


def ratio_traces(view):
    (panel,) = sections(view)["ratios"].panels
    go.Figure(panel.figure)
    return panel.figure["data"], panel.figure["layout"]


def test_ratios_are_ordered_and_filled_when_they_differ(tmp_path):
    near, slower, faster = CASES[:3]
    base = scaled(tmp_path, "a<b>", dict.fromkeys(CASES[:4], 1.0))
    other = scaled(tmp_path, "other", {near: 1.01, slower: 1.5, faster: 0.7})
    (trace,), layout = ratio_traces(view_of(base, other))
    assert layout["yaxis"]["ticktext"] == [faster.label, near.label, slower.label]
    assert layout["xaxis"]["title"]["text"] == "step time, a&lt;b&gt; = 1"
    assert layout["meta"]["rows"]["order"] == [1, 2, 0]  # the largest change first
    assert trace["x"] == pytest.approx([0.7, 1.01, 1.5])
    assert trace["marker"]["symbol"] == ["square", "square-open", "square"]
    assert all(end > 0 for name in ("array", "arrayminus") for end in trace["error_x"][name])
    assert trace["hovertext"][0].startswith(f"<b>{faster.label}</b><br>other: 0.70 times (95%: ")


def test_ratios_of_four_sessions_are_next_to_each_other(stores):
    traces, _ = ratio_traces(view_of(*stores.values()))
    assert [trace["name"] for trace in traces] == ["new", "alike", "other"]
    assert [min(trace["y"]) for trace in traces] == pytest.approx([-0.22, 0, 0.22])
