from __future__ import annotations

import math

import fake_results as fake
import pytest

from parabench.analysis.frames import launch_table
from parabench.analysis.memory import FORMULAS, PARTS, state_table
from parabench.analysis.session import select_session
from parabench.family import STRATEGIES
from parabench.record import MIB

# K = 12 MiB, of which tensor parallel splits 8 and FSDP's root unit has 2 (fake.SIZES); parameters, gradients and
# optimizer state in MiB on the rank that holds most.
THEORY = {
    ("single", 1): (12, 12, 24),
    ("ddp", 4): (12, 12, 24),
    ("local_only", 4): (12, 12, 24),
    ("zero1", 4): (12, 12, 6),
    ("zero2", 4): (15, 3, 6),
    ("fsdp", 2): (8, 6, 12),
    ("fsdp", 4): (5, 3, 6),
    ("hsdp", 4): (8, 6, 12),
    ("tp", 2): (8, 8, 16),
    ("tp", 4): (6, 6, 12),
    ("tp_ddp", 4): (8, 8, 16),
    ("tp_fsdp", 4): (6, 4, 8),
    ("pp", 4): (3, 3, 6),
    ("layer_split", 2): (6, 6, 12),
    ("parameter_server", 4): (12, 12, 24),
    ("parameter_server_async", 4): (24, 12, 24),
}
OPTIONS = {"hsdp": {"ranks_per_node": 2}, "tp_ddp": {"tp_size": 2}, "tp_fsdp": {"tp_size": 2}}


def states(results):
    return state_table(launch_table(results, select_session(results)), results.sample)


def held(of, **more):
    return fake.tell(of, **dict.fromkeys(PARTS, 4.0 * MIB) | more)


@pytest.mark.parametrize(("strategy", "world_size"), THEORY)
def test_the_formula_of_each_strategy(tmp_path, strategy, world_size):
    one = fake.case(strategy=strategy, world_size=world_size, **OPTIONS.get(strategy, {}))
    (row,) = states(fake.write(tmp_path / "r.db", [held(fake.tell(fake.launch(one), fake.SIZES))])).to_dict("records")
    assert [row[f"{part}_theory"] / MIB for part in PARTS] == pytest.approx(list(THEORY[strategy, world_size]))
    assert row["theory"] == sum(row[f"{part}_theory"] for part in PARTS)
    assert row["ratio"] == pytest.approx(12 / sum(THEORY[strategy, world_size]))
    assert row["exact"] == (strategy not in ("pp", "layer_split"))


def test_every_strategy_of_ours_has_a_formula_that_was_checked():
    own = {name for name, entry in STRATEGIES.items() if entry.package is None}
    assert own == {*FORMULAS}
    assert {name for name, _ in THEORY} == own - {"dp"}


def test_the_rank_that_holds_most_stands_for_the_case(tmp_path):
    """Its parts, not each part's largest over ranks: rank 0 has more parameters, rank 1 more of all together."""
    one = fake.launch(fake.case())
    held(one, parameter_bytes=[9.0, 8.0], gradient_bytes=[1.0, 8.0], optimizer_bytes=[1.0, 8.0])
    (row,) = states(fake.write(tmp_path / "r.db", [one])).to_dict("records")
    assert ([row[part] for part in PARTS], row["measured"]) == ([8.0, 8.0, 8.0], 24.0)


def test_where_theory_is_unknown_it_is_null(tmp_path):
    """A user's own strategy, DeepSpeed's, and a launch that did not tell the sizes that its formula needs."""
    own = fake.tell(fake.launch(fake.case(strategy="my.module:ddp")), fake.SIZES)
    theirs = fake.tell(fake.launch(fake.case(strategy="deepspeed1")), fake.SIZES)
    silent = fake.launch(fake.case())
    rootless = fake.tell(fake.launch(fake.case(strategy="fsdp")), {"model": {"bytes": 12}})
    table = states(fake.write(tmp_path / "r.db", [held(one) for one in (own, theirs, silent, rootless)]))
    assert len(table) == 4
    assert table["theory"].isna().all()
    assert table["ratio"].isna().all()
    assert (table["measured"] == 12 * MIB).all()
    formulas = dict(zip(table["strategy"], table["formula"], strict=True))
    assert formulas["fsdp"] == "E + 4K/n"
    assert not isinstance(formulas["my.module:ddp"], str)


def test_a_store_without_these_numbers_or_with_one_unknown_has_no_row(tmp_path):
    assert states(fake.write(tmp_path / "old.db", [fake.launch(fake.case())])).empty
    partly = held(fake.launch(fake.case()), optimizer_bytes=math.nan)
    partly.samples = [s._replace(value=None) if s.metric == "optimizer_bytes" else s for s in partly.samples]
    assert states(fake.write(tmp_path / "r.db", [partly])).empty
