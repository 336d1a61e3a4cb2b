"""The section of what torch and NCCL say themselves, on stores whose every number is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_results as fake
from parabench.analysis.session import session_data
from parabench.report.sections import libraries
from parabench.report.spec import Section, Table
from parabench.store.record import EXPLAIN_BLOCK, MIB, Launch, Sample

NCCL = fake.case(device="cuda", backend="nccl")
TOLD: dict[str, Any] = {
    "version": "2.27.5+cuda12.9", "network": "IB", "plugin": "Loaded net plugin Libfabric (v10)", "nvls": True,
    "channels": {"coll": 24, "p2p": 32}, "rings": {"0": "0 1", "1": "1 0"}, "trees": {"0": "1/-1/-1->0->-1"},
    "transports": {"P2P/CUMEM": 2},
    "choices": [
        {"op": "all_reduce", "bytes": 4, "algorithm": "tree", "protocol": "ll", "channels": 1, "calls": 3},
        {"op": None, "bytes": 26_214_400, "algorithm": "ring", "protocol": "simple", "channels": None, "calls": 1},
    ],
}  # fmt: skip
NOTHING: dict[str, Any] = {
    "version": None, "network": None, "plugin": None, "nvls": None, "channels": {}, "rings": {}, "trees": {},
    "transports": {"P2P/CUMEM": 1}, "choices": [],
}  # fmt: skip


def section(folder: Path, *launches: Launch) -> Section | None:
    results = fake.write(folder / f"{len(list(folder.iterdir()))}.db", launches)
    return libraries.libraries_section(session_data(results))


def tables(of: Section | None) -> dict[str, Table]:
    assert of is not None
    assert all(table.closed and table.note for table in of.tables)
    return {table.title: table for table in of.tables}


def read(of: Launch, readings: dict[str, float], *, rank: int = 0, step: int = 22) -> Launch:
    """The launch, with memory readings (MiB) of one rank's instrumented step."""
    of.samples += [Sample(rank, step, "instrument", metric, value * MIB) for metric, value in readings.items()]
    return of


# -- DDP ---------------------------------------------------------------------------------------------------------------


def logged(of: Launch, forward_s: float, *, step: int = 22, communication_s: float | None = 4.0) -> Launch:
    """An instrumented step of rank 0 in which we see 2 s of forward, 3 s of backward, 4 s of communication, and what
    DDP says of it."""
    calls = [
        {"start_s": 4.0, "made_s": 4.0, "duration_s": 1.0, "bucket": 0},
        {"start_s": 6.0, "made_s": 6.0, "duration_s": 2.0, "bucket": 1},
    ]
    fake.instrumented(of, step, calls=calls)
    of.facts["ddp_logger"] = [
        {
            "rank": 0, "step": step, "iteration": 1, "forward_end_s": 3.0, "forward_s": forward_s,
            "backward_s": 3.0, "communication_s": communication_s, "overlap_s": 2.0,
        }
    ]  # fmt: skip
    return of


def test_ddp_logger_is_compared_by_medians_over_launches(tmp_path: Path) -> None:
    one = fake.case()
    shown = section(tmp_path, *(logged(fake.launch(one, block=i), at) for i, at in enumerate((1.5, 1.8, 9.0))))
    assert tables(shown)["DDP's logger and these instruments, in ms"].rows == [
        (one.label, "forward", "1,800", "2,000", "−10%", "3"),
        (one.label, "backward", "3,000", "3,000", "0.0%", "3"),
        (one.label, "communication", "4,000", "4,000", "0.0%", "3"),
    ]
    assert shown is not None
    assert "differ by at most 10% (forward of ddp native, 2 ranks: 1,800 ms and 2,000 ms)" in shown.lead


# -- memory by part ----------------------------------------------------------------------------------------------------


def test_the_resident_set_is_of_the_largest_rank_and_step_and_the_median_launch(tmp_path: Path) -> None:
    launches = []
    for block, forward in enumerate((310.0, 320.0, 390.0)):
        one = fake.launch(fake.case(), block=block)
        read(one, {"begin_rss_bytes": 290, "forward_rss_bytes": 295})  # rank 0 holds less
        read(one, {"begin_rss_bytes": 280, "forward_rss_bytes": forward - 5}, rank=1, step=22)
        read(one, {"begin_rss_bytes": 270, "forward_rss_bytes": forward}, rank=1, step=23)
        launches.append(one)
    table = tables(section(tmp_path, *launches))["Resident set after each part of a step, in MiB"]
    assert table.head == ("Case", "Begin", "Forward")
    assert table.rows == [(fake.case().label, "280", "320")]


def test_the_allocators_parts_say_how_much_of_what_was_held_no_tensor_filled(tmp_path: Path) -> None:
    one = fake.launch(NCCL)
    for rank, more in ((0, 0.0), (1, 100.0)):
        part = {"allocated_bytes": 300 + more, "reserved_bytes": 400 + more, "unused_bytes": 90.0}
        read(one, {f"backward_{name}": value for name, value in part.items()}, rank=rank)
    shown = section(tmp_path, one)
    (row,) = tables(shown)["Torch's allocator in each part of a step, in MiB"].rows
    assert row[1:] == ("backward", "400", "500", "20%", "90.0", "–")
    assert "Resident set after each part of a step, in MiB" not in tables(shown)


# -- NCCL --------------------------------------------------------------------------------------------------------------


def explaining(told: dict[str, Any] = TOLD) -> Launch:
    ranks = [{"rank": 0, **told}, {"rank": 1, **NOTHING}]
    return fake.launch(NCCL, 99.0, block=EXPLAIN_BLOCK, facts={"nccl": ranks})


def test_nccl_choices_and_connections_are_listed(tmp_path: Path) -> None:
    shown = tables(section(tmp_path, explaining(), fake.launch(NCCL)))
    assert [row[1:] for row in shown["NCCL's choices"].rows] == [
        ("all_reduce", "tree", "ll", "4", "1", "3"),
        ("unknown", "ring", "simple", "26,214,400", "–", "1"),
    ]
    (row,) = shown["How NCCL connected the ranks"].rows
    assert row[1:] == (
        "2.27.5+cuda12.9", "IB; Loaded net plugin Libfabric (v10)", "yes", "24 coll, 32 p2p", "3 P2P/CUMEM", "0 1",
        "1/-1/-1->0->-1",
    )  # fmt: skip


# -- files, and nothing at all -----------------------------------------------------------------------------------------
