"""Run the code blocks of docs/how-to/notebook.md and compare the outputs. `make golden` writes them."""

import contextlib
import io
import itertools
import re
from pathlib import Path

import pytest

import fake_results as fake
from paths import DOCS

PAGE = DOCS / "how-to/notebook.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(\n```text\n.*?^```\n)?", re.MULTILINE | re.DOTALL)
MIB = 2**20


PARTS = {"data": 0.002, "forward": 0.012, "backward": 0.022, "optimizer": 0.004}
OPS = {
    "ddp": (("all_reduce", 0.010), ("all_reduce", 0.006)),
    "fsdp": (("all_gather", 0.004), ("reduce_scatter", 0.012)),
}


def write(path: str, side: str, factor: float = 1.0) -> None:
    """Write a session of three configurations, each with an instrumented step in each launch."""
    cases = [fake.case(bucket_mib=size) for size in (4.0, 25.0)] + [fake.case(strategy="fsdp")]
    seconds, peaks = (0.040, 0.042, 0.052), (120, 140, 90)
    launches = []
    for repetition, (at, one) in itertools.product(range(4), enumerate(cases)):
        noise = 1 + (5 * at + (3 if side == "a" else 4) * repetition) % 7 / 1000
        of = fake.launch(one, seconds[at] * factor * noise, repetition=repetition, peak_bytes=peaks[at] * MIB)
        for rank in range(one.world_size):
            calls = [
                {
                    "op": op,
                    "bytes": 4 * MIB,
                    "start_s": 0.016 + 0.01 * i,
                    "duration_s": duration + 0.0001 * (repetition + rank),
                }
                for i, (op, duration) in enumerate(OPS[one.strategy])
            ]
            fake.instrumented(of, 25, rank, parts=PARTS, waits=[(0.030, 0.034)], calls=calls)
        launches.append(of)
    fake.write(Path(path), launches, label=Path(path).stem, interleaved={"run": "1", "side": side})


def test_blocks_of_the_notebook_page_print_its_outputs(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("base.db", "a")
    write("results.db", "b", factor=1.08)
    names: dict[str, object] = {}

    def with_output(block: re.Match[str]) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(block[1], names)
        lines = "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())
        return f"```python\n{block[1]}```\n" + (f"\n```text\n{lines}```\n" if lines else "")

    text = BLOCK.sub(with_output, PAGE.read_text())
    if request.config.getoption("--golden"):
        PAGE.write_text(text)
    assert text == PAGE.read_text(), "if this is correct: make golden"
