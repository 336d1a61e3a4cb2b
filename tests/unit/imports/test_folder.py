"""Folders of recordings: accepted and refused files, the results database and the page."""

import json
import pickle
import tracemalloc
from pathlib import Path

import pytest

import recordings
from command_line import parabench
from page_helpers import Page
from parabench.analysis.session import session_data
from parabench.analysis.step import recorded
from parabench.imports import read_folder
from parabench.store.results import load
from recordings import INSPECTED, dump, entry, of_gpu


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return recordings.write(
        tmp_path / "run7",
        rank0__json=of_gpu(0),
        rank1__json=of_gpu(1),
        nccl_trace_rank_0=dump(entry(1), entry(2)),
        nccl_trace_rank_1=dump(entry(1), entry(2)),
        inspector__log=f"{json.dumps(INSPECTED)}\n{json.dumps(INSPECTED)}",
        notes__txt="nothing",
    )


def test_page_shows_known_values(folder: Path, tmp_path: Path) -> None:
    done = parabench("report", "--from", folder, "-o", tmp_path / "out" / "page.html")
    assert done.exit_code == 0, done.output
    text = Page((tmp_path / "out" / "page.html").read_text()).text
    # 20 of 100 us of the step are exposed on either rank: rank 1 begins 10 us later, when no kernel computes any more.
    for sentence in (
        "run7, 2 ranks",
        "A step took 0.100 ms on its slowest rank, the median of 2 steps of 2 ranks",
        "Exposed communication is 20% of each rank's step.",
        "By the flight recorders of 2 ranks all entered and finished the same collectives",
        "NCCL's Inspector timed 1 operation",
        "1 other file in the folder",
        "parabench did not run this training",
    ):
        assert sentence in text, sentence
    assert "nan" not in text.lower().replace("nanosecond", "")
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["rank0.json", "rank1.json", "nccl_trace_rank_0", "nccl_trace_rank_1", "inspector.log", "notes.txt"]
    )


def test_bandwidth_uses_the_time_of_the_last_rank(folder: Path, tmp_path: Path) -> None:
    parabench("report", "--from", folder, "-o", tmp_path / "page.html")
    seen = session_data(load(tmp_path / "page.db"))
    (row,) = recorded.call_kinds(seen).to_dict("records")
    assert (row["op"], row["ranks"], row["bytes"], row["seen"], row["per_step"]) == ("all_reduce", "0-1", 4000, 2, 1)
    assert row["shortest_s"] == pytest.approx(30e-6)
    # 2 (n - 1) / n is 1 for two ranks.
    assert row["busbw"] == row["algbw"] == pytest.approx(4000 / 30e-6 / 1e9)
    ranks = recorded.rank_table(seen).set_index("rank")
    assert ranks.loc[0, "communication_s"] == pytest.approx(40e-6)
    assert ranks["backward_s"].isna().all()
    (row,) = recorded.flight_table(seen).to_dict("records")
    assert (row["op"], row["seen"], row["calls"], row["duration_s"]) == ("all_reduce", 2, 2, pytest.approx(1.5e-3))


def test_commands_refuse_a_session_of_recordings(folder: Path, tmp_path: Path) -> None:
    parabench("report", "--from", folder, "-o", tmp_path / "page.html")
    store = tmp_path / "page.db"
    for command in (("best", store), ("compare", store, store), ("export", "--bencher", store), ("history", store)):
        done = parabench(*command)
        assert (done.exit_code, len(done.stderr.strip().splitlines())) == (2, 1), done.output
        assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "holds no file"),
        ({"notes__txt": "nothing"}, "holds no trace, dump or log among its 1 files"),
        ({"a__json": of_gpu(0), "b__json": of_gpu(1, world_size=4)}, "are not of one training run"),
        ({"a__json": '{"traceEvents": [{'}, "cut off"),
        ({"rank_0": json.dumps(dump(entry(1)))[:-40]}, "cut off"),
        ({"rank_0": '{"pg_config": {}, "entries": [{}]}'}, "entry 0 has no operation or no group"),
        ({"rank_0": pickle.dumps(dump(entry(1)), 2)[:-40]}, "rank_0 cannot be read"),
        ({"rank0__json": {"traceEvents": [], "distributedInfo": {"rank": 4, "world_size": 2}}}, "rank 4 of 2"),
        ({"rank_0": '{"pg_config": {}, "entries": [7]}'}, "a value is missing or of another type"),
    ],
)
def test_wrong_folder_is_refused_in_one_line(tmp_path: Path, files: dict[str, object], why: str) -> None:
    made = recordings.write(tmp_path / "made", **files)
    done = parabench("report", "--from", made, "-o", tmp_path / "page.html")
    assert (done.exit_code, len(done.stderr.strip().splitlines())) == (2, 1), done.output
    assert why in done.stderr
    assert [*tmp_path.iterdir()] == [made]


def test_trace_events_are_dropped_while_the_file_is_parsed(tmp_path: Path) -> None:
    """Python objects of all events would take several times the size of the file."""
    filler = json.dumps(recordings.event("cudaLaunchKernel", "cuda_runtime", 1, 2, **{"text": "x" * 300}))
    whole = json.dumps(of_gpu())
    at = whole.index('"traceEvents": [') + len('"traceEvents": [')
    (tmp_path / "rank0.json").write_text(whole[:at] + f"{filler}, " * 100_000 + whole[at:])
    size = (tmp_path / "rank0.json").stat().st_size
    tracemalloc.start()
    try:
        (found,) = read_folder(tmp_path).recordings
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.calls) == 2
    assert most < 2.2 * size
