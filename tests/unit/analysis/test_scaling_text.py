"""What more ranks give, as a session's last lines say it."""

from __future__ import annotations

import fake_results as fake
from parabench.analysis.ranking.words import closing_lines
from parabench.analysis.scaling import scaling_lines
from parabench.analysis.session import session_data

SECONDS = {
    ("single", 1, 8): 0.08,
    ("ddp", 2, 8): 0.05,
    ("fsdp", 2, 8): 0.04,
    ("ddp", 2, 16): 0.1,
    ("local_only", 2, 8): 0.02,
    ("fsdp", 4, 8): 0.025,
    ("ddp", 4, 8): 0.03,
}


def session(tmp_path, chosen):
    cases = [fake.case(strategy=name, world_size=ranks, global_batch=batch) for name, ranks, batch in chosen]
    seconds = {each.id: SECONDS[key] for each, key in zip(cases, chosen, strict=True)}
    return session_data(fake.write(tmp_path / "results.db", fake.sweep(cases, lambda one: seconds[one.id])))


def test_the_fastest_at_each_world_size_is_said_of_each_kind(tmp_path):
    seen = session(tmp_path, list(SECONDS))
    assert list(scaling_lines(seen)) == [
        "Strong scaling (global batch 8), throughput by that of 1 rank: 2.00 (100 % of linear) of fsdp native, "
        "2 ranks; 3.20 (80 %) of fsdp native, 4 ranks.",
        "Weak scaling (8 a rank), throughput by that of 1 rank: 1.60 (80 % of linear) of ddp native, 2 ranks.",
    ]
    assert set(scaling_lines(seen)) <= set(closing_lines(seen))
