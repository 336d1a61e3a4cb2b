"""Reports that the tests of several files read: made once."""

from pathlib import Path

import pytest

import fake_results
from parabench.report.build import write_report


@pytest.fixture(scope="session")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rich")
    return write_report(fake_results.rich(folder / "r.db"), folder / "report.html")
