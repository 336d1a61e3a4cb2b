"""DDP's logger and parabench's instruments: the spans of the same step, and a warning if they disagree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fake_results as fake
from answers_helpers import about_steps
from guard import GUARD_S
from parabench.analysis.session import SessionData, session_data
from parabench.analysis.step.ddp_log import SPANS, ddp_comparison
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import CollectiveSample, Launch, Phase, Span, Status

PROTOCOL = Protocol(warmup=2, steps=9, instrumented=2)
# The rounding of floats.
ROUNDING_S = 1e-6


def seen(path: Path, *launches: Launch) -> SessionData:
    results = fake.write(path / "r.db", launches)
    return session_data(results)


@pytest.mark.parametrize("options", [{"algorithm": "ring"}, {"grad_accumulation": 2, "no_sync": False}], ids=str)
def test_ddp_spans_agree_with_measured_spans(options: dict[str, Any], tmp_path: Path) -> None:
    case = Case(world_size=2, device="cpu", backend="gloo", bucket_mib=0.5, **options)
    launched = launch(LaunchSpec.of(case, PROTOCOL, deadline_s=GUARD_S))
    assert launched.status is Status.OK, launched.failure
    logged = launched.facts["ddp_logger"]
    # DDP counts passes that reduce. After the tenth, it logs only on request.
    assert [(each["rank"], each["step"], each["iteration"]) for each in logged] == [
        (rank, 12, 13 * options.get("grad_accumulation", 1)) for rank in range(2)
    ]
    table = ddp_comparison(seen(tmp_path, launched)).set_index(["rank", "span"])
    for each in logged:
        rank = each["rank"]
        forward, backward, communication = (table.loc[(rank, name)] for name in SPANS)
        # The measured forward includes the call of the module. DDP's other spans are slightly longer.
        if "grad_accumulation" in options:
            assert forward["ours_s"] != forward["ours_s"]
        else:
            assert 0 < forward["ddp_s"] <= forward["ours_s"] + ROUNDING_S
        assert 0 < backward["ours_s"] <= backward["ddp_s"] + ROUNDING_S
        assert communication["ours_s"] > 0
        # A callback records the end of gloo's calls, and may wait for the interpreter. A queue records it at once.
        if options.get("algorithm") == "ring":
            assert communication["ours_s"] <= communication["ddp_s"] + ROUNDING_S
        ends = [s.end_s for s in launched.spans if (s.rank, s.step) == (rank, 12) and "backward" in s.name]
        assert communication["ddp_s"] <= ends[0] - each["forward_end_s"]
        assert 0 < each["overlap_s"] <= min(each["backward_s"], each["communication_s"])


STEP = 7
CASE = fake.case(bucket_mib=1.0)


def known(**theirs: float | None) -> Launch:
    """Return a launch: forward from 0 to 30 ms, bucket calls at 50 and 90 ms, reduced at 80 and 110 ms."""
    logged = {"forward_s": 0.030, "backward_s": 0.060, "communication_s": 0.060, "overlap_s": 0.040} | theirs
    at = 100.0
    spans = [Span(0, STEP, "forward", at, at + 0.031), Span(0, STEP, "backward", at + 0.031, at + 0.111)]
    calls = [
        CollectiveSample(
            0, STEP, seq, "all_reduce", "native", 2, 4, at + made, took, Phase.INSTRUMENT, None, None,
            made_s=at + made, bucket=seq,
        )
        for seq, (made, took) in enumerate([(0.050, 0.030), (0.090, 0.020)])
    ]  # fmt: skip
    facts = {"ddp_logger": [{"rank": 0, "step": STEP, "iteration": 8, "forward_end_s": at + 0.030, **logged}]}
    return fake.launch(CASE, facts=facts, spans=spans, collectives=calls)


@pytest.mark.parametrize(
    ("theirs", "found"),
    [
        ({}, []),
        ({"communication_s": 0.071}, []),
        ({"communication_s": 0.074}, ["communication"]),
        ({"forward_s": 0.020, "backward_s": 0.090}, ["forward", "backward"]),
        ({"forward_s": None}, []),
    ],
)
def test_findings_report_both_numbers_when_they_disagree(
    theirs: dict[str, float | None], found: list[str], tmp_path: Path
) -> None:
    found_warnings = about_steps(seen(tmp_path, known(**theirs), known(**theirs)))
    assert [each.code for each in found_warnings] == ["ddp_disagrees"] * len(found)
    for each, span in zip(found_warnings, found, strict=True):
        assert f"of {span} in" in each.message
        assert each.case_id == CASE.id
    if found == ["communication"]:
        assert "74.0 ms" in found_warnings[0].message
        assert "60.0 ms" in found_warnings[0].message
