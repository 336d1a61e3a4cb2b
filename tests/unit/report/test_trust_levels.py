from __future__ import annotations

from pathlib import Path

import fake_results as fake
from parabench.analysis.session import session_data
from parabench.report.sections.trust import excluded_section


def test_trust_names_weaker_levels_of_verification(tmp_path: Path) -> None:
    levels = {"exact": 1, "same_split": 2, "first_loss": 1}
    sizes = {level: range(2, 2 + count) for level, count in levels.items()}
    cases = [fake.case(verification=level, world_size=size) for level in levels for size in sizes[level]]
    seen = session_data(fake.write(tmp_path / "r.db", [fake.launch(each) for each in cases]))
    expected = "Verified at a weaker level than exact: same_split (2 cases), first_loss (1 case)."
    assert expected in excluded_section(seen).lead


def test_trust_names_no_level_if_all_cases_are_exact(tmp_path: Path) -> None:
    seen = session_data(fake.write(tmp_path / "r.db", [fake.launch(fake.case())]))
    assert "weaker" not in excluded_section(seen).lead
