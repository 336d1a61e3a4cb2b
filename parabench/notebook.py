"""The Python API for notebooks: sessions as DataFrames, answers and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from parabench.analysis.answer import Answer
from parabench.analysis.compare import gate
from parabench.analysis.details import call_table, memory_table, step_table
from parabench.analysis.ranking import best
from parabench.analysis.ranking.objectives import OBJECTIVES
from parabench.analysis.session import SessionData, session_data, split
from parabench.analysis.warnings.launches import session_warnings
from parabench.errors import UsageError, needs_package, unknown
from parabench.plan.case import DEFAULTS
from parabench.records import Rate, Share, read
from parabench.report.build import section_makers
from parabench.report.figures import Panel, plain
from parabench.report.spec import Section
from parabench.report.views.collectives import full_answer
from parabench.report.views.comparison import gate_figure
from parabench.store import results

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# The layout that all figures share. In the report, `themed` in reports/script/charts/layout.js adds colors and fonts.
_AXIS = {"automargin": True, "zeroline": False}
_LAYOUT = {"template": "plotly_white", "hovermode": "closest", "margin": {"l": 8, "r": 20, "t": 8, "b": 8}}
_LEGEND = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
_TITLE_PX = 50


def load(source: str | Path = "parabench-results") -> LoadedSession:
    """Open a session of a results database.

    The tables are read when they are first used. Later changes of the database are not read.

    Args:
        source: A folder with a `results.db`, or the file. `DATABASE@SESSION` selects a session by its id or label.
            The default is the newest session.

    Raises:
        UsageError: If there is no such database or session.
    """
    path, session = split(str(source))
    return LoadedSession(session_data(results.load(path), session))


class LoadedSession:
    """A session of a results database, as `parabench.load` returns it.

    Each access to a table returns a copy. Times are in seconds, sizes in bytes, and unknown numbers are NaN.
    """

    def __init__(self, data: SessionData) -> None:
        self._data = data

    def __repr__(self) -> str:
        session = self._data.session
        return f"<{session.name} of {self._data.results.path}: {session.suite}, {session.started_utc[:16]} UTC>"

    @property
    def launches(self) -> pd.DataFrame:
        """One row per launch and configuration; for collectives, also per size, in and out of place."""
        return self._data.numbers.copy()

    @property
    def steps(self) -> pd.DataFrame:
        """One row per launch, step and rank, with the parts of the step and the loss."""
        return self._data.once(step_table).copy()

    @property
    def calls(self) -> pd.DataFrame:
        """One row per collective call of a rank: in instrumented steps, or in `parabench collectives`."""
        return self._data.once(call_table).copy()

    @property
    def memory(self) -> pd.DataFrame:
        """One row per launch and rank: the memory peaks, and the sizes of the model states."""
        return self._data.once(memory_table).copy()

    def best(self, *, objective: str = "step_time_s", by: str | Sequence[str] = ()) -> Answer:
        """Return the fastest configuration and its uncertainty, as `parabench best` does.

        Its tables are those of [`best --json`](json.md), such as `candidates`, the best first; `by`, the best for each
        value of the axes; and `front`, the Pareto-optimal configurations in step time and peak memory. Its figures are
        the ranking by step time, one for each workload.

        Args:
            objective: The number to rank by: `step_time_s`, `tokens_per_s`, `memory` or `joules`.
            by: One axis or several.

        Raises:
            UsageError: If the objective or an axis is unknown, or if the session has no number for the objective.
        """
        if objective not in OBJECTIVES:
            raise unknown("objective", objective, OBJECTIVES)
        for axis in _names(by):
            if axis not in DEFAULTS:
                raise unknown("by", axis, DEFAULTS)
        if self._data.session.kind == "collectives":
            if by or objective != "step_time_s":
                raise UsageError(f"{self._data.session.name} measured collectives, which have no objective and no axes")
            return replace(full_answer(self._data), figures=_titled(self._section("bus").panels, "Bus bandwidth"))
        self._data.session.require("training", self._data.results.path)
        found = best.best(self._data, OBJECTIVES[objective], _names(by), self._data.once(session_warnings))
        return replace(found, figures=_titled(self._section("ranking").panels, "Ranking"))

    def figure(self, name: str, *, panel: str | None = None) -> Figure:
        """Return a figure of the report as a `plotly.graph_objects.Figure`.

        Args:
            name: The section of the report that shows it, such as `ranking`, `timeline` or `memory`.
            panel: The title of one figure of the section. The default is the first one.

        Raises:
            UsageError: If the session has no such section or figure, or if plotly is not installed. The message lists
                the available names, or the reason why the figure is empty.
        """
        section = self._section(name)
        if not section.panels:
            raise UsageError(f"figure {name!r} is empty: {section.empty or 'the section has only tables'}")
        panels = {each.title: each for each in reversed(section.panels)}
        if panel is not None and panel not in panels:
            titles = [each.title for each in section.panels if each.title]
            if not titles:
                raise UsageError(f"panel {panel!r} is unknown; figure {name!r} has one panel, so leave out panel")
            raise unknown("panel", panel, titles)
        try:
            from plotly.graph_objects import Figure
        except ModuleNotFoundError:
            raise UsageError(f"a figure object {needs_package('plotly')}") from None
        chosen = section.panels[0] if panel is None else panels[panel]
        heading, own = " · ".join(filter(None, (section.title, chosen.title))), chosen.figure["layout"]
        axes = {name: _AXIS | axis for name, axis in own.items() if name[1:].startswith("axis")}
        title = {"text": plain(heading), "yref": "container", "automargin": True}
        height = chosen.height + _TITLE_PX
        if rows := own.get("meta", {}).get("rows"):  # the page shows the first of them only
            height += (12 + 16 * rows["least"]) * max(0, len(own["yaxis"]["ticktext"]) - rows["most"])
        head = {"title": title, "legend": _LEGEND | own.get("legend", {}), "height": height}
        return Figure({"data": chosen.figure["data"], "layout": _LAYOUT | own | axes | head})

    def _section(self, name: str) -> Section:
        makers = section_makers(self._data)
        made = makers[name](self._data) if name in makers else None
        if made is None:
            names = [each for each, make in makers.items() if (own := make(self._data)) and own.panels]
            raise UsageError(f"{self._data.session.name} has no figure {name!r}; it has {', '.join(names) or 'none'}")
        return made


def compare(
    base: LoadedSession | str | Path,
    candidate: LoadedSession | str | Path,
    *,
    tolerance: float = 0.02,
    alpha: float = 0.01,
    between_sessions: float = 0.05,
    changed: str | Sequence[str] = (),
) -> Answer:
    """Compare the step times of two sessions, as `parabench compare` does.

    Its tables are those of [`compare --json`](json.md): `verdict`, with one row; `sides`; `cases`; and `differences`
    between the environments. Its figure shows the change of each configuration.

    Args:
        base: A session, or a source for `parabench.load`.
        candidate: The session that is tested for a regression.
        tolerance: The smallest slowdown that counts as a regression, as a fraction.
        alpha: The false-alarm rate over all configurations together.
        between_sessions: The standard deviation between sessions of unchanged code, if the database of `base` has too
            few sessions to measure it.
        changed: Facts of the environment that differ on purpose, such as `torch`.

    Raises:
        UsageError: If the sessions have no configuration in common, or differ in a fact that affects step times.
    """
    tolerance, alpha = read(Share, tolerance, "tolerance"), read(Rate, alpha, "alpha")
    allowance = read(Share, between_sessions, "between_sessions")
    first, other = _side("base", base), _side("candidate", candidate)
    found = gate.compare(first, other, tolerance, alpha, _names(changed), allowance)
    return replace(found, figures=_titled(gate_figure(found), "Change of each configuration"))


def _side(role: str, given: LoadedSession | str | Path) -> SessionData:
    data = (given if isinstance(given, LoadedSession) else load(given))._data
    data.session.require("training", data.results.path)
    return replace(data, role=role)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _titled(panels: Sequence[Panel], title: str) -> dict[str, dict[str, Any]]:
    """Return {title: plotly's JSON}. `title` is the key of a figure without title."""
    return {panel.title or title: panel.figure for panel in panels}
