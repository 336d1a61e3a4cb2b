from collections.abc import Iterator
from pathlib import Path

import pytest

from parabench.machine.machine import Machine
from parabench.signals import signals_restored
from parabench.store import database

pytest_plugins = ["pytester", "browser_helpers"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="Write what test_golden.py compares with.")


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the signal handlers, because a stopped session ignores further signals until its process ends."""
    with signals_restored():
        yield


@pytest.fixture(autouse=True)
def quick_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk after each transaction."""
    monkeypatch.setattr(database, "SYNCHRONOUS", "OFF")


# Folders whose tests run sessions. Writing a page takes half a second, and tests/unit/report tests pages.
PAGELESS = {"ab", "commands", "session", "watching"}


@pytest.fixture(autouse=True)
def quick_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the pages of sessions by empty ones, except in tests with "report" in their name."""
    if request.path.parent.name in PAGELESS and "report" not in request.node.nodeid:
        from parabench.report import build

        def empty(results: object, path: Path, *_: object) -> Path:
            path.touch()
            return path

        monkeypatch.setattr(build, "write_report", empty)


@pytest.fixture
def machine() -> Machine:
    return Machine(cores=2, gpus_reason="a test has none")
