import json

import pytest

from parabench.collectives.nccl import nccl_environment
from parabench.errors import UsageError
from parabench.machine.machine import Machine
from parabench.plan.case import Case
from parabench.plan.plan import Plan, make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.resolve import resolve
from parabench.plan.suite import Suite, load_suite, sweep
from parabench.plan.validate import missing_requirement
from parabench.records import declared
from parabench.strategies import OPTIONAL, STRATEGIES


def plan(machine, *sweeps, overrides=None, protocol=None, seed=0):
    suite = Suite(name="s", path=None, question="q", sweeps=sweeps, protocol=Protocol())
    return make_plan(suite, overrides or {}, protocol or Protocol(), machine, seed)


def test_axes_that_a_strategy_lacks_collapse(machine):
    cases = plan(
        machine,
        sweep(strategy=("single", "ddp", "tp"), algorithm=("native", "ring"), bucket_mib=(1, 4), world_size=2),
    ).cases
    assert [(c.strategy, c.algorithm, c.bucket_mib, c.world_size) for c in cases] == [
        ("single", "native", None, 1),
        ("ddp", "native", 1, 2),
        ("ddp", "native", 4, 2),
        ("ddp", "ring", 1, 2),
        ("ddp", "ring", 4, 2),
        ("tp", "native", None, 2),
        ("tp", "ring", None, 2),
    ]


def test_make_plan_skips_sizes_of_the_suite_that_do_not_fit(machine):
    listed = (sweep(strategy=("ddp", "tp", "pp", "dp"), world_size=(2, 4)),)
    made = plan(machine, *listed, overrides={"world_size": (2,)})
    assert {case.strategy for case in made.cases} == {"ddp", "tp", "pp"}
    made = plan(machine, *listed, overrides={"model": ("gpt-mini",)})
    assert {(case.strategy, case.world_size) for case in made.cases} == {
        ("ddp", 2), ("ddp", 4), ("tp", 2), ("pp", 2), ("pp", 4)
    }  # fmt: skip
    assert any("does not divide the 6 heads" in skipped.reason for skipped in made.skipped)
    with pytest.raises(UsageError, match="does not divide the 6 heads"):
        plan(machine, *listed, overrides={"model": ("gpt-mini",), "strategy": ("tp", "ddp")})
    with pytest.raises(UsageError, match="nothing to run; strategy dp drives"):
        plan(machine, *listed, overrides={"strategy": ("dp",), "world_size": (2,)})


def test_weak_scaling_grows_the_batch_with_the_ranks(machine):
    cases = plan(machine, sweep(strategy=("single", "ddp", "tp"), world_size=(2, 4), batch_per_rank=3)).cases
    assert [(c.strategy, c.world_size, c.global_batch) for c in cases] == [
        ("single", 1, 3), ("ddp", 2, 6), ("ddp", 4, 12), ("tp", 2, 6), ("tp", 4, 12)
    ]  # fmt: skip


def test_make_plan_skips_unavailable_cases_with_the_reason(machine):
    made = plan(machine, sweep(strategy="ddp", world_size=(2, 16), algorithm=("ring", "nccl:tree"), global_batch=16))
    assert [(case.world_size, case.algorithm) for case in made.cases] == [(2, "ring")]
    why = {(each.case.world_size, each.case.algorithm): each.reason for each in made.skipped}
    assert why[16, "ring"].startswith("world_size 16 is larger than 8, 4 ranks on each of the 2 core(s) here;")
    assert "use backend nccl" in why[2, "nccl:tree"]


def test_every_block_has_every_case_once_in_a_seeded_order(machine):
    made = plan(machine, sweep(strategy="ddp", bucket_mib=tuple(range(1, 9)), world_size=2), seed=7)
    launches = made.launches()
    assert launches == made.launches()
    assert launches != made.replace(seed=8).launches()
    orders = []
    for repetition in range(3):
        own = [each for each in launches if each.repetition == repetition]
        assert [turn.position for turn in own] == list(range(8))
        assert {turn.case for turn in own} == set(made.cases)
        orders.append([turn.case for turn in own])
    assert orders[0] != orders[1]


def test_plan_of_a_newer_version_is_refused(machine):
    made = plan(machine, sweep(strategy="ddp", world_size=2)).to_dict()
    with pytest.raises(UsageError, match="unknown field `by_magic`, written by a newer parabench; upgrade"):
        Plan.from_dict(made | {"protocol": made["protocol"] | {"by_magic": True}})
    with pytest.raises(UsageError, match="'magic' is not known to this parabench; upgrade it"):
        Plan.from_dict(made | {"kind": "magic"})


