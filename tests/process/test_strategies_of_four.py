"""Every strategy over every algorithm, with four ranks, computes the training that one device computes."""

from __future__ import annotations

import pytest

from strategy_groups import Group, Reports, check_group, groups, marked, train_selected


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return train_selected(request, tmp_path_factory)


@pytest.mark.parametrize("group", [marked(group) for group in groups() if group.world_size == 4])
def test_training_is_what_one_device_computes(group: Group, reports: Reports) -> None:
    check_group(group, reports)
