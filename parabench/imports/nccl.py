"""Read files of NCCL: its debug logs, the output of its Inspector, and logs of nccl-tests and rccl-tests.

nccl-tests writes text and JSON in src/util.cu, and before 2.17 in src/common.cu. Bus bandwidths are checked against its
doc/PERFORMANCE.md. The Inspector is plugins/profiler/inspector of NCCL.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from parabench.analysis.collectives.bus import bus_factor
from parabench.errors import UsageError
from parabench.imports.recording import Recording, content, distinct, op_of, parsed, text_of, type_of
from parabench.plan.case import UNKNOWN, line
from parabench.plan.collective_case import LOGGED_OPS, CollectiveCase
from parabench.probes.nccl import COMMUNICATOR, MESSAGE, MOST_BYTES, inspected, parse_log
from parabench.store.record import GB, CollectiveSample, Failure, Launch, Phase, Status, utc_now
from parabench.store.results import records

INSPECTOR, DEBUG, TESTS = "NCCL Inspector", "NCCL debug log", "nccl-tests"

# The prefix that `mpirun --tag-output` and `srun --label` add to a line.
_TAG = re.compile(r"\[[\d,]+\]<\w+>:|\d+: ?")
_START = re.compile(r"# (?:nccl-tests version|Collective test starting: (\S+)|nThread \d)")
_SETTING = re.compile(r"(\w+(?: iters)?):? (\d+)")
_RANK = re.compile(r"#\s+Rank\s+(\d+) (?:Group\s+(\d+) )?Pid\s+\d+ on\s+(\S+) device\s+\d+ \[\S+\] (.+)")
# The line of `parabench collectives` that names its case.
_OWN = re.compile(r"# \w+ (\S+), (\d+) ranks(?: on (\d+) nodes)?.*, (gloo|nccl) on (cpu|cuda)$")
_HEADER = re.compile(r"#\s+size\s+count\s+type\s+(?:redop\s+)?(.+)")
# Logs until 2021 may have no root, and operations that do not reduce no redop.
_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+([a-z]\w*)(?:\s+([a-z]+))?((?:\s+(?:-?[\d.]+(?:e[-+]?\d+)?|N/A|-?nan|inf))+)")
_COLUMNS = ("root", *("time", "algbw", "busbw", "#wrong") * 2)
_BOUNDS = re.compile(r"# Out of bounds values\s*: (\d+)")
_FILE_OP = re.compile(
    r"all[-_]?(?:reduce|gather|to[-_]?all)|reduce[-_]?scatter|broadcast|send[-_]?recv|gather|scatter|reduce", re.I
)
# The precision of printed numbers: two decimals, or three digits.
_LAST_DIGIT, _TOLERANCE = 0.011, 0.03

_LIBRARY = re.compile(r"nccl-library=(\d+)")
_JSON = {"time": "time", "algbw": "alg_bw", "busbw": "bus_bw", "#wrong": "nwrong"}
_JSON_SETTINGS = {"iters": "iterations", "agg iters": "aggregated_iterations", "graph": "graph"}
# The keys of a result in the JSON of parabench.
_OWN_KEYS = ("op", "algorithm", "world_size", "nodes", "device", "backend")
# Tests are of one kind if these fields are equal.
_KIND = (*_OWN_KEYS, "dtype", "redop")


@dataclass(slots=True, kw_only=True)
class Test:
    """One test of a log. `ranks` are (rank, group, host, GPU), and `settings` describe how calls are timed.

    `rows` are results: size, type, reduction, whether it is in place, and the numbers with the names of _JSON.
    """

    op: str | None = None
    algorithm: str = "native"
    backend: str = "nccl"
    device: str = "cuda"
    world_size: int | None = None
    nodes: int = 1
    ranks: list[tuple[int, int, str, str]] = field(default_factory=list)
    settings: dict[str, int] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    out_of_bounds: int = 0
    ended: bool = False

    @property
    def timing(self) -> str:
        if self.settings.get("blocking"):
            return "each call waited for (-z)"
        if not self.settings:
            return "in a way that the log does not show"
        return "calls back to back" + ", captured in a CUDA graph (-G)" * bool(self.settings.get("graph"))

    def count_ranks(self) -> str | None:
        """Set the number of ranks and nodes from the list of ranks. Return the problem with the list, or `None`."""
        numbers = sorted(rank for rank, *_ in self.ranks)
        groups = Counter(group for _, group, *_ in self.ranks)
        if self.world_size and not numbers:
            return None
        if len(set(numbers)) < len(numbers):
            return "several of its processes are rank 0, as without MPI=1 when nccl-tests was built"
        if not numbers or numbers != [*range(len(numbers))] or len(set(groups.values())) > 1:
            return "it has no complete list of its ranks"
        ((first, self.world_size), *_) = groups.items()
        self.nodes = len({host for _, group, host, _ in self.ranks if group == first})
        return "a single rank does not communicate" if self.world_size == 1 else None

    def table(self) -> pd.DataFrame:
        """Return the rows that have a size, a time and a known type."""
        rows = pd.DataFrame(self.rows, columns=["bytes", "dtype", "redop", "in_place", *_JSON])
        numbers = rows[list(_JSON)].apply(pd.to_numeric, errors="coerce").astype(float)
        numbers = numbers.where(np.isfinite(numbers) & (numbers >= 0))
        types = [type_of(str(name).replace("fp8", "float8")) for name in rows["dtype"]]
        rows = rows.assign(**numbers, dtype=[each[0] if each else "" for each in types], seconds=numbers["time"] / 1e6)
        return rows[(rows["bytes"] > 0) & (rows["seconds"] > 0) & (rows["dtype"] != "")]


def _op(program: str) -> str | None:
    """Return the operation that a program measures: `all_reduce` for `./build/all_reduce_perf_mpi`."""
    bare = re.sub(r"_perf.*", "", program.rsplit("/", 1)[-1])
    found = "sendrecv" if re.sub(r"[-_]", "", bare.lower()) == "sendrecv" else op_of(bare)
    return found if found in LOGGED_OPS else None


def read_inspector(path: Path) -> Recording:
    """Read the output of NCCL's Inspector."""
    found, text = _opened(path, INSPECTOR)
    found.ops = inspected(text)
    # A communicator may have fewer ranks than the job.
    found.world_size = max((each["ranks"] for each in found.ops if each["ranks"]), default=None)
    if not found.ops:
        found.unknown.append("it holds no call with a size and a number of ranks")
    return found


