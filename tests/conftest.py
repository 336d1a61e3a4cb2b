from __future__ import annotations

import pytest

from parabench.machine import Machine

pytest_plugins = ["pytester"]


@pytest.fixture
def machine() -> Machine:
    return Machine(cores=2, gpus_reason="a test has none")
