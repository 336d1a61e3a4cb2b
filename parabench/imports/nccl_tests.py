"""Read logs of nccl-tests and rccl-tests, as text and as JSON.

The layouts are those of nccl-tests' src/util.cu, and before 2.17 of its src/common.cu. Bandwidths are checked against
doc/PERFORMANCE.md there.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parabench.analysis.collectives.bus import bus_factor
from parabench.errors import UsageError
from parabench.imports import stream
from parabench.imports.nccl import opened
from parabench.imports.recording import Recording, distinct, op_of, type_of
from parabench.plan.case import UNKNOWN, line
from parabench.plan.collective_case import LOGGED_OPS, CollectiveCase
from parabench.probes.nccl import MESSAGE, MOST, parse_log
from parabench.store.record import CollectiveSample, Failure, Launch, Phase, Status, utc_now

NAME = "nccl-tests"

# What `mpirun --tag-output` and `srun --label` put in front of a line.
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
_FAILURE = re.compile(r"Test (?:NCCL|CUDA) failure .+")
_FILE_OP = re.compile(
    r"all[-_]?(?:reduce|gather|to[-_]?all)|reduce[-_]?scatter|broadcast|send[-_]?recv|gather|scatter|reduce", re.I
)
# Numbers are printed with two decimals, or three digits.
_LAST_DIGIT, _TOLERANCE = 0.011, 0.03

_LIBRARY = re.compile(r"nccl-library=(\d+)")
_JSON = {"time": "time", "algbw": "alg_bw", "busbw": "bus_bw", "#wrong": "nwrong"}

_JSON_SETTINGS = {"iters": "iterations", "agg iters": "aggregated_iterations", "graph": "graph"}
_OWN_KEYS = ("op", "algorithm", "world_size", "nodes", "device", "backend")


@dataclass(slots=True, kw_only=True)
class Test:
    """One test of a log. `ranks` are (rank, group, host, GPU) as listed, and `rows` its times by type and reduction.
    `problem` is why the test cannot be used, and `doubt` why its operation is unknown."""

    op: str | None = None
    algorithm: str = "native"
    backend: str = "nccl"
    device: str = "cuda"
    world_size: int | None = None
    nodes: int = 1
    ranks: list[tuple[int, int, str, str]] = field(default_factory=list)
    timing: str = "in a way that the log does not tell"
    calls: int = 1
    rows: dict[tuple[str, str], list[CollectiveSample]] = field(default_factory=dict)
    out_of_bounds: int = 0
    ended: bool = False
    problem: str | None = None
    doubt: str | None = None

    def set_timing(self, numbers: Mapping[str, int], blocking: bool = False) -> None:
        """Set how calls are timed, and how many a time is the mean of, from a log's settings."""
        self.calls = numbers.get("iters", 0) * numbers.get("agg iters", 1) or 1
        way = "calls back to back" + ", captured in a CUDA graph (-G)" * bool(numbers.get("graph"))
        self.timing = "each call waited for (-z)" if blocking else way

    def count_ranks(self) -> None:
        """Set the number of ranks and nodes from the list of ranks, or the problem with it."""
        numbers = [rank for rank, *_ in self.ranks]
        groups = Counter(group for _, group, *_ in self.ranks)
        if not numbers:
            self.problem = None if self.world_size else "it does not list its ranks"
        elif len(set(numbers)) < len(numbers):
            self.problem = "several of its processes are rank 0, as without MPI=1 when nccl-tests was built"
        elif sorted(numbers) != list(range(len(numbers))) or len(set(groups.values())) > 1:
            self.problem = "its list of ranks is not complete"
        else:
            ((first, self.world_size), *_) = groups.items()
            self.nodes = len({host for _, group, host, _ in self.ranks if group == first})
            self.problem = "one rank communicates with nobody" if self.world_size == 1 else None

    def add(self, size: int, type_name: str, redop: str, in_place: bool, told: Mapping[str, object]) -> None:
        """Add one form of a row that has a size and a time, and note if its bandwidths do not fit these."""
        us, algbw, busbw, wrong = (_number(told.get(name)) for name in ("time", "algbw", "busbw", "#wrong"))
        dtype, n = type_of(type_name.replace("fp8", "float8")), self.world_size
        if not us or not size or dtype is None or not n:
            return
        rate = size / us / 1e3
        if algbw is not None and not _near(algbw, rate):
            self.problem = "its algbw is not size by time"
        if self.op and busbw is not None and not _near(busbw, rate * bus_factor(self.op, n)):
            self.doubt = f"its busbw is not that of {self.op} among {n} ranks, so the operation is unknown"
        own = self.rows.setdefault((dtype[0], redop), [])
        step = sum((each.bytes, each.in_place) == (size, in_place) for each in own)
        count = None if wrong is None else int(wrong)
        own.append(
            CollectiveSample(
                0, step, len(own), "", self.algorithm, n, size, None, us / 1e6, Phase.MEASURE, in_place, count,
                dtype=dtype[0], calls=self.calls,
            )
        )  # fmt: skip


