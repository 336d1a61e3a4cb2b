"""`report --from` with real traces and dumps of a training run of two processes."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

import recordings
from command_line import parabench
from parabench.imports import read_folder
from parabench.imports.into_store import launch_of
from parabench.store.record import COMMUNICATION, WAIT, Launch, Phase, Status
from parabench.store.results import load


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    recordings.train(folder, "traces", "shapes", "gzip")
    return folder


def read(folder: Path) -> Launch:
    return launch_of(read_folder(folder))


def test_steps_and_calls_equal_the_traces(trained: Path) -> None:
    launch = read(trained / "traces")
    told: dict[tuple[int, int], float] = {}
    for path in (trained / "traces").iterdir():
        trace = json.loads(gzip.decompress(path.read_bytes()))
        for each in trace["traceEvents"]:
            if each["name"].startswith("ProfilerStep#"):
                told[trace["distributedInfo"]["rank"], int(each["name"][13:])] = each["dur"] / 1e6
    assert len(told) == 2 * len(recordings.RECORDED)
    steps = {(one.rank, one.step): one.value for one in launch.samples if one.metric == "step_s"}
    assert steps == pytest.approx(told, abs=2e-9)
    # Each step reduces the gradients once, and gathers three numbers of each rank.
    calls = Counter((one.rank, one.step, one.op, one.bytes, one.dtype, one.ranks) for one in launch.collectives)
    assert calls == {
        (rank, step, op, size, "float32", "0-1"): 1
        for rank in range(2)
        for step in recordings.RECORDED
        for op, size in (("all_reduce", recordings.PARAMETER_BYTES), ("all_gather", 24))
    }
    assert all(one.start_s is not None for one in launch.collectives)
    assert (launch.case.world_size, launch.case.device, launch.case.backend) == (2, "cpu", "gloo")


def test_parts_add_up_to_the_step(trained: Path) -> None:
    launch = read(trained / "traces")
    steps = {(one.rank, one.step): one.value for one in launch.samples}
    for (rank, step), length in steps.items():
        own = {(one.name, one.start_s, one.end_s) for one in launch.spans if (one.rank, one.step) == (rank, step)}
        seconds: Counter[str] = Counter()
        for name, begin, end in own:
            seconds[name] += end - begin
        apart = sum(each for name, each in seconds.items() if name not in (WAIT, COMMUNICATION))
        assert apart == pytest.approx(length, abs=1e-7)
        assert {"forward", "backward", "optimizer"} <= seconds.keys()
        assert 0 < seconds[WAIT] <= seconds[COMMUNICATION] + 1e-7


def test_both_forms_of_a_dump_tell_the_same(trained: Path) -> None:
    by_json, by_pickle = (read(trained / name) for name in ("json", "pickle"))
    assert by_json.collectives == by_pickle.collectives
    counts = Counter((one.rank, one.op, one.bytes) for one in by_pickle.collectives if one.phase == Phase.FLIGHT)
    for rank in range(2):
        assert counts[rank, "all_reduce", recordings.PARAMETER_BYTES] == recordings.STEPS
        assert counts[rank, "all_gather", 24] == recordings.STEPS
        assert counts[rank, "barrier", 0] == 1
    assert by_pickle.status is Status.OK
    assert not [one for one in by_pickle.findings if one.code in ("recording_hang", "recording_mismatch")]


def test_page_and_database_are_in_one_folder(trained: Path, tmp_path: Path) -> None:
    before = sorted((trained / "traces").iterdir())
    done = parabench("report", "--from", trained / "traces", "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    assert sorted(tmp_path.iterdir()) == [tmp_path / "page.db", tmp_path / "page.html"]
    assert sorted((trained / "traces").iterdir()) == before
    assert len(load(tmp_path / "page.db").collective) == 2 * 2 * len(recordings.RECORDED)
    again = parabench("report", tmp_path / "page.db", "-o", tmp_path / "again.html")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "again.html").read_text() == (tmp_path / "page.html").read_text()


def test_a_rank_that_does_not_come_is_named(trained: Path) -> None:
    for kind in ("json", "pickle"):
        launch = read(trained / f"hung_{kind}")
        assert launch.status is Status.HUNG
        # A busy machine may also show that rank 0's barrier before it was not finished.
        *_, found = (one.message for one in launch.findings if one.code == "recording_hang")
        assert "all_reduce of 4,000 bytes of float32," in found
        assert "was entered by rank 0 and not by rank 1" in found
        # JSON has no stacks.
        assert ("training.py:" in found) == (kind == "pickle")
