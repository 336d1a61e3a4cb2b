"""Files beside stores that are not ours: data, NCCL's logs, suites, templates, a series of proposals."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import recordings
from command_line import parabench
from nccl_logs import LOGS
from parabench.ab.series import read_series, table
from parabench.data import mnist, text
from parabench.errors import UsageError
from parabench.plan.suite import load_suite
from parabench.probes.nccl import inspector_ops, parse_log
from parabench.report.assets import copy_to, names
from tests.faults import outputs, stores
from tests.faults.mutations import DEEP, HUGE
from tests.faults.naughty import NO_TEXT, TEXTS

Wrong = Iterator[tuple[str, str]]


def mutated(raw: bytes, lot: Random) -> bytes:
    """The bytes of a file, changed by lot: cut, flipped, doubled, with something hostile within, or something else."""
    at = lot.randrange(len(raw) + 1)
    text = lot.choice(TEXTS).encode(errors="replace")
    numbers = (b"0", b"-1", b"9" * 5000, b"1e999", b"NaN", b"null", b"[]", b"{}", b'""', b"4294967295", b"\xff" * 4)
    hostile = lot.choice((text, *NO_TEXT, lot.choice(numbers), b"\0", b"\n", lot.choice(numbers)))
    if lot.random() < 0.1:
        return lot.choice((b"", hostile, b"\0" * len(raw), lot.randbytes(len(raw)), b"[" * DEEP, b'{"a":' * DEEP))
    if lot.random() < 0.5 and (digits := [place for place, byte in enumerate(raw) if byte in b"0123456789"]):
        place = lot.choice(digits)  # a number becomes something else
        return raw[:place] + hostile + raw[place + 1 :]
    return lot.choice(
        (
            raw[:at],
            raw[:at] + hostile + raw[at:],
            raw[:at] + hostile + raw[at + len(hostile) :],
            raw[:at] + raw[at // 2 :],
            raw[:at] + bytes([lot.randrange(256)]) + raw[at + 1 :],
        )
    )


def refusal(error: Exception) -> Wrong:
    """What is wrong with a refusal: as the command line prints it, it is one line."""
    from parabench.analysis.text import format

    yield from (("output", each) for each in outputs.of_terminal(format.error_line(error)))


def idx(made: Path, folder: Path, lot: Random) -> Wrong:
    n, images = 5, bytes([0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(5 * 28 * 28)
    files = {mnist.IMAGES: images, mnist.LABELS: bytes([0, 0, 8, 1, 0, 0, 0, n, *range(n)])}
    which = lot.choice(list(files))
    for name, raw in files.items():
        packed = lot.random() < 0.5
        changed = mutated(raw[: lot.choice((16, len(raw)))], lot) if name == which and lot.random() < 0.5 else raw
        content = gzip.compress(changed, 1) if packed else changed
        if name == which and changed is raw:
            content = mutated(content, lot)
        if packed and lot.random() < 0.05:
            content = gzip.compress(bytes(4 << 30 >> 2), 9) if lot.random() < 0.02 else gzip.compress(bytes(HUGE), 1)
        (folder / f"{name}{'.gz' * packed}").write_bytes(content)
    try:
        mnist.read(str(folder))
        mnist.count(str(folder))
    except UsageError as error:
        yield from refusal(error)


def texts(made: Path, folder: Path, lot: Random) -> Wrong:
    """A text and a vocabulary of tiktoken's."""
    import base64

    lines = [f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(256)]
    words, vocabulary = folder / "words.txt", folder / "vocabulary.tiktoken"
    words.write_bytes(mutated(b"some words <|endoftext|> of 1 text\n" * 20, lot))
    vocabulary.write_bytes(mutated("\n".join([*lines, "dGg= 256"]).encode(), lot) if lot.random() < 0.7 else
                           "\n".join(lines).encode())  # fmt: skip
    try:
        text.byte_count(f"text:{words}")
        text.vocabulary_size(str(vocabulary))
        text.encode(words, str(vocabulary))
    except UsageError as error:
        yield from refusal(error)


def nccl_log(made: Path, folder: Path, lot: Random) -> Wrong:
    log = mutated(lot.choice(LOGS).encode(), lot).decode(errors="replace")
    yield from (("output", each) for each in outputs.of_json(json.dumps(parse_log(log), allow_nan=False)))


CALL = {
    "header": {"id": "0x7f", "rank": 0, "n_ranks": 2, "nnodes": 1},
    "metadata": {"inspector_output_format_version": "v4.0", "timestamp_usec": 17, "pid": 9},
    "coll_perf": {
        "coll": "AllReduce", "coll_sn": 3, "coll_msg_size_bytes": 4096, "coll_exec_time_us": 61, "coll_algobw_gbs": 0.1,
        "coll_busbw_gbs": 0.2,
    },
}  # fmt: skip


def inspector(made: Path, folder: Path, lot: Random) -> Wrong:
    """What NCCL's Inspector leaves: a JSON object a call."""
    whole = "\n".join(json.dumps(CALL, indent=lot.choice((None, 2))) for _ in range(lot.randrange(1, 9)))
    raw = mutated(whole.encode(), lot)
    told = inspector_ops(raw.decode(errors="replace"))
    yield from (("output", each) for each in outputs.of_json(json.dumps(told, allow_nan=False)))


