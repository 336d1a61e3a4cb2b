"""One case of one session has one step time, whoever is asked, also where a launch is missing."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fake_results as fake
from parabench.analysis.compare import machines
from parabench.analysis.compare.comparison import compare_sessions
from parabench.analysis.compare.sides import read_several
from parabench.analysis.format import milliseconds
from parabench.analysis.numbers import case_table, numbers
from parabench.analysis.session import SessionData, select_session
from parabench.cli import main
from parabench.report.cases import page_data
from parabench.report.views.comparison import sessions_view
from parabench.session.progress import outcome
from parabench.store.record import Status

FAST, SLOW = fake.case(algorithm="ring"), fake.case()
# The slowdown of the machine in each repetition. The last repetition is twice as slow, and FAST has no launch there.
BLOCKS = (1.0, 1.1, 2.0)


def lengths(mean: float, n: int = 20) -> list[float]:
    """Steps that differ, so that their median is not their 10th percentile."""
    return [mean * (1 + 0.02 * at) for at in range(n)]


def write(path: Path, label: str = "fake", scale: float = 1.0, **more: object):
    """Return a session without one launch of FAST."""
    launches = [
        fake.launch(
            case, lengths(scale * mean * machine * (1 + 0.001 * ((repetition + at) % 2))), repetition=repetition
        )
        for repetition, machine in enumerate(BLOCKS)
        for at, (case, mean) in enumerate(((FAST, 0.040), (SLOW, 0.050)))
        if (case, repetition) != (FAST, 2)
    ]
    missing = fake.launch(FAST, repetition=2, status=Status.OOM)
    return fake.write(path, [*launches, missing], label=label, **more)  # type: ignore[arg-type]


def told(*arguments: object) -> Any:
    result = CliRunner().invoke(main, [*map(str, arguments), "--json", "-"])
    assert result.exit_code in (0, 1, 3), result.output
    return json.loads(result.stdout)["tables"]


def test_every_command_has_the_same_step_time(tmp_path):
    results = write(tmp_path / "a.db")
    write(tmp_path / "b.db", "other")
    session = select_session(results, None)
    launches = numbers(results, session)
    own = launches[(launches["case"] == FAST.id) & (launches["status"] == "ok")]
    raw = math.exp(np.log(own["step_s"]).mean())
    expected = case_table(launches).set_index("case_id").loc[FAST.id, "step_time_s"]
    assert expected == pytest.approx(raw, rel=1e-12)

    page = page_data(SessionData(results, session))
    cases = page["cases"]
    assert cases["step_time_s"][cases["case_id"].index(FAST.id)] == pytest.approx(expected, rel=1e-4)
    for objective in ("step_time_s", "tokens_per_s", "memory"):
        answer = told("best", tmp_path / "a.db", "--objective", objective)
        found = {each["case_id"]: each for each in answer["candidates"]}
        assert found[FAST.id]["step_time_s"] == pytest.approx(expected, rel=1e-12)
        if objective != "memory":  # the missing launch would have been in the slow repetition
            assert found[SLOW.id]["slower"] == pytest.approx(0.25, rel=0.01)
            assert found[SLOW.id]["step_time_s"] / expected > 1.5
        points = {point["case_id"]: point["step_time_s"] for point in answer["front"]}
        assert points.get(FAST.id, expected) == pytest.approx(expected, rel=1e-12)
    rows = {row["case_id"]: row for row in told("compare", tmp_path / "a.db", tmp_path / "b.db")["cases"]}
    assert (
        rows[FAST.id]["base_step_time_s"]
        == rows[FAST.id]["candidate_step_time_s"]
        == pytest.approx(expected, rel=1e-12)
    )
    across = told("compare", tmp_path / "a.db", tmp_path / "b.db", "--across-hardware")
    (common,) = [row for row in across["step_times"] if row["case_id"] == FAST.id]
    assert common["base_step_time_s"] == pytest.approx(expected, rel=1e-12)
    history = told("history", tmp_path / "a.db")
    (point,) = [each for each in history["points"] if each["case_id"] == FAST.id]
    assert point["step_time_s"] == pytest.approx(expected, rel=1e-12)

    sides = read_several([(tmp_path / "a.db", None), (tmp_path / "b.db", None)])
    view = sessions_view(sides, [machines.answer(compare_sessions(*sides))], [])
    rows = {row[0]: row for row in view.sections[0].tables[0].rows}
    assert rows[FAST.label][1] == rows[FAST.label][2] == f"{expected * 1e3:.1f}"
    assert rows[FAST.label][3].startswith("1.00 (")


def test_the_ratio_is_of_launches_that_have_a_partner(tmp_path):
    """Side b lost a launch; a ratio of the two step times would count what the repetitions did."""
    path = tmp_path / "results.db"
    for side, scale in (("a", 1.0), ("b", 1.1)):
        launches = [
            fake.launch(FAST, lengths(0.04 * scale * machine * (1 + 0.001 * (repetition % 2))), repetition=repetition)
            for repetition, machine in enumerate(BLOCKS)
            if (side, repetition) != ("b", 2)
        ]
        fake.write(path, launches, label=side, interleaved={"run": "r", "side": side})
    (row,) = told("compare", f"{path}@a", f"{path}@b")["cases"]
    assert row["ratio"] == pytest.approx(1.1, rel=1e-9)
    assert row["base_step_time_s"] > row["candidate_step_time_s"]
    base, candidate = (told("best", f"{path}@{side}")["candidates"][0] for side in "ab")
    assert (row["base_step_time_s"], row["candidate_step_time_s"]) == (
        base["step_time_s"],
        candidate["step_time_s"],
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_tells_the_number_that_the_answer_is_made_of(tmp_path, device):
    case = fake.case(device=device, backend={"cpu": "gloo", "cuda": "nccl"}[device])
    launch = fake.launch(case, lengths(0.04))
    results = fake.write(tmp_path / "a.db", [launch])
    (number,) = numbers(results, select_session(results, None))["step_s"]
    assert outcome(launch) == f"{milliseconds(number)} per step"
    median = float(np.median(launch.step_times()))
    assert (number == pytest.approx(median, rel=0.05)) == (device == "cuda")
