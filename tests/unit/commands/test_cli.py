from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import fake_results as fake
from parabench.cli import main
from parabench.plan.suite import shipped
from parabench.session.progress import PatientConsole, logger


def parabench(*arguments: object):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    "command", ["run", "collectives", "report", "serve", "best", "compare", "history", "export", "list", "doctor"]
)
def test_every_command_has_help(command):
    result = parabench(command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output
    assert command in parabench("--help").output


def test_list_shows_all_that_there_is():
    said = parabench("list").output
    for name in (
        *shipped(),
        "single",
        "ddp",
        "fsdp",
        "tp",
        "native",
        "ring",
        "tree",
        "two_level",
        "gpt-nano",
        "gpt2-xl",
    ):
        assert f"  {name} " in said
    assert "this machine:" in said
    assert "ranks" in said


def test_doctor_names_devices_versions_and_doubts():
    result = parabench("doctor")
    assert result.exit_code == 0
    for word in ("cpu ", "gpus ", "versions ", "torch 2.", "backends ", "gloo yes", "shared_cpu"):
        assert word in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "no suite is given"),
        (["run", "qick"], "suite 'qick' is unknown; use one of"),
        (["run", "no/such.py"], "suite 'no/such.py' is unknown"),
        (["run", "quick", "--set", "bucket=1"], "axis 'bucket' is unknown; use one of strategy,"),
        (["run", "quick", "--set", "bucket_mib"], "give AXIS=VALUE"),
        (["run", "quick", "--set", "bucket_mib=big"], "'big' is not a value of bucket_mib"),
        (["run", "quick", "--set", "strategy=ddpp"], "did you mean 'ddp'"),
        (["run", "quick", "--set", "algorithm=rung"], "did you mean 'ring'"),
        (["run", "quick", "--model", "gpt9"], "model 'gpt9' is unknown"),
        (
            [
                "run",
                "quick",
                "--data",
                "synthetic",
                "--set",
                "strategy=ddp",
                "--set",
                "world_size=512",
                "--set",
                "global_batch=512",
            ],
            "world_size 512 is larger than",
        ),
        (["run", "quick", "--set", "global_batch=7"], "global_batch 7 does not divide by world_size 2"),
        (["run", "quick", "--data", "text:/no/file"], "'/no/file' cannot be read"),
        (["run", "quick", "--label", "../x"], "label '../x'"),
        (["run", "quick", "--steps", "0"], "steps is 0"),
        (
            ["run", "quick", "--deadline", "0"],
            "deadline_s is 0.0; it must be a number above 0 and",
        ),
        (["run", "quick", "--resume"], "holds no session to resume"),
        (["report", "no.db"], "no.db does not exist"),
        (["best", "no.db"], "no.db does not exist"),
        (["compare", "no.db", "no.db"], "no.db does not exist"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = parabench(*arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="/proc refuses to be written to by anybody, but as root only it says so")
def test_an_output_folder_that_cannot_be_written_is_refused():
    result = parabench("run", "quick", "--out", "/proc/parabench")
    assert result.exit_code == 2
    assert "output folder '/proc/parabench' cannot be written" in result.stderr


def test_a_file_in_the_way_of_the_output_folder_is_refused(tmp_path):
    (tmp_path / "out").touch()
    result = parabench("run", "quick", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


@pytest.fixture
def stores(tmp_path):
    cases = [fake.case(bucket_mib=b) for b in (1.0, 4.0)]
    for name, factor in (("base", 1.0), ("same", 1.001), ("slow", 1.5)):
        launches = fake.sweep(
            cases, lambda c, f=factor: f * (0.04 if c.bucket_mib == 4 else 0.05), noise=0.002, blocks=5
        )
        fake.write(tmp_path / f"{name}.db", launches)
    return tmp_path


def test_best_in_words_and_numbers(stores):
    assert "Fastest: ddp native 4 MiB" in parabench("best", stores / "base.db").output
    (answer,) = json.loads(parabench("best", stores / "base.db", "--json").output)
    assert answer["best"]["step_time_s"] == pytest.approx(0.04, rel=0.02)


def test_compare_exits_with_0_1_or_3(stores):
    same = parabench("compare", stores / "base.db", stores / "same.db", "--tolerance", "20%")
    assert same.exit_code == 0
    assert same.output.startswith(
        "No regression. Slowdowns above 20 % are ruled out (95 %; the largest upper bound is +1"
    )
    unseen = parabench("compare", stores / "base.db", stores / "same.db", "--tolerance", "0.0001")
    assert unseen.exit_code == 3
    assert unseen.output.startswith("Inconclusive: slowdowns above 0.01 % are not ruled out")
    slow = parabench("compare", stores / "base.db", stores / "slow.db")
    assert slow.exit_code == 1
    assert slow.output.count("slower: ") == 2


@pytest.mark.parametrize("share", ["two", "2", "-1%", "nan", "100%", "200%", ""])
def test_a_tolerance_is_a_share(stores, share):
    result = parabench("compare", stores / "base.db", stores / "same.db", "--tolerance", share)
    assert result.exit_code == 2
    assert f"{share!r} is no share of 0 or more and below 1; write 2% or 0.02" in result.stderr


def test_compare_refuses_to_judge_nothing(stores, tmp_path):
    fake.write(tmp_path / "other.db", fake.sweep([fake.case(bucket_mib=9.0)], lambda c: 0.04))
    result = parabench("compare", stores / "base.db", tmp_path / "other.db")
    assert result.exit_code == 2
    assert "no case is in both" in result.stderr


def test_report_writes_where_it_is_told(stores, tmp_path):
    result = parabench("report", stores / "base.db", "-o", tmp_path / "deep.html")
    assert result.output.strip() == str(tmp_path / "deep.html")
    assert (tmp_path / "deep.html").read_text().startswith("<!doctype html>")


def test_a_report_never_takes_the_place_of_a_store(stores):
    before = (stores / "base.db").read_bytes()
    result = parabench("report", stores / "base.db", "-o", stores / "base.db")
    assert result.exit_code == 2
    assert "is a database, not a page" in result.stderr
    assert (stores / "base.db").read_bytes() == before


def test_a_damaged_store_is_a_line(stores):
    whole = (stores / "base.db").read_bytes()
    (stores / "damaged.db").write_bytes(whole[:4096] + b"x" * (len(whole) - 4096))
    (stores / "empty.db").touch()
    for name in ("damaged.db", "empty.db", "x" * 300):
        result = parabench("best", stores / name)
        assert result.exit_code == 2, name
        assert result.stderr.count("\n") == 1


def test_a_gate_that_can_judge_nothing_does_not_pass(tmp_path):
    for name in ("a", "b"):
        fake.write(tmp_path / f"{name}.db", [fake.launch(fake.case(), 0.04)])
    result = parabench("compare", tmp_path / "a.db", tmp_path / "b.db")
    assert result.exit_code == 3
    assert result.output.startswith("Inconclusive: no case has enough launches on both sides to be judged.")


def test_an_unknown_session_is_named(stores):
    result = parabench("best", stores / "base.db", "--session", "nightly")
    assert result.exit_code == 2
    assert "nightly" in result.stderr


def test_a_full_disk_behind_standard_output_is_a_line(stores):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "parabench", "best", str(stores / "base.db")]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "parabench: what is said cannot be written: [Errno 28] No space left on device\n"


def test_a_full_disk_behind_a_runs_standard_output_ends_no_run(capsys):
    """What is measured is in the store; that nobody reads of it is said once."""
    with Path("/dev/full").open("w") as full:
        console = PatientConsole(file=full)
        for line in ("one", "two"):
            logger(console)(line)
    said = (
        "parabench: standard output cannot be written: [Errno 28] No space left on device; what follows is not shown\n"
    )
    assert capsys.readouterr().err == said


def test_a_run_whose_standard_output_is_closed_measures(tmp_path):
    words = [sys.executable, "-m", "parabench", "run", "quick", "--set", "strategy=single", "--launches", "1"]
    words += ["--steps", "1", "--set", "device=cpu", "--out", str(tmp_path)]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report.html").is_file()