RECORDINGS: dict[str, object] = {
    "rank0.json": recordings.of_gpu(0),
    "rank1.json.gz": recordings.of_gpu(1, host="node1"),
    "nccl_trace_rank_0": recordings.dump(recordings.entry(1), recordings.entry(2, **recordings.RUNNING)),
    "nccl_trace_rank_1.json": recordings.dump(recordings.entry(1)),
    "node0-pid9.log": CALL,
}


def recorded(made: Path, folder: Path, lot: Random) -> Wrong:
    """A folder of others' recordings, of which one or two files are damaged."""
    source, page = folder / "source", folder / "page.html"
    source.mkdir()
    wrong = lot.sample(sorted(RECORDINGS), lot.choice((1, 1, 2)))
    for name, told in RECORDINGS.items():
        raw = pickle.dumps(told, lot.choice((2, 4))) if name == "nccl_trace_rank_0" else json.dumps(told).encode()
        packed = name.endswith(".gz")
        if name in wrong and not (packed and lot.random() < 0.3):
            raw = mutated(raw, lot)
        content = gzip.compress(bytes(HUGE) if packed and lot.random() < 0.02 else raw, 1) if packed else raw
        (source / name).write_bytes(
            mutated(content, lot) if packed and name in wrong and lot.random() < 0.3 else content
        )
    done = parabench("report", "--from", source, "-o", page)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    left = sorted(path.name for path in folder.iterdir())
    if done.exit_code == 2:
        yield from (("output", each) for each in outputs.of_refusal(done.stderr, done.stdout))
        if left != ["source"]:
            yield "output", f"half written: {left}"
    elif done.exit_code or left != ["page.db", "page.html", "source"]:
        yield "exit_code", f"{done.exit_code}, {left}"
    else:
        yield from (("output", each) for each in outputs.of_page(page.read_text()))


def series(made: Path, folder: Path, lot: Random) -> Wrong:
    """What `parabench ab --series` left of proposals."""
    one = {
        "number": 1, "baseline": "a", "proposal": "b", "alpha": 0.025, "seconds": 1.5, "accept": True, "why": "",
        "gain": 0.02, "low": 0.01, "high": 0.03, "pairs": 4,
    }  # fmt: skip
    whole = {"alpha": 0.05, "least": 0.01, "proposals": [one, one | {"number": 2, "keep": None}]}
    (folder / "series.json").write_bytes(mutated(json.dumps(whole).encode(), lot))
    try:
        found = read_series(folder)
        assert found is not None
        from parabench.ab.series import lines
        from parabench.analysis.text import format

        said = [*table(found), *(lines(found) if found.proposals else [])]
        yield from (("output", each) for line in said for each in outputs.of_terminal(format.printable(line)))
    except UsageError as error:
        yield from refusal(error)


SUITE = '''"""Which bucket size is fastest?"""

from parabench import Protocol, sweep

PROTOCOL = Protocol(warmup=5, steps=20, launches=3)
CASES = [sweep(strategy=("ddp", "fsdp"), bucket_mib=(1, 25), world_size=2, device="cpu")]
'''


def suite(made: Path, folder: Path, lot: Random) -> Wrong:
    path = folder / "suite.py"
    path.write_bytes(mutated(SUITE.encode(), lot))
    try:
        load_suite(str(path))
    except UsageError as error:
        yield from refusal(error)
        return
    yield from stores.asked("run", path, "--dry-run", "--out", folder / "out")


def template(made: Path, folder: Path, lot: Random) -> Wrong:
    """One of a reader's own templates, styles or scripts."""
    kept = made / "templates"
    name = lot.choice(names())
    own = folder / "own" / name
    own.parent.mkdir(parents=True)
    raw = (kept / name).read_bytes()
    broken = lot.choice(
        (b"{{ nothing }}", b"{% for %}", b"{{ session.name() }}", b"{% include 'x.html' %}", b"{{ 1 / 0 }}")
    )
    at = lot.randrange(len(raw) + 1)
    own.write_bytes(raw[:at] + broken + raw[at:] if lot.random() < 0.3 else mutated(raw, lot))
    page = folder / "report.html"
    done = parabench("report", stores.base(made, "planned"), "--template", folder / "own", "-o", page)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if done.exit_code == 2:
        yield from (("output", each) for each in outputs.of_refusal(done.stderr, done.stdout))
    elif done.exit_code:
        yield "exit_code", str(done.exit_code)
    shutil.rmtree(folder / "own")


def make(made: Path) -> None:
    """What tries start from."""
    for name in stores.BASES:
        stores.base(made, name)
    copy_to(made / "templates")


FAMILIES: dict[str, tuple[Callable[[Path, Path, Random], Wrong], float]] = {
    "data: IDX": (idx, 0.1),
    "data: text": (texts, 0.05),
    "NCCL's log": (nccl_log, 0.1),
    "NCCL's Inspector": (inspector, 0.1),
    "recordings": (recorded, 0.1),
    "series of proposals": (series, 0.1),
    "suite": (suite, 0.03),
    "template": (template, 0.03),
}