def read_debug(path: Path) -> Recording:
    """Read a log of `NCCL_DEBUG=INFO` from one or more processes."""
    found, text = _opened(path, DEBUG)
    found.log = parse_log(text)
    found.world_size = max(map(int, COMMUNICATOR.findall(text)), default=None)
    return found


def read_tests(path: Path) -> Recording:
    """Read a log or a JSON file of nccl-tests."""
    found, text = _opened(path, TESTS)
    in_name = {_op(name) for name in _FILE_OP.findall(path.name)}
    op = next(iter(in_name)) if len(in_name) == 1 else None
    if text.lstrip().startswith("{"):
        document = parsed(text)
        found.tests, found.log = _of_json(document, op), {"version": _version(document["nccl_version"])}
    else:
        found.tests, found.log = list(_of_text(text, op)), parse_log(text)
        if library := _LIBRARY.search(text):
            found.log["version"] = _version(int(library[1]))
    return found


def _opened(path: Path, kind: str) -> tuple[Recording, str]:
    """Return an empty recording of NCCL, and the text of the file, at most MOST_BYTES."""
    raw = content(path, MOST_BYTES + 1)
    found = Recording(file=path.name, kind=kind, device="cuda", backend="nccl")
    if len(raw) > MOST_BYTES:
        found.unknown.append(f"only its first {MOST_BYTES >> 20} MiB were read")
    return found, text_of(raw[:MOST_BYTES])


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a log without tags and NCCL's messages. A row that a message interrupts is one line."""
    lines = [each[tag.end() :] if (tag := _TAG.match(each)) else each for each in text.splitlines()]
    hosts = {rank[3] for each in lines if (rank := _RANK.match(each))}
    held = ""
    for each in lines:
        if message := MESSAGE.search(each):
            glued = next((message[1].removesuffix(host) for host in hosts if message[1].endswith(host)), "")
            held += each[: message.start()] + glued
            continue
        yield held + each
        held = ""


