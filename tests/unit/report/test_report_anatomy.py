"""The sections that take a step apart, on steps whose every second is known."""

import json

import pytest

import fake_collectives
import fake_results as fake
from fake_results import step
from page_helpers import drawn, made
from parabench.analysis.session import session_data
from parabench.analysis.step.calls import alone_table, training_bandwidth
from parabench.report.sections.calls import bandwidth_section, bucket_section
from parabench.report.sections.step import nccl_section, parts_section, shares_section, straggler_section
from parabench.report.sections.timeline import timeline_section
from parabench.store.record import EXPLAIN_REPETITION, MIB

MAKERS = (parts_section, shares_section, timeline_section, bucket_section, bandwidth_section, straggler_section)


class Shown:
    """The sections of the newest session, without the page around them."""

    def __init__(self, results):
        seen = session_data(results)
        self.cases = list(seen.cases["case_id"])
        self.sections = made(seen, *MAKERS)

    def text(self, name):
        """What a reader reads of a section, but for its tables."""
        section = self.sections[name]
        if not section.panels and not section.tables:
            return section.empty
        return " ".join([section.lead, section.caption, section.reading, *(panel.title for panel in section.panels)])

    def rows(self, name):
        return self.sections[name].tables[0].rows

    def figure(self, name, at=0):
        return json.loads(drawn(self.sections[name].panels[at]).to_json())

    def traces(self, name, at=0):
        return {trace["name"]: trace for trace in self.figure(name, at)["data"] if trace.get("name")}


def shown(tmp_path, *launches):
    return Shown(fake.write(tmp_path / "r.db", launches))


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    """Two launches of 10 s steps, and a faster FSDP with one."""
    launches = [
        step(step(fake.launch(fake.case(), 8.0, repetition=repetition)), 26, longer=1.0) for repetition in range(2)
    ]
    fsdp = step(fake.launch(fake.case(strategy="fsdp"), 5.0), name="all_gather")
    return Shown(fake.write(tmp_path_factory.mktemp("ddp") / "r.db", [*launches, fsdp]))


def test_anatomy_has_parts_and_overlapped_communication(ddp):
    assert len(ddp.sections["anatomy"].panels) == 1
    # FSDP is first: data takes 1 s, compute 7, exposed communication 1.5, idle 0.5. 3 s of the 4.5 s of calls overlap.
    assert ddp.sections["anatomy"].lead == (
        "fsdp native, 2 ranks: 15% of a step (1,500 ms) is exposed communication; 67% "
        "of the communication is overlapped with compute."
    )
    assert list(ddp.rows("anatomy")[0]) == [
        "fsdp native, 2 ranks", "15%", "1,500", "3,000", "7,000", "500", "1,000", "2.00",
    ]  # fmt: skip


def test_shares_follow_one_another_and_overlapped_ends_at_exposed(ddp):
    bars = ddp.traces("anatomy")
    assert [(name, bar["base"][0], bar["x"][0]) for name, bar in bars.items()] == [
        ("data", 0, 1000), ("compute", 1000, 7000), ("exposed communication", 8000, 1500), ("idle", 9500, 500),
        ("overlapped (inside compute)", 5000, 3000),
    ]  # fmt: skip
    hover = bars["compute"]["hovertext"][0]
    assert hover.startswith("compute: 7,000 ms, 70% of the step<br><b>fsdp native, 2 ranks</b>")
    every = ddp.figure("anatomy")["data"]
    assert every[-1]["text"] == [" 15%", " 14%"]
    assert {tuple(trace["customdata"]) for trace in every} == {tuple(ddp.cases)}


def test_step_parts_are_stacked_with_their_shares(tmp_path):
    pipeline = fake.case(strategy="pp", microbatches=4)
    found = shown(tmp_path, fake.launch(fake.case(), 5.0), fake.launch(pipeline, 10.0))
    bars, layout = found.traces("parts"), found.figure("parts")["layout"]
    assert [(name, bar["x"]) for name, bar in bars.items()] == [
        ("data", [250, 500]), ("forward", [1500, None]), ("backward", [2750, None]),
        ("forward and backward", [None, 8500]), ("optimizer", [500, 1000]),
    ]  # fmt: skip
    assert bars["backward"]["hovertext"][0].startswith("backward: 2,750 ms, 55% of the step<br><b>ddp")
    assert layout["barmode"] == "stack"
    assert layout["yaxis"]["ticktext"] == ["ddp native, 2 ranks", "pp 1f1b microbatches 4, 2 ranks"]


