"""`parabench predict`: what it answers, and each wrong question in one line."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import jsonschema
import pytest

from command_line import parabench
from fake_base import TABLES, base, of_ranks
from fake_results import family
from parabench.analysis.prediction.base import Measured

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/reference/predict.schema.json").read_text())


def predict(*arguments: str, nodes: int = 2) -> tuple[int, str]:
    """The exit code and output, from a base whose links were measured on so many nodes."""
    tables = {key: each for key, each in TABLES.items() if key.nodes <= nodes}
    trained = [Measured(of_ranks(2, bucket_mib=25.0), 0.37)]
    with (
        patch(
            "parabench.analysis.prediction.base.base_of", lambda _: base(collectives=tables, measured=tuple(trained))
        ),
        patch("parabench.analysis.prediction.base.trainings", lambda _: trained),
        patch("parabench.store.results.load", lambda path: path),
    ):
        result = parabench("predict", "base", *arguments)
    return result.exit_code, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "of how many ranks? give --world-size 8"),
        (["--world-size", "0"], "--world-size '0' is not a number of ranks"),
        (["--world-size", "8,,16"], "--world-size '8,,16' is not a number of ranks"),
        (["--world-size", "3"], "world size 3 does not fill nodes of 2 ranks"),
        (["--world-size", "8", "--set", "strategy"], "--set 'strategy': give AXIS=VALUE"),
        (["--world-size", "8", "--set", "strategy=nope"], "what ranks of 'nope' compute was not measured; use ddp"),
        (["--world-size", "8", "--set", "world_size=8"], "ranks are given by --world-size and --ranks-per-node"),
        (["--world-size", "8", "--set", "batch_per_rank=3"], "samples, was not measured"),
        (["--world-size", "8", "--set", "batch_per_rank=0"], "batch_per_rank is 0"),
        (["--world-size", "8", "--set", "tp_size=2"], "tp_size makes no sense here: ddp has no such option"),
        (["--world-size", "8", "--set", "algorithm=foo"], "algorithm 'foo' is unknown"),
        (["--world-size", "9999999999999"], "more ranks than any machine has"),
        (["--world-size", "8", "--link", "node=1e-300B/s,1us"], "a step would take centuries"),
        (["--world-size", "8", "--link", "25GB/s,20us"], "the tier is '25GB/s,20us'; give node=25GB/s,20us"),
        (["--world-size", "8", "--link", "rack=25GB/s,20us"], "the tier is 'rack'"),
        (["--world-size", "8", "--link", "node=25GB/s"], "is not a bandwidth and a latency"),
        (["--world-size", "8", "--link", "node=0GB/s,1us"], "is not a bandwidth and a latency"),
        (["--world-size", "8", *(["--link", "node=1GB/s,1us"] * 2)], "--link node is given twice"),
        (["--world-size", "8", "--best", "--buckets"], "different questions"),
        (["--world-size", "8", "--best", "--set", "strategy=parameter_server_async"], "it cannot be measured alone"),
        (["--world-size", "8", "--check", "x.db"], "leave --world-size, --ranks-per-node and --set out"),
        (["--buckets", "--set", "strategy=fsdp"], "what ranks of 'fsdp' compute was not measured"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_one_line(arguments: list[str], said: str) -> None:
    code, output = predict(*arguments)
    assert code == 2
    assert said in output
    assert "Traceback" not in output


def test_where_all_is_refused_the_exit_code_says_so() -> None:
    code, output = predict("--world-size", "16", nodes=1)
    assert code == 2
    assert "links between nodes were not measured for all_reduce native" in output
    # What can be told is told.
    assert predict("--world-size", "2,16", nodes=1)[0] == 0
    assert predict("--world-size", "16", "--link", "node=1GB/s,10us", nodes=1)[0] == 0


def test_a_number_of_ranks_that_fills_no_nodes_is_refused_by_itself(tmp_path: Path) -> None:
    code, output = predict("--world-size", "3,8", "--json", str(tmp_path / "told.json"))
    assert code == 0
    assert "ddp native, 8 ranks on 4 nodes" in output
    assert "refused ddp native, 3 ranks: world size 3 does not fill nodes of 2 ranks; give a multiple" in output
    told = json.loads((tmp_path / "told.json").read_text())
    jsonschema.validate(told, SCHEMA)
    assert {each["case"]["world_size"]: "refused" in each for each in told} == {8: False, 3: True}
    # Another number of ranks on a node is another question.
    assert "refused" not in predict("--world-size", "3,6", "--ranks-per-node", "3", "--link", "local=9GB/s,9us")[1]


def test_json_is_as_its_schema_says(tmp_path: Path) -> None:
    for arguments in (
        ["--world-size", "2,16", "--set", "algorithm=native,tree"],
        ["--world-size", "16", "--best"],
        ["--buckets"],
        ["--check", "other.db"],
    ):
        code, _ = predict(*arguments, "--json", str(tmp_path / "told.json"))
        assert code == 0
        told = json.loads((tmp_path / "told.json").read_text())
        jsonschema.validate(told, SCHEMA)
        assert told


def test_a_store_without_what_it_needs_is_told_what_to_measure(tmp_path: Path) -> None:
    family(tmp_path / "results.db")
    told = parabench("predict", str(tmp_path), "--world-size", "8")
    assert told.exit_code == 2
    assert "does not tell what a rank computes alone" in told.stderr
    assert "parabench run foresight --out FOLDER" in told.stderr
    missing = parabench("predict", str(tmp_path / "nothing.db"), "--world-size", "8")
    assert (missing.exit_code, "nothing.db does not exist" in missing.stderr) == (2, True)
    assert parabench("predict", f"{tmp_path}@1", "--world-size", "8").exit_code == 2
