import pytest

import fake_results as fake
from parabench.analysis.ranking.best import closing_lines
from parabench.analysis.scaling import curves, scaling_lines
from parabench.analysis.session import session_data


def session(tmp_path, truth):
    return session_data(fake.write(tmp_path / "r.db", fake.sweep(truth, truth.__getitem__)))


def test_weak_scaling_is_the_base_step_time_over_the_ranks(tmp_path):
    """The batch of a rank stays 8: twice the ranks do twice the work, and should take the same time."""
    truth = {fake.case(strategy="single", world_size=1, global_batch=8): 0.040}
    truth |= {fake.case(world_size=n, global_batch=8 * n): t for n, t in ((2, 0.050), (4, 0.080))}
    table = curves(session(tmp_path, truth))
    assert set(table["kind"]) == {"weak"}
    assert table["world_size"].tolist() == [1, 2, 4]
    assert table["efficiency"].tolist() == pytest.approx([1, 0.8, 0.5])
    assert table["global_batch"].tolist() == [8, 16, 32]
    assert set(table["batch_per_rank"]) == {8.0}
    assert set(table["base"]) == {"single"}


def test_kinds_of_scaling_are_separate(tmp_path):
    """Both begin at one device with batch 8; each point of two ranks belongs to one kind alone."""
    single = fake.case(strategy="single", world_size=1)
    strong, weak = fake.case(world_size=2), fake.case(world_size=2, global_batch=16)
    table = curves(session(tmp_path, {single: 0.040, strong: 0.025, weak: 0.050}))
    points = table[["kind", "global_batch", "world_size"]].to_numpy().tolist()
    assert points == [["strong", 8, 1], ["strong", 8, 2], ["weak", 8, 1], ["weak", 16, 2]]
    assert table["efficiency"].tolist() == pytest.approx([1, 0.8, 1, 0.8])


SECONDS = {
    ("single", 1, 8): 0.08,
    ("ddp", 2, 8): 0.05,
    ("fsdp", 2, 8): 0.04,
    ("ddp", 2, 16): 0.1,
    ("local_only", 2, 8): 0.02,
    ("fsdp", 4, 8): 0.025,
    ("ddp", 4, 8): 0.03,
}


def test_scaling_lines_name_the_fastest_at_each_world_size(tmp_path):
    truth = {
        fake.case(strategy=name, world_size=ranks, global_batch=batch): seconds
        for (name, ranks, batch), seconds in SECONDS.items()
    }
    seen = session(tmp_path, truth)
    assert list(scaling_lines(seen)) == [
        "Strong scaling (global batch 8), throughput relative to 1 rank: 2.00 (100% of linear) of fsdp native, "
        "2 ranks; 3.20 (80%) of fsdp native, 4 ranks.",
        "Weak scaling (8 a rank), throughput relative to 1 rank: 1.60 (80% of linear) of ddp native, 2 ranks.",
    ]
    assert set(scaling_lines(seen)) <= set(closing_lines(seen))
