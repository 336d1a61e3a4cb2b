"""The command that a report gives for a case measures that case, and nothing else."""

import shlex

import pytest

from parabench.analysis.session import Session
from parabench.cli import main
from parabench.commands.run import flags_of, run
from parabench.machine.machine import Machine
from parabench.plan.suite import load_suite, shipped
from parabench.report.rerun import rerun_of
from parabench.session.request import Request, plan_training

MACHINE = Machine(cores=4)


def planned(words):
    """The plan that a command line makes."""
    assert words[:2] == ["parabench", "run"]
    given = run.make_context("run", list(words[2:]), **main.context_settings).params
    axes = [*given.pop("axes"), *(f"{name}={given[name]}" for name in ("data", "model") if given[name] is not None)]
    flags = flags_of(given)
    more = {name: value for name, value in given.items() if name not in ("data", "model", "dry_run")}
    request = Request.of(argv=list(words), axes=tuple(axes), cluster=flags, **more)
    return plan_training(request, MACHINE).plan


def check(words):
    plan = planned(words)
    name = load_suite(run.make_context("run", list(words[2:]), **main.context_settings).params["suite"]).name
    known = {"id": 1, "label": None, "question": "?", "seed": 0, "started_utc": "", "finished_utc": None}
    rerun = rerun_of(Session(suite=name, argv=list(words), version="", environment={}, plan=plan.to_dict(), **known))
    for case in plan.cases:
        again = planned(shlex.split(rerun(case)))
        assert [each.id for each in again.cases] == [case.id], rerun(case)
        assert not again.skipped
        assert again.protocol == plan.protocol
    return plan, rerun


@pytest.mark.parametrize("suite", sorted(shipped()))
def test_every_case_of_every_suite_is_planned_alone(suite):
    plan, _ = check(["parabench", "run", suite, "--label", "x", "--launches", "2", "--steps", "7"])
    assert len(plan.cases) > 1


def test_rerun_keeps_options_of_the_command_line(tmp_path):
    text = tmp_path / "a, b.txt"
    text.write_text("words " * 1000)
    plan, rerun = check([
        "parabench", "run", "quick", "--data", rf"text:{tmp_path}/a\, b.txt", "--set", "seq_len=64",
        "--set=bucket_mib=0.123456,2", "--set", "precision=bf16-mixed",
        "--until-decided", "--warmup", "3", "--deadline", "90", "--out", "quick",
    ])  # fmt: skip
    ddp = next(case for case in plan.cases if case.bucket_mib == 0.123456 and case.world_size == 4)
    assert (ddp.seq_len, ddp.precision, ddp.data) == (64, "bf16-mixed", f"text:{text}")
    assert rerun(ddp) == (
        "parabench run quick --set strategy=ddp --set algorithm=native --set bucket_mib=0.123456 --set world_size=4 "
        f"--set 'data=text:{tmp_path}/a\\, b.txt' --set global_batch=8 --set seq_len=64 --set precision=bf16-mixed "
        "--launches 3 --steps 20 --warmup 3 --instrumented 4 --deadline 90.0"
    )


@pytest.mark.parametrize(
    "sweeps",
    [
        # Tied to a strategy: freed by --set.
        'sweep(strategy="ddp", bucket_mib=(1, None)), sweep(strategy="single", global_batch=16)',
        'sweep(strategy="single", global_batch=8), sweep(strategy="ddp", world_size=2, batch_per_rank=4)',
        'sweep(strategy="ddp", algorithm="ring", world_size=1), sweep(strategy="ddp", world_size=2)',
        'sweep(strategy="tp", sequence_parallel=True, world_size=2), sweep(strategy=("tp", "ddp"), world_size=2)',
        'sweep(strategy="ddp", algorithm=("native", "two_level(ring,tree)"), ranks_per_node=2, world_size=4)',
        'sweep(strategy="ddp", grad_accumulation=(1, 2), no_sync=(True, False), compile=False, world_size=2)',
        'sweep(strategy=("pp", "fsdp"), microbatches=(None, 2), schedule=("1f1b", "gpipe"), world_size=2)',
        'sweep(model=("mlp", "gpt-nano"), world_size=2)',
    ],
)
def test_a_suite_of_ones_own(tmp_path, sweeps):
    path = tmp_path / "my own.py"
    path.write_text(f'"""Which?"""\nfrom parabench import sweep\nCASES = [{sweeps}]\n')
    plan, rerun = check(["parabench", "run", "--label", "l", str(path)])
    assert rerun(plan.cases[0]).startswith(f"parabench run '{path}' ")
