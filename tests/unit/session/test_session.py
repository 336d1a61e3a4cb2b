from dataclasses import replace

import pytest

from fake_launch import FakeLauncher
from fake_launch import run_fake as run
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.plan import Plan
from parabench.plan.protocol import Protocol
from parabench.session.request import Request
from parabench.session.resume import left_of
from parabench.session.runner import Runner
from parabench.store.record import REFERENCE_REPETITION, Failure, Status
from parabench.store.results import load

SUITE = '''"""Which is fastest?"""
from parabench import sweep
CASES = sweep(strategy="ddp", bucket_mib=(1, 4, 25), world_size=2)
'''


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SUITE)
    return str(path)


def request(suite, tmp_path, **more):
    given = {"launches": 2, "steps": 5, "out": tmp_path / "out", "argv": ["parabench", "run", "mine.py"]}
    return Request.of(suite=suite, **{**given, **more})


def test_a_run_ends_in_a_store_a_report_and_a_verdict(suite, tmp_path):
    fake = FakeLauncher(lambda case: 0.010 if case.bucket_mib == 4 else 0.020)
    code, said = run(request(suite, tmp_path), fake)
    assert code == 0
    assert "Fastest: ddp native 4 MiB, 2 ranks: 10.1 ms" in said
    assert "[6/6] repetition 2 of 2" in said
    assert (tmp_path / "out" / "report.html").stat().st_size > 1e6
    results = load(tmp_path / "out" / "results.db")
    assert list(results.launch["status"]) == ["ok"] * 7
    assert list(results.launch["repetition"]) == [REFERENCE_REPETITION, 0, 0, 0, 1, 1, 1]
    assert results.session["finished_utc"].notna().all()
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["report.html", "results.db"]


def test_interrupted_then_resumed_runs_nothing_twice(suite, tmp_path):
    second = FakeLauncher()
    code, said = run(request(suite, tmp_path), FakeLauncher(interrupt_at=4))
    assert code == 130
    assert f"resume with: parabench run --resume --out {tmp_path / 'out'}" in said
    assert len(load(tmp_path / "out" / "results.db").launch) == 4
    code, said = run(request(suite, tmp_path, resume=True), second)
    assert code == 0
    assert "3 of 6 launches are done" in said
    assert len(second.calls) == 3  # and no second reference
    results = load(tmp_path / "out" / "results.db")
    assert len(results.session) == 1
    assert results.launch.groupby("case_id").size().to_dict() == {
        case_id: 1 if case_id.startswith("single") else 2 for case_id in results.launch["case_id"]
    }


def test_a_finished_session_is_not_resumed_but_followed(suite, tmp_path):
    with pytest.raises(UsageError, match="no session to resume"):
        run(request(suite, tmp_path, resume=True), FakeLauncher())
    assert not (tmp_path / "out").exists()
    run(request(suite, tmp_path, label="base"), FakeLauncher())
    again = FakeLauncher()
    code, _ = run(request(None, tmp_path, resume=True, steps=None, launches=None), again)
    assert (code, again.calls) == (0, [])
    with pytest.raises(UsageError, match="--steps cannot change a session"):
        run(request(None, tmp_path, resume=True, launches=None), again)
    with pytest.raises(UsageError, match="another plan"):
        run(request(suite, tmp_path, resume=True, steps=6), again)
    # Without --resume, a session is added.
    run(request(suite, tmp_path, label="new"), again)
    assert list(load(tmp_path / "out" / "results.db").session["label"]) == ["base", "new"]


OF_SEVERAL = '''"""What would more ranks give?"""
from parabench import sweep
CASES = [sweep(strategy="ddp", model="toy", batch_per_rank=2, world_size=2)]
COMPUTE = [sweep(strategy="ddp", model="toy", batch_per_rank=2, world_size=2)]
'''


def test_resume_of_several_sessions_starts_at_the_last(tmp_path):
    path = tmp_path / "several.py"
    path.write_text(OF_SEVERAL)
    asked = request(str(path), tmp_path, axes=("batch_per_rank=4",))
    parts = asked.parts()
    assert [each.kind for each in parts] == ["compute", "training"]
    assert run(parts[-1], FakeLauncher(interrupt_at=2))[0] == 130
    (left,) = left_of(Request.of(suite=str(path), out=tmp_path / "out", argv=["parabench"], resume=True))
    with pytest.raises(UsageError, match="has another plan"):
        run(left, FakeLauncher())
    (left,) = left_of(replace(asked, resume=True, argv=["parabench", "run", "--resume"]))
    code, said = run(left, FakeLauncher(interrupt_at=0))
    assert code == 130
    assert "resume with: parabench run --resume" in " ".join(said.split())
    assert "--resume --resume" not in said
    assert run(left, FakeLauncher())[0] == 0


def test_a_full_disk_ends_in_a_line_with_the_way_on(suite, tmp_path):
    def full(spec):
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match="No space left on device; every finished launch is kept; resume with"):
        run(request(suite, tmp_path), full)


def test_wrong_training_run_is_not_ranked(suite, tmp_path):
    fake = FakeLauncher(lambda case: 0.001 if case.bucket_mib == 25 else 0.010)
    fake.loss_of = lambda case, step: 5.0 - 0.01 * step * (1.5 if case.bucket_mib == 25 else 1.0)
    code, said = run(request(suite, tmp_path), fake)
    assert code == 1
    assert "wrong: loss at step 1 is 4.985, on one device 4.99" in said
    assert "Fastest: ddp native 25" not in said


def test_without_a_reference_launches_are_kept_and_doubted(suite, tmp_path):
    fake = FakeLauncher(failing={"single": (Status.OOM, Failure("out of memory", 0))})
    _, said = run(request(suite, tmp_path), fake)
    findings = load(tmp_path / "out" / "results.db").finding
    assert (findings["code"] == "unverified").sum() == 6
    # It may have been an accident: a second try, not one before every launch.
    assert [case.strategy for case in fake.calls].count("single") == 2
    assert "Not verified against training on one device: ddp native" in said


def test_deadline_is_ten_times_the_expected_time():
    case = Case(strategy="ddp", world_size=2, device="cpu", backend="gloo")

    def deadlines(step_s, **more):
        launcher = FakeLauncher(step_s)
        protocol = Protocol(warmup=2, steps=8, instrumented=0, launches=2, **more)
        plan = Plan(cases=(case,), skipped=(), protocol=protocol, seed=0)
        Runner(plan=plan, launch=launcher, keep=lambda launch: None).run()
        return launcher.deadlines

    # The reference's deadline comes from its arithmetic, the first launch's from the reference, then its own.
    slow = deadlines(lambda case: 10.0 if case.strategy == "single" else 20.0)
    assert slow == pytest.approx([60.0, 1001.0, 2001.0])
    assert deadlines(lambda case: 0.001) == [60.0, 60.0, 60.0]
    assert deadlines(lambda case: 0.001, deadline_s=5.0) == [5.0, 5.0, 5.0]
