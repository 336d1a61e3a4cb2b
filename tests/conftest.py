from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
    """A session that was stopped ignores further stop signals, as its process is ending; a test's process goes on."""
    with signals_restored():
        yield


@pytest.fixture(autouse=True)
def quick_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power does not fail in tests, and a disk that many wait for is slow."""
    monkeypatch.setattr(database, "SYNCHRONOUS", "OFF")


# Unit tests of these run sessions. Writing a page takes half a second, and tests/unit/report tests pages.
PAGELESS = {"ab", "commands", "watching"}


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


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """`with full_disk(n)`: no file may grow beyond `n` bytes. A write comes so far and fails, as on a full disk."""

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