def test_overlapped_is_a_lower_bound_in_text_when_an_end_is_unknown(tmp_path):
    launch, other = (fake.launch(fake.case(strategy="pp", world_size=2), 8.0) for _ in range(2))
    (tmp_path / "both").mkdir()
    for rank in range(2):
        calls = [{"op": "send", "start_s": 4.0, "duration_s": None}, {"op": "recv", "start_s": 5.0, "duration_s": 2.0}]
        more = [{"op": "broadcast", "start_s": 5.0, "duration_s": 2.0}]
        fake.instrumented(launch, 25, rank, waits=[(6.0, 7.0)], calls=calls)
        fake.instrumented(other, 25, rank, waits=[(6.0, 7.0)], calls=[*calls, *more])
    found = shown(tmp_path, launch)
    assert "at least 0.0% of the communication is overlapped with compute" in found.text("anatomy")
    assert "≥ 0" in found.rows("anatomy")[0]
    overlapped = found.traces("anatomy")["overlapped (inside compute)"]
    assert overlapped["hovertext"][0].startswith("overlapped: ≥ 0 ms")
    both = shown(tmp_path / "both", other)
    assert "at least 50% of the communication is overlapped" in both.text("anatomy")
    assert "≥ 1,000" in both.rows("anatomy")[0]
    ticks = found.traces("timeline")["end unknown"]
    assert (ticks["x"], ticks["mode"]) == ([4000, 4000], "markers")
    assert "end unknown" in ticks["hovertext"][0]
    assert "No collective of several ranks was recorded" in found.text("bandwidth")
    assert "buckets" not in found.sections


def test_exposed_is_unknown_when_no_call_was_recorded(tmp_path):
    unseen = fake.instrumented(fake.launch(fake.case(strategy="layer_split"), 8.0), 25)
    apart = fake.instrumented(fake.launch(fake.case(strategy="local_only"), 9.0), 25)
    found = shown(tmp_path, unseen, apart)
    assert [row[:3] for row in found.rows("anatomy")] == [
        ("layer_split, 2 ranks", "unknown", "–"),
        ("local_only, 2 ranks (baseline, not ranked)", "0.0%", "0"),
    ]


def test_timeline_shows_the_median_step(tmp_path):
    launch = fake.launch(fake.case(), 8.0)
    for number, longer in ((25, 0.0), (26, 5.0), (27, 1.0)):
        step(launch, number, late=0.5, longer=longer)
    found = shown(tmp_path, launch)
    assert "ddp native, 2 ranks: 11,000 ms" in found.text("timeline")
    bars = found.traces("timeline")
    assert (bars["backward"]["base"], bars["backward"]["x"]) == ([3000, 3500], [7000, 7000])
    assert (bars["blocked"]["base"], bars["blocked"]["x"]) == ([7000, 7500], [2000, 2000])
    calls = bars["all_reduce"]
    assert (calls["base"], calls["x"]) == ([4000, 5000, 4500, 5500], [3000, 3500, 3000, 3500])
    assert calls["text"][:2] == ["bucket 0, 2.0 MiB", "bucket 1, 1.0 MiB"]
    assert calls["hovertext"][0] == (
        "rank 0: all_reduce by native, ranks 0-1, bucket 0<br>2.00 MiB in 3,000 ms,<br>from 4000.00 ms"
    )
    assert bars["bucket ready"]["x"] == [3250, 4250, 3750, 4750]
    # Overlapping calls have separate rows below their rank's parts, and above the next rank.
    first, second, later = calls["y"][0], calls["y"][1], bars["backward"]["y"][1]
    assert bars["backward"]["y"][0] < first < second < later < calls["y"][2]
    assert found.figure("timeline")["layout"]["yaxis"]["ticktext"] == ["rank 0", "calls", "rank 1", "calls"]


def test_buckets_are_drawn_from_the_start_of_backward(ddp):
    bars = ddp.traces("buckets")
    # Backward begins at 3: bucket 0 is ready at 0.25, reduced from 1 to 4, bucket 1 from 2 to 5.5, exposed from 4 on.
    assert (bars["overlapped"]["base"], bars["overlapped"]["x"]) == ([1000, 2000], [3000, 2000])
    assert bars["exposed"]["x"] == [0, 1500]
    assert bars["exposed"]["base"][1] == 4000
    assert bars["ready"]["x"] == [250, 1250]
    assert len(ddp.sections["buckets"].panels) == 1
    assert "0: 2.0 MiB" in ddp.figure("buckets")["layout"]["yaxis"]["ticktext"]


