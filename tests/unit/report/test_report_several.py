"""Two or more sessions on one page: the fastest by a known truth, and unknown comparisons."""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import replace

import pandas as pd
import pytest

import fake_collectives
import fake_results as fake
from fake_results import OOM
from parabench.analysis.compare.cases import Outcome
from parabench.analysis.compare.comparison import STEP, compare_sessions
from parabench.analysis.compare.gate import CASES as COLUMNS
from parabench.analysis.compare.gate import compare
from parabench.analysis.compare.overall import overall, sentences, steps
from parabench.analysis.compare.sides import read_several
from parabench.analysis.compare.warnings import several_findings
from parabench.analysis.environment.diff import facts
from parabench.errors import UsageError
from parabench.report.sections.comparison import several_tabs
from parabench.report.views.comparison import case_rows, render, several_data, write_comparison
from several_sides import CASES, dead_store, four_stores, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("several")


@pytest.fixture(scope="module")
def dead(folder):
    return dead_store(folder)


@pytest.fixture(scope="module")
def stores(folder):
    return four_stores(folder)


@functools.cache
def read(*stores):
    return compare_sessions(read_several(stores))


def told(*stores):
    """Return the comparison of sessions, of their only workload, and its sentences."""
    of = read(*stores)
    (one,) = overall(of)
    return of, one, " ".join(sentences(one))


def test_two_sides_of_a_known_truth(stores):
    _, one, text = told(stores["old"], stores["new"])
    assert one.steps[0].ratio == pytest.approx(0.8, rel=0.01)
    assert one.steps[0].low < 0.8 < one.steps[0].high
    assert (one.steps[0].cases, one.changes) == (6, ({Outcome.FASTER: 6},))
    assert re.fullmatch(
        r"new is faster overall: a step takes 0\.80 times as long on new as on old \(geometric mean of 6 cases; 95%: "
        r".*\)\. Not interleaved: the intervals contain a standard deviation between sessions of 5\.0% \(assumed\)\. "
        r"Case by case against old: new faster in 6\.",
        text,
    )
    _, _, text = told(stores["new"], stores["old"])
    assert text.startswith("new is faster overall: a step takes 1.25 times as long on old as on new")


def test_each_session_has_a_sentence_against_the_first(stores):
    _, _, text = told(stores["old"], stores["other"], stores["alike"], stores["new"])
    starts = (
        "new is faster than old overall",
        "old and alike are not statistically",
        "old is faster than other overall",
    )
    assert sorted(starts, key=text.index) == [*starts]


def test_difference_below_session_variation_is_unclear(stores, tmp_path):
    """Launches that agree within 0.5%, a session 4% slower: what the gate calls unclear in every case."""
    _, one, text = told(stores["old"], write(tmp_path, "later", 1.04, seed=1))
    assert set(one.changes[0]) == {Outcome.UNCLEAR}
    assert "old and later are not statistically distinguishable overall" in text
    # By hand: launches next to no noise, an allowance of 5% in each session, the normal quantile.
    quiet = [fake.sweep(CASES, lambda c: 0.08 / c.world_size, blocks=4) for _ in "ab"]
    own = [write(tmp_path, name, cases=[], launches=each) for name, each in zip("ab", quiet, strict=True)]
    (mean,) = told(*own)[1].steps
    assert math.log(mean.high) == pytest.approx(1.95996 * 0.05 * math.sqrt(2), rel=1e-3)
    assert (mean.session_sd, mean.sessions) == (0.05, 0)


def test_interleaved_sessions_are_compared_by_block(tmp_path):
    """The variation between blocks is a hundred times the noise, so only pairs of launches detect 4%."""
    paths = []
    for name, factor in (("a", 1.0), ("b", 1.04)):
        launches = fake.sweep(
            CASES[:3], lambda c, f=factor: 0.04 * f, noise=0.0005, drift=0.05, blocks=5, seed=len(name)
        )
        tied = {"run": "one", "side": name}
        fake.write(tmp_path / f"{name}.db", launches, label=name, interleaved=tied)
        paths.append((tmp_path / f"{name}.db", None))
    of = read(*paths)
    (one,) = overall(of)
    assert of.paired[1]
    assert 1.03 < one.steps[0].low < one.steps[0].high < 1.05
    assert one.changes == ({Outcome.SLOWER: 3},)
    assert "unpaired" not in [group.code for group in several_findings(of)]
    assert "Interleaved, compared pairwise by block" in render(of)
    apart_ = compare_sessions([replace(side, session=replace(side.session, interleaved={})) for side in of.sides])
    (mean,) = overall(apart_)[0].steps
    assert mean.low < 1 < mean.high  # the same launches, without their partners


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("factor", [0.7, 1.0, 1.03, 1.5])
def test_report_and_gate_agree_about_each_configuration(tmp_path, factor, tied):
    """Also if a configuration broke, fails sometimes, was fixed, or has one launch."""
    broke, flaky, mended, single = (fake.case(strategy=name) for name in ("fsdp", "tp", "zero1", "zero2"))
    paths = []
    for side, scale in (("a", 1.0), ("b", factor)):
        ends = {broke: "a", flaky: "ab", mended: "b"}
        own = fake.sweep(CASES, lambda c, f=scale: f * 0.08 / c.world_size, noise=0.004, blocks=6, seed=ord(side))
        for case, well in ends.items():
            own += [
                fake.launch(case, 0.04, block=block)
                if side in well and (block, case, side) != (5, flaky, "b")
                else fake.launch(case, block=block, **OOM)
                for block in range(6)
            ]
        own.append(fake.launch(single, 0.04 * scale))
        more = {"interleaved": {"run": "one", "side": side}} if tied else {}
        fake.write(tmp_path / f"{side}.db", own, label=side, **more)
        paths.append((tmp_path / f"{side}.db", None))
    of = compare_sessions(read_several(paths))
    gate = compare(*(replace(side, role=role) for side, role in zip(of.sides, ("base", "candidate"), strict=True)))
    cases = gate.tables["cases"]
    data = several_data(of, case_rows(of))["cases"]
    assert dict(zip(data["case_id"], data["change.1"], strict=True)) == dict(
        zip(cases["case_id"], cases["outcome"], strict=True)
    )
    both = of.of(STEP).rename(columns={"base": "base_step_time_s", "candidate": "candidate_step_time_s"})
    pd.testing.assert_frame_equal(
        *(each[[*COLUMNS]].sort_values("case_id", ignore_index=True) for each in (both, cases))
    )
    outcomes = set(cases["outcome"])
    assert {Outcome.BROKE, Outcome.FIXED, Outcome.NOT_JUDGED} <= outcomes
    if tied or factor in (0.7, 1.5):
        assert {0.7: Outcome.FASTER, 1.2: Outcome.SLOWER, 1.5: Outcome.SLOWER}.get(factor, Outcome.BROKE) in outcomes


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


