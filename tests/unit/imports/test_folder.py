"""A folder of recordings: which files it reads, what it refuses, and what becomes of them in a store and on a page."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

import hostile_helpers as hostile
import recordings
from command_line import parabench
from page_helpers import Page
from parabench.errors import UsageError
from parabench.imports import kind_of, read_folder
from parabench.imports.into_store import launch_of
from parabench.imports.recording import rank_in_name
from parabench.plan.case import DEFAULTS, RecordedCase
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


def asked(folder: Path, page: Path) -> str:
    done = parabench("report", "--from", folder, "-o", page)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2, done.output
    assert len(done.stderr.strip().splitlines()) == 1
    assert not page.exists()
    assert not page.with_suffix(".db").exists()
    return done.stderr


def test_the_page_tells_what_is_known(folder: Path, tmp_path: Path) -> None:
    done = parabench("report", "--from", folder, "-o", tmp_path / "out" / "page.html")
    assert done.exit_code == 0, done.output
    text = Page((tmp_path / "out" / "page.html").read_text()).text
    # 20 of 100 us of the step are exposed on either rank: rank 1 begins 10 us later, when no kernel computes any more.
    for said in (
        "run7, 2 ranks",
        "A step took 0.100 ms on its slowest rank, the median of 2 steps of 2 ranks",
        "Exposed communication is 20 % of each rank's step.",
        "By the flight recorders of 2 ranks all entered and finished the same collectives",
        "NCCL's Inspector timed 1 operation",
        "1 other file in the folder",
        "parabench did not run this training",
    ):
        assert said in text, said
    assert "nan" not in text.lower().replace("nanosecond", "")
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["rank0.json", "rank1.json", "nccl_trace_rank_0", "nccl_trace_rank_1", "inspector.log", "notes.txt"]
    )


def test_a_call_is_as_fast_as_on_the_rank_that_came_last(folder: Path, tmp_path: Path) -> None:
    from parabench.analysis.session import session_data
    from parabench.analysis.step import recorded

    parabench("report", "--from", folder, "-o", tmp_path / "page.html")
    seen = session_data(load(tmp_path / "page.db"))
    (row,) = recorded.call_table(seen).to_dict("records")
    assert (row["op"], row["ranks"], row["bytes"], row["seen"], row["per_step"]) == ("all_reduce", "0-1", 4000, 2, 1)
    assert row["shortest_s"] == pytest.approx(30e-6)
    # 2 (n - 1) / n is 1 for two ranks.
    assert row["busbw"] == row["algbw"] == pytest.approx(4000 / 30e-6 / 1e9)
    ranks = recorded.rank_table(seen).set_index("rank")
    assert ranks.loc[0, "communication_s"] == pytest.approx(40e-6)
    assert ranks["backward_s"].isna().all()
    (held,) = recorded.flight_table(seen).to_dict("records")
    assert (held["op"], held["seen"], held["calls"], held["duration_s"]) == ("all_reduce", 2, 2, pytest.approx(1.5e-3))


def test_the_case_says_what_is_known_and_nothing_else(folder: Path) -> None:
    case = launch_of(read_folder(folder)).case
    assert isinstance(case, RecordedCase)
    assert case.to_dict() == {
        "kind": "recorded", "name": "run7", "world_size": 2, "nodes": 1, "device": "cuda", "backend": "nccl",
    }  # fmt: skip
    assert RecordedCase.from_dict(case.to_dict()) == case
    cells = case.cells()
    assert list(cells) == list(DEFAULTS)
    known = {name for name, value in cells.items() if value is not None and value == value}
    assert known == {"strategy", "algorithm", "world_size", "nodes", "model", "device", "backend"}
    assert cells["model"] == ""


def test_a_session_of_recordings_is_a_training_to_nobody_who_would_guess(folder: Path, tmp_path: Path) -> None:
    parabench("report", "--from", folder, "-o", tmp_path / "page.html")
    store = tmp_path / "page.db"
    for command in (("best", store), ("compare", store, store), ("export", "--bencher", store), ("history", store)):
        done = parabench(*command)
        assert (done.exit_code, len(done.stderr.strip().splitlines())) == (2, 1), done.output
        assert "Traceback" not in done.output
    from parabench.analysis.session import session_data

    seen = session_data(load(store))
    assert seen.cases["global_batch"].isna().all()
    assert seen.cases["tokens_per_s"].isna().all()
    with pytest.raises(UsageError, match="was recorded, not configured by parabench"):
        seen.case(str(seen.cases["case_id"].iloc[0]))


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "holds no file"),
        ({"notes__txt": "nothing"}, "holds no recording among its 1 files"),
        ({"a__json": of_gpu(0), "b__json": of_gpu(1, world_size=4)}, "are not of one training"),
        ({"a__json": '{"traceEvents": [{'}, "cut off"),
        ({"rank_0": json.dumps(dump(entry(1)))[:-40]}, "cut off"),
        ({"rank_0": '{"pg_config": {}, "entries": [7]}'}, "entry 0 has no operation or no group"),
        ({"rank_0": ""}, "rank_0 cannot be read: it is empty"),
    ],
)
def test_a_folder_that_is_wrong_is_refused_in_a_line(tmp_path: Path, files: dict[str, object], why: str) -> None:
    assert why in asked(recordings.write(tmp_path / "made", **files), tmp_path / "page.html")


def test_what_is_in_the_way_is_refused(folder: Path, tmp_path: Path) -> None:
    assert "holds no recording" in asked(folder / "notes.txt", tmp_path / "page.html")
    assert "does not exist" in asked(folder / "absent", tmp_path / "page.html")
    both = parabench("report", "some.db", "--from", folder, "-o", tmp_path / "page.html")
    assert "stands in the place of a store" in both.stderr
    named = parabench("report", "--from", folder, "-o", tmp_path / "page.db")
    assert "give -o another name" in named.stderr
    stored = hostile.trainings(tmp_path / "own.db", "one")
    before = stored.read_bytes()
    over = parabench("report", "--from", folder, "-o", tmp_path / "own.html")
    assert "holds sessions that no recording is of" in over.stderr
    assert stored.read_bytes() == before
    assert not (tmp_path / "own.html").exists()


def test_a_page_is_not_written_into_the_folder_unless_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    done = parabench("report", "--from", ".")
    assert "which is left as it is; give -o another place" in done.stderr
    assert sorted(folder.iterdir()) == before
    assert parabench("report", "--from", ".", "-o", "page.html").exit_code == 0
    # Read again, the page and its store are no recordings.
    assert parabench("report", "--from", ".", "-o", "page.html").exit_code == 0


def test_ranks_of_which_there_is_nothing_are_named(tmp_path: Path) -> None:
    recordings.write(tmp_path, a__json=of_gpu(1, world_size=8), rank_1=dump(entry(1), ranks="[0, 1, 2, 3, 4, 5, 6, 7]"))
    launch = launch_of(read_folder(tmp_path))
    told = [each.message for each in launch.findings if each.code == "recording_ranks"]
    assert ["of ranks 0, 2-7 of 8" in each for each in told] == [True, True]


def test_hostile_texts_are_texts_on_the_page(tmp_path: Path) -> None:
    evil = f"<script>{hostile.CALL}</script>\x1b[2J"
    trace = of_gpu(0, host=evil) | {"deviceProperties": [{"name": evil}]}
    trace["distributedInfo"]["backend"] = evil
    told = dump(entry(1) | {"process_group": [evil, evil], "state": evil})
    recordings.write(tmp_path / "made", rank0__json=trace, rank_0=told)
    done = parabench("report", "--from", tmp_path / "made", "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    page = Page((tmp_path / "page.html").read_text())
    assert hostile.CALL in page.text
    assert "\x1b" not in page.text
    runs = ["type" not in attrs for tag, attrs in page.tags if tag == "script"]
    assert not [text for text, does in zip(page.scripts, runs, strict=True) if does and hostile.CALL in text]


def test_a_file_larger_than_the_memory_is_read_piece_by_piece(tmp_path: Path) -> None:
    """Of 40 MB only what counts stays; a trace of 2 GB differs by its length alone."""
    filler = json.dumps(recordings.event("cudaLaunchKernel", "cuda_runtime", 1, 2, **{"text": "x" * 300}))
    whole = json.dumps(of_gpu())
    at = whole.index('"traceEvents": [') + len('"traceEvents": [')
    with (tmp_path / "rank0.json").open("w") as file:
        file.write(whole[:at])
        for _ in range(100_000):
            file.write(f"{filler}, ")
        file.write(whole[at:])
    size = (tmp_path / "rank0.json").stat().st_size
    tracemalloc.start()
    try:
        (found,) = read_folder(tmp_path).recordings
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.calls) == 2
    assert most < size / 2


def test_files_are_known_by_what_they_hold(folder: Path) -> None:
    kinds = {path.name: kind_of(path) for path in folder.iterdir()}
    assert kinds == {
        "rank0.json": "kineto", "rank1.json": "kineto", "nccl_trace_rank_0": "flight recorder",
        "nccl_trace_rank_1": "flight recorder", "inspector.log": "NCCL Inspector", "notes.txt": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3), ("rank12.json", 12), ("trace-rank-4.pt.trace.json.gz", 4),
        ("gpt2.json", None), ("host_1234.1795686318368937853.pt.trace.json", None), ("trace.json", None),
    ],
)  # fmt: skip
def test_a_name_may_tell_the_rank(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank
