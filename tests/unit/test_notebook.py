"""The Python API for notebooks: tables, answers and figures."""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

import fake_collectives
import fake_results as fake
import parabench
import recordings
from docs.site import from_code
from parabench import Answer, LoadedSession
from parabench.analysis import details
from parabench.analysis.compare.comparison import ALPHA, TOLERANCE
from parabench.analysis.compare.sides import ALLOWANCE
from parabench.analysis.numbers import COLUMNS
from parabench.errors import UsageError
from parabench.imports.into_store import results_of
from parabench.plan.case import DEFAULTS
from parabench.report.build import section_makers
from parabench.store.record import MIB, Finding
from paths import DOCS
from process_helpers import run_code


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a results database with two sessions; the second session is slower."""
    path = tmp_path_factory.mktemp("notebook") / "results.db"
    cases = [fake.case(bucket_mib=4.0), fake.case(bucket_mib=25.0), fake.case(strategy="single", world_size=1)]
    for label, factor in (("before", 1.0), ("after", 1.3)):
        launches = fake.sweep(cases, lambda one, of=factor: 0.04 * of * (one.bucket_mib or 30.0) ** 0.1, noise=0.001)
        for one in launches:
            if one.case.world_size > 1:
                fake.step(one)
            fake.tell(one, fake.SIZES, parameter_bytes=1.0 * MIB)
        fake.write(path, launches, label=label, interleaved={"run": "1", "side": "a" if label == "before" else "b"})
    return path


@pytest.fixture
def session(path: Path) -> LoadedSession:
    return parabench.load(f"{path}@before")


@pytest.fixture
def collectives(tmp_path: Path) -> LoadedSession:
    launches = fake_collectives.sweep([fake_collectives.case(), fake_collectives.case(algorithm="ring")], truth)
    fake_collectives.write(tmp_path / "results.db", launches)
    return parabench.load(tmp_path)


def truth(case: object, size: int) -> float:
    return 1e-3


def documented(part: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", from_code.PARTS[part](), re.MULTILINE)


def test_tables_have_exactly_the_documented_columns(session: LoadedSession, collectives: LoadedSession) -> None:
    for loaded in (session, collectives):
        assert list(loaded.steps) == documented("steps") == list(details.STEPS)
        assert list(loaded.calls) == documented("calls") == list(details.CALLS)
        assert list(loaded.memory) == documented("memory") == list(details.MEMORY)
    assert list(session.launches) == [*documented("numbers"), *DEFAULTS]
    assert documented("numbers") == list(COLUMNS)
    of_collectives = documented("numbers of collectives")
    assert of_collectives == list(collectives.launches)[-len(of_collectives) :]


def test_changing_a_table_does_not_change_the_session(session: LoadedSession) -> None:
    for name in ("launches", "steps", "calls", "memory"):
        table = getattr(session, name)
        table["launch_id"] = -1
        assert getattr(session, name)["launch_id"].min() > 0


def test_best_answers_as_the_command_does(session: LoadedSession) -> None:
    answer = session.best(by=("world_size", "bucket_mib"))
    assert str(answer).startswith("Fastest: ddp native 4 MiB, 2 ranks: ")
    assert {("2", "4"), ("2", "25")} <= set(answer.tables["by"]["names"])
    assert session.best(objective="memory", by="world_size").tables["by"]["case_id"].notna().all()
    assert go.Figure(answer.figures["Ranking"]).data


def test_best_has_the_warnings_of_the_session(tmp_path: Path) -> None:
    fake.write(tmp_path / "results.db", [fake.launch(fake.case())])
    (warning,) = parabench.load(tmp_path).best().warnings
    assert "fewer than 3 successful launches, " in warning.message


def test_best_of_collectives_has_the_bandwidth_at_each_size(collectives: LoadedSession) -> None:
    answer = collectives.best()
    assert answer.sentences[0].startswith("all_reduce, 2 ranks: ")
    assert answer.tables["operations"]["algorithms"].tolist() == [("native", "ring")]
    assert list(answer.figures) == ["all_reduce, 2 ranks"]
    assert collectives.figure("bus").layout.yaxis.title.text == "bus bandwidth (GB/s)"


def test_invalid_arguments_are_refused(path: Path, session: LoadedSession, collectives: LoadedSession) -> None:
    after = f"{path}@after"
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: session.best(objective="steptime"), "objective 'steptime' is unknown; "),
        (lambda: session.best(by="strategie"), "by 'strategie' is unknown; did you mean 'strategy'"),
        (lambda: session.best(objective="joules"), "cannot be ranked by joules"),
        (lambda: collectives.best(objective="memory"), "have no objective and no axes"),
        (lambda: collectives.best(by="strategy"), "have no objective and no axes"),
        (lambda: parabench.compare(session, f"{path}@before"), "is given twice"),
        (lambda: parabench.compare(session, after, tolerance=float("nan")), "tolerance is "),
        (lambda: parabench.compare(session, after, tolerance="2%"), "tolerance is "),  # type: ignore[arg-type]
        (lambda: parabench.compare(session, after, alpha=2), "alpha is "),
        (lambda: parabench.compare(session, collectives), "measured collectives, not training"),
        (lambda: session.figure("time"), "before has no figure 'time'; it has "),
        (lambda: session.figure("buckets", panel="no"), "panel 'no' is unknown; use one of "),
    ]
    for call, message in refused:
        with pytest.raises(UsageError) as why:
            call()
        assert message in str(why.value)


def test_compare_has_a_figure(path: Path, session: LoadedSession) -> None:
    answer = parabench.compare(session, f"{path}@after", tolerance=0.05)
    assert go.Figure(answer.figures["Change of each configuration"]).data


def test_compare_has_the_defaults_of_the_command() -> None:
    defaults = {name: each.default for name, each in inspect.signature(parabench.compare).parameters.items()}
    assert [defaults[name] for name in ("tolerance", "alpha", "between_sessions")] == [TOLERANCE, ALPHA, ALLOWANCE]


def test_figure_is_the_panel_of_the_report(session: LoadedSession) -> None:
    figure = session.figure("buckets")
    assert isinstance(figure, go.Figure)
    section = section_makers(session._data)["buckets"](session._data)
    assert section is not None
    first, second = section.panels
    assert [trace.name for trace in figure.data] == [trace.get("name") for trace in first.figure["data"]]
    assert figure.layout.xaxis.title.text == first.figure["layout"]["xaxis"]["title"]["text"]
    assert figure.layout.title.text == f"{section.title} · {first.title}"
    other = session.figure("buckets", panel=second.title)
    assert other.layout.title.text == f"{section.title} · {second.title}"


def test_section_without_a_figure_gives_the_reason(tmp_path: Path) -> None:
    fake.write(tmp_path / "results.db", [fake.launch(fake.case(), status=fake.Status.OOM)])
    with pytest.raises(UsageError, match="No launch succeeded, so nothing is drawn"):
        parabench.load(tmp_path).figure("ranking")


def test_traces_of_other_tools_have_tables_and_figures(tmp_path: Path) -> None:
    folder = recordings.write(tmp_path / "run", rank0__json=recordings.of_gpu(0), rank1__json=recordings.of_gpu(1))
    with results_of(folder, []) as results:
        loaded = parabench.load(results.path)
        assert set(loaded.calls["op"]) == {"all_reduce"}
        assert set(loaded.steps["rank"]) == {0, 1}
        assert len(loaded.figure("timeline").data) > 0
        with pytest.raises(UsageError, match="has traces or logs of other tools, not training"):
            loaded.best()


def test_figure_without_plotly_names_the_remedy(session: LoadedSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(UsageError, match="a figure object needs plotly, which is not installed: pip install plotly"):
        session.figure("timeline")


def test_answer_in_html_is_escaped_and_has_no_script() -> None:
    table = pd.DataFrame({"<b>": ["<script>alert(1)</script>"] * 30, "x": [0.123456] * 30})
    answer = Answer(("<i>a</i>\nb",), {"<u>t</u>": table}, warnings=(Finding("code", "<script>w", "advice"),))
    assert str(answer) == repr(answer) == "<i>a</i> b"
    html = answer._repr_html_()
    assert {*re.findall(r"<(\w+)", html)} == {
        "p", "ul", "li", "details", "summary", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert "&lt;script&gt;w" in html
    assert "0.1235" in html
    assert html.count("<tr") < 25


def test_answers_and_reports_import_neither_torch_nor_plotly(path: Path) -> None:
    code = (
        "import sys, parabench\n"
        "assert not {'torch', 'pandas', 'numpy'} & {*sys.modules}\n"
        f"session = parabench.load({f'{path}@before'!r})\n"
        "session.best()._repr_html_(), session.launches, session.steps, session.calls, session.memory\n"
        "assert 'scipy.special' not in sys.modules\n"
        f"parabench.compare(session, {f'{path}@after'!r})\n"
        "from parabench.report.build import render\n"
        "render(session._data.results, 'before')\n"
        "assert not {'torch', 'plotly'} & {*sys.modules}\n"
        "session.figure('timeline')\n"
        "assert 'torch' not in sys.modules and 'plotly' in sys.modules"
    )
    run_code(code)


def test_api_page_has_each_public_name() -> None:
    listed = re.findall(r"^::: parabench\.(\w+)$", (DOCS / "reference/api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted({*parabench.__all__} - {"__version__"})
