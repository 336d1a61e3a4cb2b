"""Export a session to the formats of other tools.

An exporter is a function. It receives a `SessionData` and returns the text of a file, or {file name: bytes} of a
folder. If it sends the session to a service, it also receives the service's address, and returns lines to print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from parabench.errors import UsageError
from parabench.registry import Entry, find, load, users_code

if TYPE_CHECKING:
    from parabench.analysis.session import SessionData

KIND = "exporter"
# The text of a file, or the files of a folder.
Content = str | Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter(Entry):
    """An export format. `place` is its default output file or folder; empty for a service."""

    place: str


EXPORTERS = {
    name: Exporter(target=f"parabench.exporters.{target}", place=place, package=package, summary=summary)
    for name, target, place, package, summary in (
        ("bencher", "formats:bencher", "bencher.json", None,
         "Bencher Metric Format, for `bencher run --adapter json --file`."),
        ("github", "formats:github", "github-benchmark.json", None,
         "customSmallerIsBetter of github-action-benchmark."),
        ("pytorch", "formats:pytorch", "pytorch-benchmark.json", None,
         "PyTorch's benchmark schema v3, as hud.pytorch.org reads it."),
        ("openmetrics", "formats:openmetrics", "parabench.prom", "prometheus_client",
         "OpenMetrics text, for node exporter's textfile collector and Pushgateway."),
        ("parquet", "formats:parquet", "parquet", "pyarrow",
         "A folder of Parquet tables: configurations, launches and samples."),
        ("mlflow", "mlflow:export", "", "mlflow",
         "MLflow: a run for the session with its report, and one for each configuration."),
    )
}  # fmt: skip


def exporter_of(name: str) -> tuple[Exporter | None, Callable[..., Any]]:
    """Return (entry, function) of an export format. The entry of a user's own exporter is `None`.

    Raises UsageError for an unknown name, a package that is not installed, and an object that is not a function.
    """
    entry = find(EXPORTERS, KIND, name)
    if entry and entry.missing:
        raise UsageError(f"--{name} needs {entry.missing}, which is not installed: pip install {entry.missing}")
    function = load(EXPORTERS, KIND, name)
    if not callable(function):
        raise UsageError(f"{KIND} {name!r} is {type(function).__name__}; it must be a function of a session")
    return entry, function


def content_of(name: str, function: Callable[..., Any], seen: SessionData) -> Content:
    """Return what an exporter returns. Raises UsageError if a user's exporter fails or returns another type."""
    if name in EXPORTERS:
        return cast(Content, function(seen))
    with users_code(f"{KIND} {name!r} failed"):
        own = function(seen)
    if isinstance(own, str) or (isinstance(own, Mapping) and all(isinstance(each, bytes) for each in own.values())):
        return own
    raise UsageError(f"{KIND} {name!r} returned {type(own).__name__}; it must return text, or bytes by file name")
