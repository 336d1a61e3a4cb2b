"""Logs of nccl-tests and NCCL's debug logs, with one row for each input."""

import itertools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fake_collectives as fake
import nccl_logs
import recordings
from command_line import parabench
from nccl_tests_logs import SIZES, as_text, call_us, document, interrupted, log, tagged
from page_helpers import Page
from parabench.analysis.collectives.bus import bus_table, measured
from parabench.analysis.collectives.nccl_tests import results_json, table_lines
from parabench.analysis.numbers import numbers
from parabench.analysis.session import select_session
from parabench.errors import UsageError
from parabench.imports import read_folder
from parabench.imports.into_store import record
from parabench.store.results import load


class Row(NamedTuple):
    """A folder, and the expected (op, ranks, nodes, rows) of each test and parts of all warnings."""

    name: str
    files: dict[str, Any]
    cases: list[tuple[str, int, int, int]]
    warnings: tuple[str, ...] = ()


ONE = [("all_reduce", 4, 2, 6)]
FULL = log()
CUT_IN_ROW = FULL[: FULL.rindex("# Out of bounds") - 60]
NO_RANKS = re.sub(r"#  Rank.*\n", "", FULL)

ROWS = [
    Row("text of 2021", {"all_reduce__log": log(year=2021, named=False, wrong="4e-07")}, ONE),
    Row("JSON 3", {"a__json": document()}, ONE),
    Row("mpirun", {"a__log": tagged(FULL)}, ONE),
    Row("messages of several tagged ranks", {"a__log": tagged(interrupted(FULL), "[1,3]<stdout>:")}, ONE),
    Row(
        "several tests in a file",
        {"a__log": log() + log("alltoall", redop="none") + log(ranks=8)},
        [("all_reduce", 4, 2, 6), ("all_to_all", 4, 2, 6), ("all_reduce", 8, 2, 6)],
    ),
    Row("cut in a row", {"a__log": CUT_IN_ROW}, [("all_reduce", 4, 2, 4)], ("its end is missing",)),
    Row("no operation", {"log__txt": log(named=False)}, [("unknown", 4, 2, 6)], ("log.txt: neither the log nor its",)),
    Row("operation in the name", {"allreduce-16__txt": log(named=False)}, ONE),
    Row("another operation in the name", {"all_gather__txt": log(named=False)}, [("unknown", 4, 2, 6)],
        ("all_gather.txt: its busbw does not fit all_gather among 4 ranks, so the operation is unknown",)),
    Row("no ranks", {"a__log": FULL, "b__log": NO_RANKS}, ONE, ("b.log: left out: it has no complete list of",)),
    Row("without MPI", {"a__log": FULL, "b__log": log(order=lambda ranks: [0, 0])}, ONE, ("b.log: left out: several",)),
    Row("cut JSON", {"a__log": FULL, "b__json": as_text(document())[:-40]}, ONE, ("b.json: it is not JSON, or cut",)),
    Row("other timing", {"a__log": FULL, "b__log": FULL, "c__log": log(graph=1)}, ONE * 2,
        ("all_reduce c.log, 4 ranks on 2 nodes: left out: it timed calls back to back, captured in a CUDA graph",)),
]  # fmt: skip


def stored(tmp_path: Path, **files: Any) -> Any:
    folder = recordings.write(tmp_path / "logs", **files)
    record(read_folder(folder), tmp_path / "r.db", ["parabench"])
    return load(tmp_path / "r.db")


@pytest.mark.parametrize("row", ROWS, ids=[row.name.replace(" ", "_") for row in ROWS])
def test_log_has_its_cases_and_warnings(tmp_path: Path, row: Row) -> None:
    results = stored(tmp_path, **row.files)
    sizes = measured(numbers(results, select_session(results)))
    of_launch = [rows for _, rows in sizes.groupby("launch_id")]
    found = [(*(rows.iloc[0][name] for name in ("op", "world_size", "nodes")), len(rows)) for rows in of_launch]
    assert found == row.cases
    messages = list(results.finding["message"])
    assert len(messages) == len(row.warnings), messages
    for part in row.warnings:
        assert any(part in each for each in messages), messages
    expected = [call_us(size) / 1e6 for size in SIZES]
    assert set(sizes["call_s"].round(8)) <= {round(each, 8) for each in expected}
    assert sizes[["p50_s", "p95_s", "p99_s"]].isna().all(axis=None)


def slower(size: int) -> float:
    return 2 * call_us(size)


class Shown(NamedTuple):
    name: str
    files: dict[str, Any]
    must: tuple[str, ...]
    must_not: tuple[str, ...] = ()


