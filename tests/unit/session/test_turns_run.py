"""A session whose cases take turns in shared launches."""

import random

import pytest

from answers_helpers import of_launches
from fake_launch import FakeLauncher, run_fake
from parabench.analysis.session import select_session, session_data
from parabench.errors import UsageError
from parabench.session.request import Request
from parabench.signals import STOPPED
from parabench.store.record import TWIN_REPETITION, Failure, Status
from parabench.store.results import load

SUITE = '''"""Which is fastest?"""
from parabench import sweep
CASES = [sweep(strategy="ddp", bucket_mib=(1, 4, 25), world_size=2), sweep(strategy="fsdp", world_size=2)]
'''


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SUITE)

    def run_it(launch, **more):
        given = {"launches": 3, "steps": 5, "rounds": 4, "out": tmp_path / "out", "argv": ["parabench", "run", "x"]}
        asked = Request.of(suite=str(path), **{**given, **more})
        return run_fake(asked, launch)

    return run_it


def noisy(number):
    """Launches that differ by 30%."""
    return 1 + 0.3 * (number % 4) / 3


def test_shared_launch_removes_variance_between_launches(run, tmp_path):
    fake = FakeLauncher(lambda case: 0.010 if case.bucket_mib == 4 else 0.0102, level=noisy)
    code, said = run(fake)
    assert code == 0
    assert "Fastest: ddp native 4 MiB, 2 ranks" in said
    # The reference, each case once by itself, then all together three times.
    assert [len(spec.cases) for spec in fake.specs] == [1, 1, 1, 1, 1, 4, 4, 4]
    seen = session_data(load(tmp_path / "out" / "results.db"))
    (answer,) = of_launches(seen.numbers)
    assert answer.launches == 12
    assert answer.slower[0].slower == pytest.approx(0.02, abs=1e-6)
    assert not answer.tied


@pytest.mark.parametrize("alone", [True, False])
def test_failed_case_runs_alone_from_then_on(run, tmp_path, alone):
    class Failing(FakeLauncher):
        def _train_case(self, spec, place):
            fails = spec.cases[place].strategy == "fsdp" and (alone or len(self.specs) > 5)
            self.failing = {"fsdp": (Status.CRASHED, Failure("ended by SIGKILL", 1, "SIGKILL"))} if fails else {}
            return super()._train_case(spec, place)

    fake = Failing()
    code, said = run(fake)
    assert code == 1
    assert "crashed: rank 1: ended by SIGKILL" in said
    sizes = [3, 1, 3, 1, 3, 1] if alone else [4, 3, 3, 1, 3, 1]
    assert [len(spec.cases) for spec in fake.specs[5:]] == sizes
    table = session_data(load(tmp_path / "out" / "results.db")).cases.set_index("strategy")
    assert table.loc["fsdp", "status"] == ("crashed" if alone else "1 ok, 3 crashed")
    assert set(table.loc["ddp", "status"]) == {"ok"}


def test_resume_runs_only_the_remaining_launches(run, tmp_path):
    assert run(FakeLauncher(interrupt_at=6))[0] == STOPPED
    again = FakeLauncher()
    assert run(again, resume=True)[0] == 0
    assert [len(spec.cases) for spec in again.specs] == [4, 4]
    launch = load(tmp_path / "out" / "results.db").launch
    assert not launch.duplicated(["case_id", "repetition"]).any()
    assert len(launch) == 1 + 4 * 4


def test_shared_launch_has_a_deadline_from_its_cases(run):
    fake = FakeLauncher(lambda case: 1.0)
    run(fake)
    alone = fake.specs[1].protocol
    took = 1.0 * (alone.all_steps - alone.after) + 0.1
    shared = [spec for spec in fake.specs if spec.protocol.takes_turns]
    steps = shared[0].protocol.all_steps
    assert [spec.deadline_s for spec in shared] == [pytest.approx(10 * 4 * (took + 1.01 * steps))] * 3


def test_self_check_shows_the_noise_floor(run, tmp_path):
    fake = FakeLauncher(lambda case: 0.010 if case.bucket_mib == 4 else 0.0102, level=noisy)
    code, said = run(fake, aa_test=True)
    assert code == 0
    assert "Fastest: ddp native 4 MiB, 2 ranks" in said
    assert "Two copies of ddp native 1 MiB, 2 ranks differed by 0.0% (95%: no spread) in 3 shared launches." in said
    assert [spec.cases[-1].bucket_mib for spec in fake.specs[5:]] == [1, 1, 1]
    seen = session_data(load(tmp_path / "out" / "results.db"))
    assert seen.numbers["repetition"].eq(TWIN_REPETITION).sum() == 3
    assert set(seen.cases["n_launches"]) == {4}
    (answer,) = of_launches(seen.numbers)
    assert answer.launches == 12


class Racing(FakeLauncher):
    """Two cases are close, and two are much slower. The noise of every launch is independent."""

    def __init__(self, sd=0.01, **more):
        super().__init__(**more)
        self.lot, self.sd = random.Random(0), sd
        truth = {1.0: 0.0100, 4.0: 0.0101}
        self.step_s = lambda case: truth.get(case.bucket_mib, 0.020) * self.lot.lognormvariate(0, self.sd)


def shared(fake):
    return [spec for spec in fake.specs if spec.protocol.takes_turns]


def test_racing_ends_when_the_winner_is_clear(run, tmp_path):
    fake = Racing()
    code, said = run(fake, launches=None, rounds=None, steps=None)
    assert code == 0
    sizes = [len(spec.cases) for spec in shared(fake)]
    assert sizes[:3] == [4, 4, 2]
    assert set(sizes[2:]) <= {1, 2}
    assert "2 of 4 configurations remain, ±" in said
    assert "Eliminated: 2 configurations by repetition 3, " in said
    plan = select_session(load(tmp_path / "out" / "results.db")).plan
    assert len(plan["extra"]) == len(sizes) - 2
    # Separate launches are short. In shared launches, the turns of all cases take about equally long.
    assert (plan["protocol"]["warmup"], plan["protocol"]["steps"]) == (3, 6)
    first = shared(fake)[0]
    timed = {case.bucket_mib: own for case, own in zip(first.cases, first.protocol.timed, strict=True)}
    assert timed[1] == timed[4] == 5
    assert {timed[25], timed[None]} <= {2, 3}
    assert all(spec.protocol.rounds > 1 for spec in shared(fake))


def test_racing_ends_with_its_budget_and_is_resumed(run, tmp_path):
    code, said = run(Racing(), launches=None, rounds=None, budget=0.00001)
    assert code == 0
    assert "racing ends after" in said
    again = Racing(sd=0.001)
    code, said = run(again, launches=None, rounds=None, resume=True)
    assert code == 0
    assert len(shared(again)) >= 1
    assert "[reference]" not in said


def test_number_of_launches_disables_racing(run, tmp_path):
    fake = Racing()
    run(fake, rounds=None)
    assert shared(fake) == []
    with pytest.raises(UsageError, match="--budget is the time for racing"):
        run(Racing(), rounds=None, budget=1.0, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()
    only = Racing()
    run(only, launches=None, rounds=None, axes=("strategy=ddp", "bucket_mib=4"), out=tmp_path / "one")
    assert len(only.specs) == 1 + 3