HEAD = '"""Q?"""\nfrom parabench import Protocol, sweep\n'


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "declares no CASES"),
        (f"{HEAD}PROTOCOL = Protocol(steps=2.5)", "steps is 2.5"),
        (f"{HEAD}CASES = [1]", "declares no CASES"),
        ('from parabench import sweep\nCASES = sweep(strategy="ddp")', "no docstring"),
        ("def broken(:", "SyntaxError"),
        (f"{HEAD}CASES = sweep(colour=1)", "axis 'colour' is unknown"),
        (f"{HEAD}CASES = sweep()\nPROTOCOL = 3", "PROTOCOL must be"),
        (HEAD + 'CASES = {"cpu": sweep()}', "declares no CASES; .* cpu, one_gpu, gpus"),
        (HEAD + 'CASES = {"tpu": sweep()}', "CASES has 'tpu'; give it for cpu, one"),
    ],
)
def test_an_unreadable_suite_is_named(tmp_path, source, said):
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(UsageError, match=said) as caught:
        load_suite(str(path))
    assert str(path) in str(caught.value)


def test_a_users_own_names_are_loaded_before_anything_runs(machine, tmp_path, monkeypatch):
    (tmp_path / "their_own.py").write_text("def strategy(model, context): ...\nnumber = 3\n")
    (tmp_path / "their_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    (case,) = plan(machine, sweep(strategy="their_own:strategy", world_size=2)).cases
    assert isinstance(case, Case)
    for name, said in (
        ("their_own:missing", "no attribute 'missing'"),
        ("their_broken:x", "ZeroDivisionError"),
        ("their_own:number", "must be a function"),
    ):
        for kind in ("strategy", "algorithm", "model"):
            with pytest.raises(UsageError, match=said):
                plan(machine, sweep(**{"strategy": "ddp", "world_size": 2, kind: name}))


def test_nccls_algorithms_are_pinned_by_the_ranks_environment():
    assert nccl_environment("nccl:tree") == {"NCCL_ALGO": "allreduce:tree"}
    assert nccl_environment("nccl:pat") == {"NCCL_ALGO": "reducescatter:pat;allgather:pat"}
    assert nccl_environment("native") == nccl_environment("ring") == {}


def test_levels_have_one_name_each(machine):
    given = ("two_level", "two_level(ring,ring)", "two_level(tree,ring)")
    cases = [resolve(Case(algorithm=name, world_size=4), machine) for name in given]
    assert [case.algorithm for case in cases] == ["two_level", "two_level", "two_level(tree,ring)"]
    assert {case.ranks_per_node for case in cases} == {2}


def test_a_suite_lists_them_among_sizes(machine):
    made = plan(machine, sweep(strategy=("ddp", "zero1"), bucket_mib=(None, 4, (1, 4, 25)), world_size=2))
    assert [case.bucket_mib for case in made.cases] == [None, 4.0, (1.0, 4.0, 25.0)] * 2
    assert Plan.from_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.parametrize(
    ("fields", "skipped"),
    [
        ({"bucket_mib": 0.5}, True),
        ({"bucket_mib": (0.25, 0.5)}, True),
        ({"bucket_mib": 0.5, "strategy": "fsdp"}, False),
        ({"bucket_mib": 0.5, "compile": False}, False),
        ({"bucket_mib": 1}, False),
    ],
)
def test_compile_is_skipped_when_ddps_caps_are_too_small(fields, skipped, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    case = Case(**{"world_size": 2, "strategy": "ddp", "compile": True, "device": "cpu", **fields})
    why = missing_requirement(case, Machine(cores=2))
    assert (why is not None) is skipped
    if skipped:
        assert "and the largest cap is 0.5 MiB; raise bucket_mib, or leave compile off" in why
    monkeypatch.setattr("shutil.which", lambda name: None)
    why = missing_requirement(case, Machine(cores=2))
    assert ("compile needs a C++ compiler on the CPU" in str(why)) is case.compile


# -- the table of strategies: these tests name other places that lack a new one ----------------------------------------


@pytest.mark.parametrize("field", ["splits", "color"])
def test_strategy_entries_are_complete(field):
    lacking = [name for name, entry in STRATEGIES.items() if not getattr(entry, field)]
    assert not lacking, f"strategies/__init__.py: give {', '.join(lacking)} {field}=... (see StrategyEntry)"


def test_the_suite_of_strategies_compares_all_of_them():
    compared = {name for sweep in load_suite("strategies").sweeps for name in sweep.axes["strategy"]}
    lacking = [name for name in STRATEGIES if name not in compared]
    assert not lacking, f"suites/strategies.py: add sweep(strategy={lacking}, world_size=(2, 4))"


def test_each_axis_has_a_role_or_strategies_that_have_it():
    """Without either, every strategy would be measured with each of its values, and nothing would differ."""
    roles = {name: each.field.role for name, each in declared(Case).items()}
    lacking = [name for name, role in roles.items() if not role and name not in OPTIONAL]
    assert not lacking, f"give {', '.join(lacking)} a role in plan/case.py, or add it to axes in strategies/__init__.py"
    assert not [name for name in OPTIONAL if roles[name]], "an axis of some strategies has no role"
