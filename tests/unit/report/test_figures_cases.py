"""Figures of the answer: the ranking, and step time against memory."""

import pandas as pd
import pytest

import fake_results as fake
from page_helpers import drawn
from parabench.analysis.session import SessionData, session_data
from parabench.report.cases import page_cases
from parabench.report.sections.answer import _ranking, front_section, ranking_section
from parabench.store.record import MIB, Failure, Status

# In seconds and MiB, by strategy and ranks: the fastest needs most memory, and fsdp is beaten in both by ddp.
MEASURED = {("ddp", 4): (0.02, 60), ("ddp", 2): (0.04, 40), ("fsdp", 2): (0.06, 50), ("single", 1): (0.08, 30)}
CASES = [fake.case(strategy=name, world_size=ranks) for name, ranks in MEASURED]


def made(folder, repetitions=1) -> SessionData:
    launches = [
        fake.launch(case, seconds, repetition=repetition, peak_bytes=(mib - case.world_size + 1) * MIB)
        for repetition in range(repetitions)
        for case, (seconds, mib) in zip(CASES, MEASURED.values(), strict=True)
    ]
    failed = fake.launch(fake.case(world_size=8), status=Status.HUNG, failure=Failure("no step for 60 s"))
    return session_data(fake.write(folder / "r.db", [*launches, failed]))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return made(tmp_path_factory.mktemp("cases"))


def test_ranking_has_the_fastest_on_top_and_only_measured_cases(seen):
    (panel,) = ranking_section(seen).panels
    figure = drawn(panel)
    assert figure.layout.xaxis.title.text == "step time (ms)"
    assert figure.layout.yaxis.ticktext == tuple(seen.labels[case.id] for case in CASES)
    found = {id_: (x, y) for trace in figure.data for id_, x, y in zip(trace.customdata, trace.x, trace.y, strict=True)}
    assert [found[case.id] for case in CASES] == [pytest.approx((x, y)) for y, x in enumerate((20, 40, 60, 80))]


def test_ranking_is_relative_to_the_best_when_intervals_are_known(seen):
    own = seen.once(page_cases).iloc[:3].assign(
        compared=True, slower=[0, 0.05, 0.02], slower_low=[None, 0.01, -0.01], slower_high=[None, 0.09, 0.05],
        left_after_repetition=[None, 3, None], left_at_least=[None, 0.011, None], strategy="ddp",
    ).astype({"slower_low": float, "slower_high": float})  # fmt: skip
    figure = drawn(_ranking(pd.DataFrame(own)))
    (trace,) = figure.data
    assert trace.customdata == tuple(CASES[at].id for at in (0, 2, 1))
    assert trace.x == pytest.approx((0, 2, 5))
    assert trace.error_x.arrayminus == pytest.approx((0, 3, 4))
    assert trace.error_x.array == pytest.approx((0, 3, 4))
    assert figure.layout.yaxis.ticktext[2].endswith(" (eliminated: ≥ 1.1% slower)")
    assert trace.hovertext[1].endswith("2.0% slower than the best (95%: −1.0% to 5.0%)")


def test_front_fills_what_no_other_case_beats(tmp_path):
    (panel,) = front_section(made(tmp_path, repetitions=3)).panels
    line, *strategies = drawn(panel).data
    assert (line.name, line.meta) == ("Pareto-optimal", "all")
    assert (line.x, line.y) == (pytest.approx((20, 40, 80)), pytest.approx((60, 40, 30)))
    filled = {trace.name: [not symbol.endswith("-open") for symbol in trace.marker.symbol] for trace in strategies}
    assert filled == {"ddp": [True, True], "fsdp": [False], "single": [True]}