def test_bandwidth_is_compared_within_measured_sizes(tmp_path):
    launch = fake.launch(fake.case(), 8.0)
    for rank in range(2):
        sizes = [(1.0, MIB), (3.0, 2 * MIB), (5.0, 3 * MIB), (7.0, 64 * MIB)]
        calls = [{"start_s": at, "duration_s": 1.0, "bytes": size} for at, size in sizes]
        calls.append({"op": "broadcast", "start_s": 9.0, "duration_s": 1.0, "bytes": MIB})
        fake.instrumented(launch, 25, rank, calls=calls)
    # Alone a MiB takes half a second and 4 MiB take one, so bandwidth doubles over two doublings of the size.
    alone = fake_collectives.case(min_bytes=MIB, max_bytes=4 * MIB, world_size=2)
    fake_collectives.write(tmp_path / "r.db", fake_collectives.sweep([alone], lambda _, n: {1: 0.5, 4: 1.0}[n // MIB]))
    results = fake.write(tmp_path / "r.db", [launch])
    seen = session_data(results)
    table = training_bandwidth(seen, alone_table(results)).set_index(["op", "bytes"])
    reduced = table.loc["all_reduce"]
    one = 2 * MIB / 1e9  # 1 MiB in half a second; the factor of two ranks is 1
    assert reduced["alone"].tolist()[:3] == pytest.approx([one, 1.5 * one, one * (1 + 0.792481250)])
    assert reduced["share"].tolist()[:3] == pytest.approx([0.5, 2 / 3, 1.5 / 1.79248125])
    assert reduced["why"].tolist() == ["", "", "", "measured from 1 MiB to 4 MiB"]
    assert table.loc["broadcast"]["why"].tolist() == ["not measured"]
    assert table["alone"].isna().tolist() == [False, False, False, True, True]
    found = Shown(results)
    drawn = found.traces("bandwidth")
    assert drawn["native, microbenchmark"]["x"] == [MIB, 4 * MIB]
    assert (drawn["native"]["mode"], drawn["native"]["x"][-1]) == ("markers", 64 * MIB)


def test_figures_and_rows_have_ids_of_their_configurations(ddp):
    fsdp, own = ddp.cases
    assert [panel.case for panel in ddp.sections["timeline"].panels] == [fsdp, own]
    assert [panel.case for panel in ddp.sections["buckets"].panels] == [own]
    assert ddp.sections["anatomy"].tables[0].cases == (fsdp, own)
    assert set(ddp.sections["timeline"].tables[1].cases) == {own}
    assert ddp.sections["buckets"].tables[0].cases == (own, own)
    # FSDP gathers and DDP reduces, so each figure shows one of them.
    tied = [trace["customdata"] for at in range(2) for trace in ddp.figure("bandwidth", at)["data"]]
    assert [set(ids) for ids in tied] == [{own}, {fsdp}]
    assert "run `parabench collectives` with the same --out folder" in ddp.text("bandwidth")


# -- NCCL ----------------------------------------------------------------------------------------------------------

NCCL = fake.case(device="cuda", backend="nccl")
TOLD = {
    "version": "2.27.5+cuda12.9", "network": "IB", "channels": {"coll": 24, "p2p": 32}, "transports": {"P2P/CUMEM": 2},
    "choices": [
        {"op": "all_reduce", "bytes": 4, "algorithm": "tree", "protocol": "ll", "channels": 1, "calls": 3},
        {"op": None, "bytes": 26_214_400, "algorithm": "ring", "protocol": "simple", "channels": None, "calls": 1},
    ],
}  # fmt: skip
NOTHING = {
    "version": None, "network": None, "channels": {}, "transports": {"P2P/CUMEM": 1}, "choices": [],
}  # fmt: skip


def nccl(folder, *launches):
    return nccl_section(session_data(fake.write(folder / "r.db", launches)))


def test_nccl_section_has_choices_and_connections(tmp_path):
    logs = [{"rank": 0, **TOLD}, {"rank": 1, **NOTHING}]
    found = nccl(
        tmp_path, fake.launch(NCCL, 99.0, repetition=EXPLAIN_REPETITION, facts={"nccl": logs}), fake.launch(NCCL)
    )
    (table,) = found.tables
    assert [row[1:] for row in table.rows] == [
        ("all_reduce", "tree", "ll", "4", "1", "3"),
        ("unknown", "ring", "simple", "26,214,400", "–", "1"),
    ]
    assert found.lead == ("NCCL 2.27.5+cuda12.9: network IB; channels 24 coll, 32 p2p; connections 3 P2P/CUMEM.")


def test_nccl_section_lists_the_inspectors_operations(tmp_path):
    op = {"op": "all_reduce", "bytes": 1024, "ranks": 2, "calls": 3, "duration_s": 1e-5}
    files = [{"file": "a.log", "ops": [op | {"algbw_bytes_per_s": 1e9, "busbw_bytes_per_s": 2e9}]}]
    found = nccl(tmp_path, fake.launch(NCCL, facts={"nccl_inspector": files}))
    assert found.tables[0].rows[0][1:] == ("all_reduce", "1,024", "2", "3", "10.0", "1.00", "2.00")


def test_nccl_section_is_absent_without_a_record(tmp_path):
    assert nccl(tmp_path, fake.launch(fake.case())) is None