def _of_text(text: str, op: str | None) -> Iterator[Test]:
    """Yield the tests of a log; `op` is the operation if the log does not name it."""
    test, columns = Test(op=op), _COLUMNS
    for each in _lines(text):
        start, header = _START.match(each), _HEADER.match(each)
        if test.rows and (start or header):
            yield test
            test, columns = Test(op=op), _COLUMNS
        if start:
            test.op = _op(start[1]) if start[1] else test.op
            test.settings |= {name: int(number) for name, number in _SETTING.findall(each.partition("nThread")[2])}
        elif each.startswith("# Blocking Enabled"):
            test.settings["blocking"] = 1
        elif rank := _RANK.match(each):
            test.ranks.append((int(rank[1]), int(rank[2] or 0), line(rank[3]), line(rank[4])))
        elif own := _OWN.match(each):
            test.algorithm, test.backend, test.device = own[1], own[4], own[5]
            test.world_size, test.nodes = int(own[2]), int(own[3] or 1)
        elif header:
            columns = tuple(header[1].split())
        elif row := _ROW.match(each):
            values, starts = row[5].split(), [at for at, name in enumerate(columns) if name == "time"]
            # A row that is cut off has fewer values.
            for in_place, at in enumerate(starts if len(values) >= len(columns) else ()):
                numbers = dict(zip(columns[at : at + 4], values[at : at + 4], strict=True))
                test.rows.append(_row(row[1], row[3], row[4], in_place) | numbers)
        elif bounds := _BOUNDS.match(each):
            test.out_of_bounds = int(bounds[1])
        test.ended |= each.startswith("# Avg bus bandwidth")
    yield test


def _of_json(document: Mapping[str, Any], op: str | None) -> list[Test]:
    """Return the tests of a JSON document. If parabench wrote it, each result has its operation and ranks."""
    config, tests = document["config"], dict[tuple[Any, ...], Test]()
    # A process lists its first rank only.
    each_rank = range(int(config["nthreads"]) * int(config["ngpus"]))
    ranks = [
        (int(one["rank"]) + at, int(one["group"]), line(one["hostname"]), line(one["device_info"]))
        for one in config.get("devices") or []
        for at in each_rank
    ]
    op = next((found for each in document["args"][:1] if (found := _op(str(each)))), op)
    settings = {ours: int(config[theirs] or 0) for ours, theirs in _JSON_SETTINGS.items()}
    settings["blocking"] = int(config["blocking_collectives"] not in ("false", 0))
    bounds = int(document["out_of_bounds"]["count"])
    more: dict[str, Any] = {"ranks": ranks, "settings": settings, "ended": True, "out_of_bounds": bounds}
    for result in document["results"]:
        fields = {name: result[name] for name in _OWN_KEYS if name in result}
        test = tests.setdefault(tuple(fields.values()), Test(**({"op": op} | more | fields)))
        for in_place, form in enumerate(("out_of_place", "in_place")):
            numbers = {ours: (result[form] or {}).get(theirs) for ours, theirs in _JSON.items()}
            test.rows.append(_row(result["size"], result["type"], result["redop"], in_place) | numbers)
    return list(tests.values()) or [Test(**more)]


def _row(size: Any, dtype: str, redop: Any, in_place: int) -> dict[str, Any]:
    return {"bytes": int(size), "dtype": dtype, "redop": str(redop or "none"), "in_place": bool(in_place)}


def _version(code: int | None) -> str | None:
    """Return NCCL's version from its code (nccl.h): '2.25.1' for 22501, '2.8.4' for 2804, as before NCCL 2.9."""
    if code is None:
        return None
    major = 10_000 if code >= 10_000 else 1000
    return f"{code // major}.{code % major // 100}.{code % 100}"


