"""`parabench predict`: what it answers, and each wrong question in one line."""

import json
from pathlib import Path
from unittest.mock import patch

import jsonschema
import pytest

from command_line import parabench
from docs.site.schemas import schema
from fake_base import ROWS, base, of_ranks
from nccl_tests_logs import SIZES, call_us, log
from parabench.imports.into_store import link_rows

SCHEMA = schema("predict")


def predict(*arguments: str, nodes: int = 2) -> tuple[int, str]:
    """Return the exit code and output, with links measured on this number of nodes."""
    rows = tuple(row for row in ROWS if row.nodes <= nodes)
    trained = {of_ranks(2, bucket_mib=25.0): 0.37}
    with (
        patch("parabench.analysis.prediction.base.base_of", lambda _: base(rows=rows, measured=trained)),
        patch("parabench.analysis.prediction.base.training_step_times", lambda _: trained),
        patch("parabench.store.results.load", lambda path: path),
    ):
        result = parabench("predict", "base", *arguments)
    return result.exit_code, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "how many ranks? give --world-size 8"),
        (["--world-size", "8,,16"], "world_size='8,,16': '' is not a value of world_size"),
        (["--world-size", "3"], "world size 3 does not fill nodes of 2 ranks"),
        (["--world-size", "8", "--set", "strategy=nope"], "what ranks of 'nope' compute was not measured; use ddp"),
        (["--world-size", "8", "--set", "world_size=8"], "ranks are given by --world-size and --ranks-per-node"),
        (["--world-size", "8", "--set", "batch_per_rank=3"], "samples, was not measured"),
        (["--world-size", "8", "--set", "tp_size=2"], "tp_size makes no sense here: ddp has no such option"),
        (["--world-size", "8", "--link", "25GB/s,20us"], "the tier is '25GB/s,20us'; give node=25GB/s,20us"),
        (["--world-size", "8", "--link", "node=25GB/s"], "is not a bandwidth and a latency"),
        (["--world-size", "8", *(["--link", "node=1GB/s,1us"] * 2)], "--link node is given twice"),
        (["--world-size", "8", "--check", "x.db"], "give it alone"),
        (["--world-size", "8", "--links-from", "x.log"], "these logs are of NCCL, and the training runs used gloo"),
    ],
)  # fmt: skip
def test_predict_rejects_a_wrong_question_in_one_line(arguments: list[str], said: str) -> None:
    code, output = predict(*arguments)
    assert code == 2
    assert said in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--world-size", "2,16", "--set", "algorithm=native,tree"],
        ["--world-size", "16", "--best"],
        ["--check", "other.db"],
    ],
)
def test_predict_json_follows_its_schema(tmp_path: Path, arguments: list[str]) -> None:
    code, _ = predict(*arguments, "--json", str(tmp_path / "predicted.json"))
    assert code == 0
    written = json.loads((tmp_path / "predicted.json").read_text())
    jsonschema.validate(written, SCHEMA)
    assert written["tables"]["predictions"]


def test_links_from_logs_are_rows_of_native_collectives(tmp_path: Path) -> None:
    # Wrong results, unknown operations and ranks that do not fill their nodes are left out.
    logs = {
        "all_reduce": log(),
        "wrong": log(wrong="3", bounds=18),
        "unnamed": log(named=False),
        "uneven": log(ranks=3),
    }
    for name, text in logs.items():
        (tmp_path / f"{name}.log").write_text(text)
    rows = link_rows(tmp_path, "nccl")
    assert {row[:4] for row in rows} == {("all_reduce", "native", 4, 2)}
    assert sorted(row.bytes for row in rows) == sorted(SIZES)
    for row in rows:
        assert row.seconds == pytest.approx(1e-6 * call_us(row.bytes), rel=0.01)
