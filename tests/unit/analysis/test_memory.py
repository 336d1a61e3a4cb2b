import pytest

import fake_results as fake
from parabench.analysis.memory import PARTS, case_states, sentences
from parabench.analysis.ranking.best import closing_lines
from parabench.analysis.session import session_data
from parabench.store.record import MIB
from parabench.strategies import STRATEGIES

# K = 12 MiB; tensor parallel splits 8 MiB, and FSDP's root unit has 2 (fake.SIZES). Values are the parameters,
# gradients and optimizer state of the largest rank, in MiB.
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
    return case_states(session_data(results))


def held(of, **more):
    return fake.tell(of, **dict.fromkeys(PARTS, 4.0 * MIB) | more)


@pytest.mark.parametrize(("strategy", "world_size"), THEORY)
def test_formula_of_each_strategy(tmp_path, strategy, world_size):
    one = fake.case(strategy=strategy, world_size=world_size, **OPTIONS.get(strategy, {}))
    (row,) = states(fake.write(tmp_path / "r.db", [held(fake.tell(fake.launch(one), fake.SIZES))])).to_dict("records")
    assert row["theory"] / MIB == pytest.approx(sum(THEORY[strategy, world_size]))
    assert row["ratio"] == pytest.approx(12 / sum(THEORY[strategy, world_size]))
    assert row["exact"] == (strategy not in ("pp", "layer_split"))


def test_every_strategy_of_ours_has_a_formula_that_was_checked():
    own = {name for name, entry in STRATEGIES.items() if entry.package is None}
    lacking = own - {name for name, entry in STRATEGIES.items() if entry.memory}
    assert not lacking, f"strategies/__init__.py: give {sorted(lacking)} memory=..., a Formula"
    unchecked = own - {"dp"} - {name for name, _ in THEORY}
    assert not unchecked, (
        f"tests/unit/analysis/test_memory.py: give THEORY what {sorted(unchecked)} hold, counted by hand"
    )


def test_case_states_use_the_rank_with_the_most_memory(tmp_path):
    """Its parts, not each part's largest over ranks: rank 0 has more parameters, rank 1 more of all together."""
    one = fake.launch(fake.case())
    held(one, parameter_bytes=[9.0, 8.0], gradient_bytes=[1.0, 8.0], optimizer_bytes=[1.0, 8.0])
    (row,) = states(fake.write(tmp_path / "r.db", [one])).to_dict("records")
    assert ([row[part] for part in PARTS], row["measured"]) == ([8.0, 8.0, 8.0], 24.0)


def holding(mib, **fields):
    """A launch of gpt-nano whose ranks each hold that much, a quarter of it parameters; fake.SIZES are its theory."""
    quarter = mib * MIB / 4
    parts = {"parameter_bytes": quarter, "gradient_bytes": quarter, "optimizer_bytes": 2 * quarter}
    return fake.tell(fake.launch(fake.case(**fields)), fake.SIZES, **parts)


def test_sentences_compare_ranked_strategies_and_formulas(tmp_path):
    launches = [holding(48), holding(24, strategy="zero1"), holding(20, strategy="local_only")]
    seen = session_data(fake.write(tmp_path / "r.db", launches))
    found = sentences(case_states(seen))
    assert found == [
        "Smallest model states per rank: zero1 native, 2 ranks: 24.0 MiB. Largest: ddp native, 2 ranks: 48.0 MiB, 2.0 "
        "times as much. Measured memory is 0.42 to 1.00 times the formula in 3 configurations. More than 5% off the "
        "formula: local_only and zero1."
    ]
    assert set(found) <= set(closing_lines(seen))