def launches_of(recordings: Sequence[Recording], left_out: dict[str, str]) -> tuple[list[Launch], str]:
    """Return the tests of logs as launches, and the way that they timed calls. Add the others to `left_out`.

    Raises UsageError if no test can be used.
    """
    found = [each for one in recordings for each in _launches(one, left_out)]
    if not found:
        file, reason = next(iter(left_out.items()))
        raise UsageError(f"{file} cannot be used: {reason}")
    ((timing, _),) = Counter(each for _, each in found).most_common(1)
    launches = [launch for launch, each in found if each == timing]
    for launch, each in found:
        if each != timing:
            left_out[launch.case.label] = f"left out: it timed {each}, and others {timing}; give it a separate folder"
    # Tests are named by their folder instead of their file, in subfolders without two tests of a kind.
    cases = [cast(CollectiveCase, launch.case) for launch in launches]
    kinds = [(os.path.dirname(each.source), *(getattr(each, name) for name in _KIND)) for each in cases]
    twice = {folder for (folder, *_), count in Counter(kinds).items() if count > 1}
    for launch, case, (folder, *_) in zip(launches, cases, kinds, strict=True):
        if folder and folder not in twice:
            launch.case = case.replace(source=folder)
    versions = {launch.facts["log"]["version"] for launch in launches}
    if len(versions) == 1 and None not in versions:
        launches[0].facts["nccl_version"] = versions.pop()
    return launches, timing


def _launches(found: Recording, left_out: dict[str, str]) -> Iterator[tuple[Launch, str]]:
    """Yield (launch, way of timing): one launch for each test, type and reduction of a log."""
    seen = set[tuple[Any, ...]]()
    for number, test in enumerate(found.tests, 1):
        place = found.file if len(found.tests) == 1 else f"{found.file}, test {number}"
        problem, rows = test.count_ranks(), test.table()
        if problem or rows.empty:
            left_out[place] = f"left out: {problem or 'it has no row with a size and a time'}"
            continue
        n = test.world_size or 0
        if test.op is None:
            found.unknown.append("neither the log nor its name has the operation")
        else:
            exact = rows["bytes"] / rows["seconds"] / GB * bus_factor(test.op, n)
            if ((rows["busbw"] - exact).abs() > _LAST_DIGIT + _TOLERANCE * exact).any():
                found.unknown.append(f"its busbw does not fit {test.op} among {n} ranks, so the operation is unknown")
                test.op = None
        if not test.ended:
            found.unknown.append("its end is missing, and only the lines that exist were read")
        for kind, kind_rows in rows.groupby(["dtype", "redop"], sort=False):
            key = (test.op, test.algorithm, n, kind)
            source = line(place if key in seen else found.file)
            seen.add(key)
            try:
                yield _launch(test, kind_rows, source, found.log), test.timing
            except UsageError as error:
                left_out[place] = f"left out: {error}"


def _launch(test: Test, rows: pd.DataFrame, source: str, log: Mapping[str, Any]) -> Launch:
    """Return a test's rows of one type and reduction as a launch. Raises UsageError if they are not a valid case."""
    first = rows.iloc[0]
    case = CollectiveCase(
        op=test.op or UNKNOWN, algorithm=test.algorithm, world_size=test.world_size or 0, nodes=test.nodes,
        dtype=first["dtype"], redop=first["redop"], min_bytes=int(rows["bytes"].min()),
        max_bytes=int(rows["bytes"].max()), factor=None, device=test.device, backend=test.backend, source=source,
    )  # fmt: skip
    rows = rows.assign(step=rows.groupby(["bytes", "in_place"]).cumcount())
    wrong = int(rows["#wrong"].sum()) or test.out_of_bounds
    calls = test.settings.get("iters", 0) * test.settings.get("agg iters", 1) or 1  # a time is their mean
    facts: dict[str, Any] = {name: line(log[name]) if log.get(name) else None for name in ("version", "network")}
    hosts, gpus = distinct(each[2] for each in test.ranks), distinct(each[3] for each in test.ranks)
    facts |= {"file": source, "hosts": hosts, "gpus": gpus, "transports": log.get("transports") or {}}
    return Launch(
        case=case,
        status=Status.WRONG if wrong else Status.OK,
        started_utc=utc_now(),
        wall_s=math.nan,
        failure=Failure(f"{wrong:,} elements are wrong or out of bounds") if wrong else None,
        collectives=[
            CollectiveSample(
                0, row["step"], seq, case.op, test.algorithm, case.world_size, row["bytes"], None, row["seconds"],
                Phase.MEASURE, row["in_place"], None if math.isnan(row["#wrong"]) else int(row["#wrong"]),
                dtype=case.dtype, calls=calls,
            )
            for seq, row in enumerate(records(rows))
        ],
        facts={"log": facts},
    )  # fmt: skip