def test_best_of_each_session_is_relative_to_the_first(tmp_path):
    mlp = [fake.case(model="mlp", world_size=n) for n in (2, 4)]
    first = write(tmp_path, "first", cases=[*CASES[:3], mlp[0]])
    second = write(tmp_path, "second", 3.0, cases=mlp, seed=1)
    third = write(tmp_path, "third", 2.0, cases=[fake.case(model="cnn"), *CASES[:3]], seed=2)
    of = read(first, second, third)
    sections = {one.id: one for tab in several_tabs(of, overall(of), facts(of.sides)) for one in tab.sections}
    rows = [(row[0], row[1].split(":")[0], row[-1]) for row in sections["best"].tables[0].rows]
    found = {(name, work): times for name, work, times in rows}
    assert found["first", "model gpt-nano"] == found["first", "model mlp"] == "1.00"
    assert found["second", "model mlp"] in ("1.49", "1.50", "1.51")  # 4 ranks vs 2
    assert found["third", "model cnn"] == "–"


def test_sessions_without_common_configurations_have_a_reason(stores, dead, tmp_path):
    alone = write(tmp_path, "alone", cases=[fake.case(strategy="fsdp")])
    empty = (tmp_path / "empty.db", None)
    fake.write(empty[0], [], label="empty")
    for other, role in ((alone, "alone"), (empty, "empty")):
        of = read(stores["old"], other)
        works = overall(of)
        tabs = several_tabs(of, works, facts(of.sides))
        (section,) = (one for tab in tabs for one in tab.sections if one.id == "per-gb")
        assert section.empty == (
            f"Tokens/s per GB of peak memory on {role}: unknown: no case in common with old."
            if works
            else "Tokens/s per GB of memory: unknown."
        )
        assert steps(of, works) == [
            (f"measure on {role} the cases of old, with a separate --out", "parabench run quick")
        ]
        assert "unpaired" not in [group.code for group in several_findings(of)]
    of = read(stores["old"], dead)
    assert steps(of, overall(of)) == [("see how launches of dead ended", f"parabench report {dead[0]}@1")]
    nothing = read(empty, write(tmp_path, "nothing", cases=[]))
    assert "No side has a launch, so there is nothing to compare." in render(nothing)


def test_data_has_configurations_of_all_sessions(stores, tmp_path):
    added = fake.case(strategy="fsdp")
    more = write(tmp_path, "more", cases=[*CASES[:3], added], launches=[fake.launch(CASES[3], block=0, **OOM)])
    of = read(stores["old"], more)
    data = json.loads(json.dumps(several_data(of, case_rows(of)), allow_nan=False))
    n, cases = data["cases"].pop("n"), data["cases"]
    row = {cases["label"][i]: {name: values[i] for name, values in cases.items()} for i in range(n)}
    assert len(row) == 7
    new, gone, failed = row["fsdp native, 2 ranks"], row[CASES[5].label], row[CASES[3].label]
    assert (new["step_time_s.0"], new["ratio.1"], new["sides"], new["status"]) == (
        None, None, "more", "1 not measured, 4 ok"
    )  # fmt: skip
    assert (gone["step_time_s.1"], gone["sides"]) == (None, "old")
    assert (failed["status"], failed["status.1"], failed["ratio.1"]) == ("4 ok, 1 oom", "oom", None)
    both = row[CASES[0].label]
    assert both["ratio.1"] == pytest.approx(both["step_time_s.1"] / both["step_time_s.0"], rel=1e-3)
    assert ["sides", "Measured on"] in data["filters"]
    missing = render(of)
    for case in (new, gone, failed):
        assert missing.count(case["case_id"]) >= 2  # in the data, and in the table of what is missing
