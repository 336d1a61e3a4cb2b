"""Figures of the parts of a step, on steps whose every second is known."""

from __future__ import annotations

import fake_results as fake
from page_helpers import drawn
from parabench.analysis.session import SessionData, session_data
from parabench.report.sections.step import parts_section, shares_section


def seen(folder, *launches) -> SessionData:
    return session_data(fake.write(folder / "r.db", launches))


def traces(panel):
    return {trace.name: trace for trace in drawn(panel).data if trace.name}


def test_shares_follow_one_another_and_overlapped_ends_at_exposed(tmp_path):
    ddp = fake.step(fake.launch(fake.case(), 8.0))
    fsdp = fake.step(fake.launch(fake.case(strategy="fsdp"), 5.0), name="all_gather")
    known = seen(tmp_path, ddp, fsdp)
    (panel,) = shares_section(known).panels
    bars = traces(panel)
    assert [(name, bar.base[0], bar.x[0]) for name, bar in bars.items()] == [
        ("data", 0, 1000), ("compute", 1000, 7000), ("exposed communication", 8000, 1500), ("idle", 9500, 500),
        ("overlapped (inside compute)", 5000, 3000),
    ]  # fmt: skip
    assert bars["compute"].hovertext[0].startswith("compute: 7,000 ms, 70% of the step<br><b>fsdp native, 2 ranks</b>")
    ends = drawn(panel).data[-1]
    assert (list(ends.x), list(ends.text)) == ([10_000] * 2, [" 15%"] * 2)
    cases = known.cases["case_id"].tolist()
    assert {trace.customdata for trace in drawn(panel).data} == {tuple(cases)}


def test_overlapped_is_a_lower_bound_when_an_end_is_unknown(tmp_path):
    launch = fake.launch(fake.case(strategy="pp"), 8.0)
    for rank in range(2):
        calls = [
            {"op": "send", "start_s": 4.0, "duration_s": None},
            {"op": "broadcast", "start_s": 5.0, "duration_s": 2.0},
        ]
        fake.instrumented(launch, 25, rank, waits=[(6.0, 7.0)], calls=calls)
    (panel,) = shares_section(seen(tmp_path, launch)).panels
    overlapped = traces(panel)["overlapped (inside compute)"]
    assert overlapped.hovertext[0].startswith("overlapped: ≥ 1,000 ms, 10% of the step<br>")


def test_step_parts_are_stacked_with_their_shares(tmp_path):
    pipeline = fake.case(strategy="pp", microbatches=4)
    (panel,) = parts_section(seen(tmp_path, fake.launch(fake.case(), 5.0), fake.launch(pipeline, 10.0))).panels
    bars = traces(panel)
    assert panel.figure["layout"]["barmode"] == "stack"
    assert [(name, bar.x) for name, bar in bars.items()] == [
        ("data", (250, 500)), ("forward", (1500, None)), ("backward", (2750, None)),
        ("forward and backward", (None, 8500)), ("optimizer", (500, 1000)),
    ]  # fmt: skip
    assert bars["backward"].hovertext[0].startswith("backward: 2,750 ms, 55% of the step<br><b>ddp")
    assert drawn(panel).layout.yaxis.ticktext == ("ddp native, 2 ranks", "pp 1f1b microbatches 4, 2 ranks")