def _near(printed: float, exact: float) -> bool:
    return abs(printed - exact) <= _LAST_DIGIT + _TOLERANCE * exact


def _number(value: object) -> float | None:
    """Return a number of a log; None for `N/A` and what is not finite."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 <= number < MOST else None


def _op(program: str) -> str | None:
    """Return our name of what a program measures, such as `all_reduce` for `./build/all_reduce_perf_mpi`."""
    bare = re.sub(r"_perf.*", "", program.rsplit("/", 1)[-1])
    found = "sendrecv" if re.sub(r"[-_]", "", bare.lower()) == "sendrecv" else op_of(bare)
    return found if found in LOGGED_OPS else None


def read(path: Path) -> list[Recording]:
    """Return the one recording in a log or a JSON file of nccl-tests. Raises UsageError if it cannot be read."""
    found, text = opened(path, NAME)
    in_name = {_op(name) for name in _FILE_OP.findall(path.name)}
    op = next(iter(in_name)) if len(in_name) == 1 else None
    if text.lstrip().startswith("{"):
        try:
            told = json.loads(text)
            found.tests, found.log = _of_json(told, op), {"version": _version(told["nccl_version"])}
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            what = error if isinstance(error, ValueError) else "a member is missing, or has another type"
            raise stream.unreadable(path, f"it is no JSON of nccl-tests, or cut off: {what}") from error
    else:
        found.tests, found.log = list(_of_text(text, op)), parse_log(text)
        if library := _LIBRARY.search(text):
            found.log["version"] = _version(int(library[1]))
        found.unknown += [f"a test failed: {line(each)}" for each in _FAILURE.findall(text)[:1]]
    return [found]


def _lines(text: str) -> Iterator[str]:
    """Yield the lines without tags and without NCCL's messages; the parts of a row around a message are joined."""
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
            if numbers := _SETTING.findall(each.partition("nThread")[2]):
                test.set_timing({name: int(number) for name, number in numbers})
        elif each.startswith("# Blocking Enabled"):
            test.set_timing({"iters": test.calls}, blocking=True)
        elif rank := _RANK.match(each):
            test.ranks.append((int(rank[1]), int(rank[2] or 0), line(rank[3]), line(rank[4])))
        elif own := _OWN.match(each):
            test.algorithm, test.backend, test.device = own[1], own[4], own[5]
            test.world_size, test.nodes = int(own[2]), int(own[3] or 1)
        elif header:
            columns = tuple(header[1].split())
        elif row := _ROW.match(each):
            if not test.rows:
                test.count_ranks()
            values, starts = row[5].split(), [at for at, name in enumerate(columns) if name == "time"]
            # A row that is cut off has fewer.
            for in_place, at in enumerate(starts if len(values) >= len(columns) else ()):
                told = dict(zip(columns[at : at + 4], values[at : at + 4], strict=True))
                test.add(int(row[1]), row[3], row[4] or "none", bool(in_place), told)
        elif bounds := _BOUNDS.match(each):
            test.out_of_bounds = int(bounds[1])
        test.ended |= each.startswith("# Avg bus bandwidth")
    yield test


