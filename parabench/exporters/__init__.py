"""What other tools read: each format by its name, and the function that makes it of a session.

An exporter is a function of a session, `SessionData`, that returns what its file holds (`str`), or a folder's files by
name (`{name: bytes}`); whoever calls it writes them. One that hands a session to a service takes a place besides, and
returns what to tell. A user's own is `package.module:name`, or an entry point of the group `parabench.exporter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parabench.errors import UsageError
from parabench.registry import Entry, find, load, users_code

if TYPE_CHECKING:
    from parabench.analysis.session import SessionData

KIND = "exporter"
# Text of one file, files of a folder, or lines that tell what was handed over.
Content = str | Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter(Entry):
    """A format. `place` is where it goes when nobody says; `service`: it is handed over, not written."""

    place: str
    service: bool = False


EXPORTERS = {
    "bencher": Exporter(
        target="parabench.exporters.bencher:render",
        summary="Bencher Metric Format, for `bencher run --adapter json --file`.",
        place="bencher.json",
    ),
    "github": Exporter(
        target="parabench.exporters.github:render",
        summary="customSmallerIsBetter of github-action-benchmark.",
        place="github-benchmark.json",
    ),
    "pytorch": Exporter(
        target="parabench.exporters.pytorch:render",
        summary="PyTorch's benchmark schema v3, as hud.pytorch.org reads it.",
        place="pytorch-benchmark.json",
    ),
    "openmetrics": Exporter(
        target="parabench.exporters.openmetrics:render",
        summary="OpenMetrics text, for node exporter's textfile collector and Pushgateway.",
        place="parabench.prom",
        package="prometheus_client",
    ),
    "parquet": Exporter(
        target="parabench.exporters.parquet:tables",
        summary="A folder of Parquet tables: cases, launches and samples.",
        place="parquet",
        package="pyarrow",
    ),
    "mlflow": Exporter(
        target="parabench.exporters.mlflow:log",
        summary="MLflow: a run for the session with its report, and one for each case.",
        place="",
        package="mlflow",
        service=True,
    ),
}


def exporter_of(name: str) -> tuple[Exporter | None, Callable[..., Any]]:
    """The format's entry, None of a user's own, and its function.

    Raises UsageError for an unknown name, for a package that is not installed, and for what is no function.
    """
    entry = find(EXPORTERS, KIND, name)
    if entry and entry.missing:
        raise UsageError(f"--{name} needs {entry.missing}, which is not installed: pip install {entry.missing}")
    function = load(EXPORTERS, KIND, name)
    if not callable(function):
        raise UsageError(f"{KIND} {name!r} is {type(function).__name__}; it must be a function of a session")
    return entry, function


def content_of(name: str, function: Callable[..., Any], seen: SessionData) -> Content:
    """What an exporter makes of a session. Raises UsageError where a user's own fails or returns something else."""
    if name in EXPORTERS:
        made: Content = function(seen)
        return made
    with users_code(f"{KIND} {name!r} failed"):
        own = function(seen)
    if isinstance(own, str) or (isinstance(own, Mapping) and all(isinstance(each, bytes) for each in own.values())):
        return own
    raise UsageError(f"{KIND} {name!r} returned {type(own).__name__}; it must return text, or bytes by file name")
