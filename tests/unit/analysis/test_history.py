"""History: change points of step times, and the changes of the environment at the same time."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import fake_results as fake
from benchmarks.change_points import alike, false_alarms, found, none, normal, outliers
from command_line import parabench
from docs.site.schemas import schema
from page_helpers import Page
from page_helpers import figures as figures_of
from parabench.analysis import history as history_text
from parabench.analysis.history import history, of_visits, visits_of
from parabench.analysis.stats.change_point import FEWEST_SESSIONS, levels_of
from parabench.store.record import Status
from parabench.store.results import load

SCHEMA = schema("history")
A, B = fake.case(), fake.case(algorithm="ring")


def started(path: Path, times: list[str]) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for number, utc in enumerate(times, 1):
            db.execute("UPDATE session SET started_utc = ? WHERE id = ?", (utc, number))


def wobble(day: int) -> float:
    """Sessions that differ by about a percent, without chance."""
    return 1 + 0.01 * np.sin(2.4 * day)


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    """Twelve nights of three launches, which differ by 0.2%. A is 8% slower from the ninth night on, with another
    torch; B never changes, and has an outlier."""
    path = tmp_path_factory.mktemp("stepped") / "results.db"
    for day in range(12):
        slower, outlier = (1.08 if day >= 8 else 1), (1.5 if day == 4 else 1)
        truth = {A: 0.04 * wobble(day) * slower, B: 0.05 * wobble(day + 5) * outlier}
        launches = [
            fake.launch(case, step_s * (1 + 0.002 * (repetition - 1)), repetition=repetition, steps=4)
            for repetition in range(3)
            for case, step_s in truth.items()
        ]
        versions = fake.ENVIRONMENT["versions"] | {"torch": "2.13.0" if day < 8 else "2.13.1"}
        git = {"commit": f"{day:x}{0:039x}", "dirty": False, "reasons": {}}
        environment = fake.ENVIRONMENT | {"versions": versions, "git": git}
        fake.write(path, launches, label=f"nightly-{day}", environment=environment)
    started(path, [f"2026-03-{1 + day:02d}T02:00:00.000Z" for day in range(12)])
    return load(path)


# ---- change points


def test_history_gives_a_reason_when_sessions_are_few(stepped):
    seen = of_visits(visits_of([stepped])[:3])
    assert {series["state"] for series in seen.series} == {"too few"}
    assert all(len(series["points"]) == 3 and series["shifts"] == [] for series in seen.series)
    assert "2 configurations cannot be judged yet (3 sessions with a number so far, and " in history_text.sentence(seen)
    jsonschema.validate(json.loads(history_text.answer(seen).to_json("history")), SCHEMA)


@pytest.mark.parametrize(
    ("first", "outlier", "starts", "outliers"),
    [(12, 5, [0, 12], [(5,), ()]), (19, None, [0], [(19,)]), (18, None, [0, 18], [(), ()])],
)
def test_change_point_needs_two_sessions_that_agree(first, outlier, starts, outliers):
    logs = np.log(0.04) + 0.005 * np.sin(2.4 * np.arange(20))
    logs[first:] += 0.1
    logs[5] += 0.5 if outlier else 0.0
    levels, _ = levels_of([np.array([each]) for each in logs])
    assert [level.start for level in levels] == starts
    assert [level.outliers for level in levels] == outliers
    if outlier:
        assert levels[1].mean - levels[0].mean == pytest.approx(0.1, abs=0.005)


def test_levels_of_finds_steps_with_few_false_alarms():
    random = np.random.default_rng(3)
    for effects in (normal, outliers, alike, none):
        assert false_alarms(random, 30, effects, 100) <= 0.05, effects
    assert found(random, 30, normal, 0.05, 15, 100) >= 0.95
    assert false_alarms(random, FEWEST_SESSIONS, normal, 100) <= 0.05


# ---- the series


def test_change_has_date_size_and_what_changed(stepped):
    outcome = history([stepped])
    changed, steady = outcome.series
    (shift,) = changed["shifts"]
    assert changed["label"] == A.label
    assert outcome.visits[shift["visit"]].session.name == "nightly-8"
    assert shift["low"] < 0.08 < shift["high"]
    assert [change.name for change in shift["changed"]] == ["torch", "commit"]
    assert changed["sentence"].endswith(
        "torch changed from 2.13.0 to 2.13.1; commit changed from 700000000000 to 800000000000"
    )
    assert f"{changed['state']}: {A.label}: " in changed["sentence"]
    assert "since 2026-03-09 (nightly-8; 95%: +" in changed["sentence"]
    assert steady["shifts"] == []
    assert steady["points"].loc[steady["points"]["outlier"], "visit"].tolist() == [4]
    assert [[change.name for change in found] for found in outcome.machine if found] == [["torch"]]
    assert history_text.sentence(outcome) == (
        "12 sessions of quick, from 2026-03-01 to 2026-03-12: 1 of 2 configurations changed, 1 did not."
    )
    assert len(history_text.lines(outcome)) == 2
    assert len(history_text.lines(outcome, every=True)) == 3


def test_history_follows_only_variant_b(tmp_path):
    path = tmp_path / "results.db"
    for day in range(7):
        for side, step_s in (("b", 0.04), ("a", 0.05)):  # as if b had been recorded first
            run = {"run": str(day), "side": side}
            fake.write(path, [fake.launch(A, step_s * wobble(day))], label=f"{side}{day}", interleaved=run)
    started(path, [f"2026-03-{1 + day:02d}T02:00:00.000Z" for day in range(7) for _ in "ba"])
    outcome = history([load(path)])
    assert [visit.session.name for visit in outcome.visits[:2]] == ["a0", "b0"]
    (series,) = outcome.series
    assert len(series["points"]) == 14
    assert series["shifts"] == []
    assert series["points"]["level_s"].isna().tolist() == [True, False] * 7
    assert not history_text.answer(outcome).tables["sessions"]["judged"][0]


# ---- the command


def test_json_fits_its_schema(stepped, tmp_path):
    out = tmp_path / "history.json"
    assert parabench("history", stepped.path, "--json", out).exit_code == 0
    for text in (out.read_text(), parabench("history", stepped.path.parent, "--json", "-").stdout):
        told = json.loads(text)
        jsonschema.validate(told, SCHEMA, jsonschema.Draft202012Validator)
        assert [series["state"] for series in told["tables"]["series"]] == ["slower", "unchanged"]
        assert told["tables"]["session_differences"][0]["visit"] == 8
    fake.write(tmp_path / "few.db", [fake.launch(A), fake.launch(B, status=Status.OOM)], label=None)
    few = json.loads(parabench("history", tmp_path / "few.db", "--json", "-").stdout)
    jsonschema.validate(few, SCHEMA, jsonschema.Draft202012Validator)


def test_history_command_filters_cases_and_sessions(stepped):
    assert "0 of 1 configuration changed" in parabench("history", stepped.path, "--case", "RING").stdout
    assert "1 of 1 configuration changed" in parabench("history", stepped.path, "--case", A.id[:8]).stdout
    assert "4 sessions" in parabench("history", stepped.path, "--since", "2026-03-09").stdout
    assert "3 sessions" in parabench("history", stepped.path, "--since", "2026-03-09T04:00:00").stdout


# ---- pages


def test_page_draws_levels_and_changes(stepped, tmp_path):
    assert parabench("history", stepped.path, "--html", tmp_path / "history.html").exit_code == 0
    page = (tmp_path / "history.html").read_text()
    figures = figures_of(page)
    (figure,) = figures.values()
    marks, levels = figure["data"][:2]
    assert marks["marker"]["symbol"] == ["circle"] * 8 + ["diamond"] + ["circle"] * 3
    assert re.fullmatch(rf"{A.label}: [\d.]+ ms \([\d.]+ to [\d.]+\)<br>2026-03-09, nightly-8", marks["hovertext"][8])
    assert {trace["meta"] for trace in figure["data"]} == {A.id, B.id}  # the page's filters select by it
    (line,) = figure["layout"]["shapes"]
    assert (line["x0"], line["label"]["text"]) == (7.5, "torch")
    assert levels["x"] == [*range(12)]
    assert len(set(levels["y"])) == 2
    for text in ("Over time", "nightly-8 torch 2.13.0 → 2.13.1; commit", "Every configuration", "Sessions"):
        assert text in Page(page).text
