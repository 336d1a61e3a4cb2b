"""Two or more sessions on one page: ratios of a known truth, and unknown comparisons."""

import functools
import math
import re
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go
import pytest

import fake_collectives
import fake_results as fake
from fake_results import OOM
from page_helpers import section
from parabench.analysis.compare.comparison import CASES as COLUMNS
from parabench.analysis.compare.comparison import Outcome, compare_sessions
from parabench.analysis.compare.gate import compare
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
    mean, outcomes, text = told(read(stores["old"], stores["new"]))
    assert mean.ratio == pytest.approx(0.8, rel=0.01)
    assert mean.low < 0.8 < mean.high
    assert (mean.cases, outcomes) == (6, {Outcome.FASTER: 6})
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


def test_interleaved_sessions_are_compared_by_repetition(tmp_path):
    """The variation between repetitions is a hundred times the noise, so only pairs of launches detect 4%."""
    paths = []
    for name, factor in (("a", 1.0), ("b", 1.04)):
        launches = fake.sweep(
            CASES[:3], lambda c, f=factor: 0.04 * f, noise=0.0005, drift=0.05, repetitions=5, seed=len(name)
        )
        fake.write(tmp_path / f"{name}.db", launches, label=name, interleaved={"run": "one", "side": name})
        paths.append((tmp_path / f"{name}.db", None))
    of = read(*paths)
    mean, outcomes, _ = told(of)
    assert of.paired
    assert 1.03 < mean.low < mean.high < 1.05
    assert outcomes == {Outcome.SLOWER: 3}
    assert answer(of).warnings == ()
    sides = (replace(side, session=replace(side.session, interleaved={})) for side in (of.base, of.candidate))
    mean, *_ = told(compare_sessions(*sides))
    assert mean.low < 1 < mean.high  # the same launches, not as pairs


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("factor", [0.7, 1.03, 1.5])
def test_report_and_gate_agree_about_each_configuration(tmp_path, factor, tied):
    """Also if a configuration broke, fails sometimes, was fixed, or has one launch."""
    broke, flaky, mended, single = (fake.case(strategy=name) for name in ("fsdp", "tp", "zero1", "zero2"))
    paths = []
    for side, scale in (("a", 1.0), ("b", factor)):
        ends = {broke: "a", flaky: "ab", mended: "b"}
        own = fake.sweep(CASES, lambda c, f=scale: f * 0.08 / c.world_size, noise=0.004, repetitions=6, seed=ord(side))
        for case, well in ends.items():
            own += [
                fake.launch(case, 0.04, repetition=repetition)
                if side in well and (repetition, case, side) != (5, flaky, "b")
                else fake.launch(case, repetition=repetition, **OOM)
                for repetition in range(6)
            ]
        own.append(fake.launch(single, 0.04 * scale))
        more = {"interleaved": {"run": "one", "side": side}} if tied else {}
        fake.write(tmp_path / f"{side}.db", own, label=side, **more)
        paths.append((tmp_path / f"{side}.db", None))
    of = read(*paths)
    gate = compare(*(replace(side, role=role) for side, role in ((of.base, "base"), (of.candidate, "candidate"))))
    cases = gate.tables["cases"]
    pd.testing.assert_frame_equal(
        *(
            each[[*COLUMNS]].sort_values("case_id", ignore_index=True)
            for each in (answer(of).tables["step_times"], cases)
        )
    )
    outcomes = set(cases["outcome"])
    assert {Outcome.BROKE, Outcome.FIXED, Outcome.NOT_JUDGED} <= outcomes
    if tied or factor in (0.7, 1.5):
        assert {0.7: Outcome.FASTER, 1.03: Outcome.BROKE, 1.5: Outcome.SLOWER}[factor] in outcomes


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


@pytest.mark.parametrize("which", ["alone", "empty", "dead", "nothing"])
def test_sessions_without_ratios_have_a_sentence(stores, tmp_path, which):
    empty = write(tmp_path, "empty", cases=[])
    pair = {
        "alone": (stores["old"], write(tmp_path, "alone", cases=[fake.case(strategy="fsdp")])),
        "empty": (stores["old"], empty),
        "dead": (stores["old"], dead_store(tmp_path)),
        "nothing": (empty, write(tmp_path, "nothing", cases=[])),
    }[which]
    view = view_of(*pair)
    expected = f"No ranked configuration succeeded both on old and on {which}, so nothing can be compared."
    if which == "nothing":
        expected = "Nothing can be compared, because the sessions have no launches."
    assert view.answer.sentences[0] == expected
    assert expected in view.html()


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


def test_ratio_of_one_launch_has_no_interval(tmp_path):
    stores = [write(tmp_path, name, cases=[], launches=[fake.launch(CASES[0])]) for name in ("one", "two")]
    (trace,), _ = ratio_traces(view_of(*stores))
    assert (trace["error_x"]["array"], trace["error_x"]["arrayminus"]) == ([0], [0])
    assert trace["hovertext"][0].endswith("(no interval: it needs two launches per variant)")


def test_ratios_of_four_sessions_are_next_to_each_other(stores):
    traces, _ = ratio_traces(view_of(*stores.values()))
    assert [trace["name"] for trace in traces] == ["new", "alike", "other"]
    assert [min(trace["y"]) for trace in traces] == pytest.approx([-0.22, 0, 0.22])