PAGES = [
    Shown(
        "two logs",
        {"a__log": FULL, "b__log": log(us=slower)},
        ("b.log takes 2.00 times as long as a.log, the median of 3 sizes (2.00 to 2.00)",
         "The highest bus bandwidth is 149 GB/s, a.log at 256 MiB", "parabench did not run these 2 tests",
         "Size a.log b.log Ratio 1 MiB 51.6 25.8 2.00", "node0; node1",
         "NVIDIA H100 80GB HBM3", "All checked elements are"),
        ("native", "launches succeeded", "p99 µs", "fewer than 3", "GPUs none"),
    ),
    Shown(
        "two clusters",
        {f"{name}___{op}__log": log(op, us=us) for op in ("all_reduce", "reduce_scatter")
         for name, us in (("old", slower), ("new", call_us))},
        ("all_reduce, 4 ranks: old takes 2.00 times as long as new", "reduce_scatter, 4 ranks: old takes 2.00 times"),
        ("old/all_reduce.log takes",),
    ),
    Shown(
        "wrong",
        {"a__log": FULL, "b__log": log(wrong="3", bounds=18)},
        ("18 elements are wrong", "Only a.log has such a test", "b.log, 4 ranks on 2 nodes 0 wrong"),
        ("All checked elements are correct", "times as long"),
    ),
    Shown(
        "debug logs",
        {"nccl__1__log": nccl_logs.NCCL_2_27, "nccl__2__log": nccl_logs.NCCL_2_22},
        ("NCCL 2.27.5+cuda12.9: network AWS Libfabric", "nvlstree",
         "nccl.2.log: left out: it is of NCCL 2.22.3+cuda12.6, and nccl.1.log is of 2.27.5+cuda12.9"),
        ("A step took", "extra launch"),
    ),
    Shown(
        "debug logs, too",
        {"nccl__log": nccl_logs.NCCL_2_27, "a__log": FULL},
        ("NCCL's debug logs are session 1 of the page's results database", "Only a.log has such a test"),
        ("A step took",),
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", PAGES, ids=[row.name.replace(" ", "_") for row in PAGES])
def test_page_of_logs_shows_known_values(tmp_path: Path, row: Shown) -> None:
    folder = recordings.write(tmp_path / "logs", **row.files)
    done = parabench("report", "--from", folder, "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    text = " ".join(Page((tmp_path / "page.html").read_text()).text.split())
    assert [each for each in row.must if each not in text] == [], text
    assert [each for each in row.must_not if each in text] == []
    assert " nan" not in text.lower().replace("nanosecond", "")


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"a__log": NO_RANKS}, "a.log cannot be used: left out: it has no complete list of its ranks"),
        ({"a__txt": "size 1 2 float sum -1 1 2 3 0"}, "logs and JSON of nccl-tests"),
    ],
)
def test_logs_that_cannot_be_used_are_refused(tmp_path: Path, files: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        stored(tmp_path, **files)


# -- logs that parabench writes ---------------------------------------------------------------------------------


def test_own_output_is_read_as_logs(tmp_path: Path) -> None:
    pairs = itertools.product(("all_reduce", "all_gather"), ("ring", "native"))
    cases = [fake.case(op, algorithm=name, world_size=4) for op, name in pairs]
    launches = fake.sweep(cases, lambda case, size: call_us(size) / 1e6, repetitions=2, protocol=fake.THROUGHPUT)
    results = fake.write(tmp_path / "own.db", launches, protocol=fake.THROUGHPUT)
    own_session = results, select_session(results)
    own = bus_table(measured(numbers(*own_session))).set_index(["op", "algorithm", "bytes", "in_place"])["busbw"]
    files = {"own__txt": "\n".join(table_lines(*own_session)), "own__json": json.dumps(results_json(*own_session))}
    results = stored(tmp_path, **files)
    sizes = measured(numbers(results, select_session(results)))
    assert set(sizes["world_size"]) == {4}
    assert set(zip(sizes["device"], sizes["backend"], strict=True)) == {("cpu", "gloo")}
    for source in ("own.txt", "own.json"):
        rows = bus_table(sizes[sizes["source"] == source])
        assert set(rows["algorithm"]) == {source, f"ring {source}"}
        names = [name.removesuffix(source).strip() or "native" for name in rows["algorithm"]]
        found = rows.assign(algorithm=names).set_index(own.index.names)["busbw"]
        assert found.to_dict() == pytest.approx(own.to_dict(), rel=1e-3)