def _of_json(told: Mapping[str, Any], op: str | None) -> list[Test]:
    """Return the tests of a document; those of parabench name operation, algorithm and ranks of each result."""
    config, tests = told["config"], dict[tuple[Any, ...], Test]()
    # A process lists its first rank only.
    each_rank = range(int(config["nthreads"]) * int(config["ngpus"]))
    ranks = [
        (int(one["rank"]) + at, int(one["group"]), line(one["hostname"]), line(one["device_info"]))
        for one in config.get("devices") or []
        for at in each_rank
    ]
    op = next((found for each in told["args"][:1] if (found := _op(str(each)))), op)
    settings = {ours: config[theirs] or 0 for ours, theirs in _JSON_SETTINGS.items()}
    for result in told["results"]:
        own = {name: result[name] for name in _OWN_KEYS if name in result}
        test = tests.setdefault(tuple(own.values()), Test(**{"op": op, "ranks": ranks} | own))
        if not test.rows:
            test.count_ranks()
            test.set_timing(settings, config["blocking_collectives"] not in ("false", 0))
            test.ended, test.out_of_bounds = True, int(told["out_of_bounds"]["count"])
        for in_place, form in enumerate(("out_of_place", "in_place")):
            body = result[form] or {}
            values = {ours: body.get(theirs) for ours, theirs in _JSON.items()}
            test.add(int(result["size"]), result["type"], str(result["redop"] or "none"), bool(in_place), values)
    return list(tests.values()) or [Test()]


def _version(code: int | None) -> str | None:
    """Return '2.25.1' for 22501, and for 2804, as before NCCL 2.9, '2.8.4' (nccl.h)."""
    if code is None:
        return None
    major = 10_000 if code >= 10_000 else 1000
    return f"{code // major}.{code % major // 100}.{code % 100}"


def launches(found: Recording, left_out: dict[str, str]) -> Iterator[tuple[Launch, str]]:
    """Yield each test of a log as a launch, with how it was timed; put what cannot be used into `left_out`."""
    seen: Counter[tuple[Any, ...]] = Counter()
    for number, test in enumerate(found.tests, 1):
        place = found.file if len(found.tests) == 1 else f"{found.file}, test {number}"
        if test.problem or not test.rows:
            left_out[place] = f"left out: {test.problem or 'it has no row with a size and a time'}"
            continue
        if test.doubt or test.op is None:
            test.op = UNKNOWN
            found.unknown.append(test.doubt or "neither the log nor its name tells the operation")
        if not test.ended:
            found.unknown.append("it ends before its last line, and what it has was read")
        for kind in test.rows:
            seen[test.op, test.algorithm, test.world_size, kind] += 1
            first = seen[test.op, test.algorithm, test.world_size, kind] == 1
            try:
                yield _launch(test, kind, line(found.file if first else place), found.log), test.timing
            except UsageError as error:
                left_out[place] = f"left out: {error}"


def _launch(test: Test, kind: tuple[str, str], source: str, log: Mapping[str, Any]) -> Launch:
    """Return a test's rows of one type and reduction. Raises UsageError if no case can hold them."""
    rows, sizes = test.rows[kind], [each.bytes or 0 for each in test.rows[kind]]
    case = CollectiveCase(
        op=test.op or UNKNOWN, algorithm=test.algorithm, world_size=test.world_size or 0, nodes=test.nodes,
        dtype=kind[0], redop=kind[1], min_bytes=min(sizes), max_bytes=max(sizes), factor=None, device=test.device,
        backend=test.backend, source=source,
    )  # fmt: skip
    wrong = sum(each.n_wrong or 0 for each in rows) or test.out_of_bounds
    facts: dict[str, Any] = {name: line(log[name]) if log.get(name) else None for name in ("version", "network")}
    hosts, gpus = distinct(each[2] for each in test.ranks), distinct(each[3] for each in test.ranks)
    facts |= {"file": source, "hosts": hosts, "gpus": gpus, "transports": log.get("transports") or {}}
    return Launch(
        case=case,
        status=Status.WRONG if wrong else Status.OK,
        started_utc=utc_now(),
        wall_s=math.nan,
        failure=Failure(f"{wrong:,} elements are wrong or out of bounds") if wrong else None,
        collectives=[each._replace(op=case.op) for each in rows],
        facts={"log": facts},
    )
