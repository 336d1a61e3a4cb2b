"""A store of many sessions: which of them answers and tables use."""

from __future__ import annotations

import fake_results as fake
from parabench.analysis.compare.between import MOST_SESSIONS, alike
from parabench.analysis.session import session_data
from parabench.store.record import DeviceSample, Finding
from parabench.store.results import load
from parabench.store.store import Store


def test_of_a_long_store_the_newest_sessions_of_the_suite_tell_what_sessions_differ_by(tmp_path):
    path = tmp_path / "r.db"
    case = fake.case()
    for at in range(MOST_SESSIONS + 3):
        fake.write(path, [fake.launch(case, 0.04)], label=f"s{at}")
    fake.write(path, [fake.launch(case, 0.04)], label="other", suite="another")
    results = fake.write(path, [fake.launch(case, 0.04)], label="base")
    base = session_data(results, "base")
    other = fake.write(tmp_path / "other.db", [fake.launch(case, 0.04)], label="candidate")
    found = [side.session.label for side in alike(base, session_data(other))]
    assert found == [f"s{at}" for at in range(MOST_SESSIONS + 2, 3, -1)]
    assert len(found) == MOST_SESSIONS - 1


def test_a_session_among_others_has_the_tables_that_it_has_alone(tmp_path):
    """Launches of two sessions in turns, as those of an ab: no range of launches is one session's."""
    path = tmp_path / "r.db"
    with Store.open_or_create(path) as opened:
        plan = {"cases": [], "skipped": [], "protocol": {}}
        about = {"suite": "s", "argv": [], "seed": 0, "environment": {}, "question": "", "plan": plan}
        sessions = [opened.begin_session(label=label, **about) for label in ("one", "two", "none")]
        for block in range(3):
            for at, session in enumerate(sessions[:2]):
                launch = fake.launch(fake.case(), 0.04 + 0.01 * at, block=block)
                launch.device_samples += [DeviceSample(at, 0.1, "used_bytes", 1e9)]
                launch.findings += [Finding("drift", f"It drifts in {session}.", "Wait.")]
                opened.append(session, launch)
    results = load(path)
    one, two, none, both = (results.of(sessions[at] for at in chosen) for chosen in ([0], [1], [2], [0, 1]))
    assert one.launch["id"].tolist() == [1, 3, 5]
    assert set(two.steps["step_s"]) == {0.05}
    assert two.device_sample["device"].tolist() == [1, 1, 1]
    assert one.finding["launch_id"].tolist() == [1, 3, 5]
    assert both.launch["id"].tolist() == [1, 2, 3, 4, 5, 6]
    assert both.device_sample["launch_id"].tolist() == [1, 2, 3, 4, 5, 6]
    assert len(none.launch) == len(none.steps) == len(none.finding) == 0
    assert results.of(sessions) is results
    assert one.of([sessions[1]]) is two
    assert one.whole_store is results
