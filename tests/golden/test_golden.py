"""Compare the command-line output with the files in tests/golden, which `make golden` writes."""

import io
import os
import re
import shlex
import signal
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from click.testing import CliRunner
from rich.console import Console

import every_warning
import fake_collectives
import fake_results as fake
from command_line import parabench
from fake_base import base, of_ranks
from fake_launch import FakeLauncher
from fake_sides import InProcess
from parabench import __version__
from parabench.ab import agent, driver
from parabench.ab.agent import VariantAgent
from parabench.ab.variant import OnEvent, Variant, read_variant
from parabench.analysis.compare import gate
from parabench.cli import COMMANDS, main
from parabench.commands import doctor
from parabench.commands.init import warning
from parabench.data.trial import Trial, warnings_of
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.session.progress import make_progress
from parabench.session.request import Request
from parabench.session.session import run_session
from parabench.signals import Interrupted, signals_restored
from parabench.store.record import EXPLAIN_REPETITION, REFERENCE_REPETITION, Failure, Finding, Status
from parabench.store.results import load

GOLDEN = Path(__file__).parent
HERE = Machine(cores=8, gpus_reason="this machine has none")
OOM = {"status": Status.OOM, "failure": Failure("torch.OutOfMemoryError: 2 GiB of 1 GiB", rank=1)}

SUITE = '''\
"""Which bucket size is fastest?"""

from parabench import Protocol, sweep

CASES = [
    sweep(strategy="single", device="cpu"),
    sweep(strategy="ddp", bucket_mib=(1, 25), algorithm=("native", "ring"), world_size=2, device="cpu"),
]
PROTOCOL = Protocol(warmup=2, steps=4, launches=3, instrumented=0)
'''


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Use the same machine, terminal width and folder for all commands."""
    users = ("commands.doctor", "commands.init", "commands.list", "session.dry_run", "session.session")
    for module in ("machine.machine", *users):
        monkeypatch.setattr(f"parabench.{module}.this_machine", lambda: HERE)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    with signals_restored():
        yield


def said_by(*words: object) -> str:
    """Return the output and the exit code of a command."""
    # stdout and stderr as one text, in any version of click.
    result = CliRunner().invoke(main, [str(word) for word in words], prog_name="parabench")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output + (f"exit code {result.exit_code}\n" if result.exit_code else "")


def told(run: Callable[[Console], int]) -> str:
    console = Console(file=io.StringIO(), width=200)
    code = run(console)
    return console.file.getvalue() + f"exit code {code}\n"  # type: ignore[attr-defined]


def started(path: str, times: list[str]) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for number, utc in enumerate(times, 1):
            db.execute("UPDATE session SET started_utc = ? WHERE id = ?", (utc, number))


def store(name: str, factor: float = 1.0, seed: int = 0, **more: Any) -> str:
    cases = [fake.case(bucket_mib=bucket) for bucket in (1.0, 4.0, 25.0)]
    slowness = {1.0: 1.15, 4.0: 1.0, 25.0: 1.02}
    launches = fake.sweep(
        cases, lambda one: 0.04 * factor * slowness[one.bucket_mib or 25.0], noise=0.002, repetitions=6, seed=seed
    )
    fake.write(Path(name), launches, label=name.removesuffix(".db"), **more)
    started(name, ["2026-01-05T08:00:00.000Z"])
    return name


def predicted(*arguments: str) -> str:
    """Return the output of `parabench predict` for fixed measurements."""
    near = of_ranks(2, bucket_mib=25.0)
    trained = {near: 0.37, of_ranks(8, nodes=4): 0.6}
    at = "parabench.analysis.prediction.base"
    with (
        patch(f"{at}.base_of", lambda _: base(measured={near: 0.37})),
        patch(f"{at}.training_step_times", lambda _: trained),
        patch("parabench.store.results.load", lambda path: path),
    ):
        return str(parabench("predict", "base", *arguments).output)


def of_help(command: str) -> str:
    return said_by(*command.split(), "--help")


def of_doctor(monkeypatch: pytest.MonkeyPatch, gpus: bool) -> str:
    gpu = {"name": "NVIDIA H200", "memory_bytes": 150 * 10**9}
    facts = fake.ENVIRONMENT | {
        "numa": {"nodes": [{"node": 0, "cpus": "0-7", "memory_bytes": 17_179_869_184}], "reasons": {}},
        "network": {"interfaces": [{"name": "eth0", "bits_per_s": 10**10}], "infiniband": []},
        "gpus": [gpu, gpu] if gpus else [],
        "driver": {"version": "575.57.08", "cuda": "12.9"},
        "links": {"matrix": [["X", "NV18"], ["NV18", "X"]]},
    }
    there = replace(HERE, gpus=(Gpu("NVIDIA H200", 150 * 10**9, 0), Gpu("NVIDIA H200", 150 * 10**9, 1)) if gpus else ())
    monkeypatch.setattr(doctor, "this_machine", lambda: there)
    monkeypatch.setattr(doctor, "environment", lambda of: facts)
    monkeypatch.setattr("parabench.machine.gpu_checks.check", lambda *of: [])
    monkeypatch.setattr(doctor, "_samplers", lambda: "resident sets and other processes' share of the CPU")
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 0.0 if gpus else 60.0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1e11 if gpus else 1e9))
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: gpus)
    monkeypatch.setattr(os, "cpu_count", lambda: 8 if gpus else 64)
    monkeypatch.setattr(doctor, "Path", lambda path: SimpleNamespace(glob=lambda pattern: []))
    return said_by("doctor")


def of_dry_run(*words: str) -> str:
    Path("mine.py").write_text(SUITE)
    return said_by("run", "mine.py", "--dry-run", *words)


def of_run(**more: Any) -> str:
    Path("mine.py").write_text(SUITE)
    launcher = FakeLauncher(lambda case: 0.010 * (1.2 if case.algorithm == "ring" else 1.0))
    if more.pop("failing", False):
        launcher.failing = {"single": (Status.CRASHED, Failure("killed by SIGKILL", rank=0, signal="SIGKILL"))}
    launcher.interrupt_at = more.pop("interrupt_at", None)
    return told(
        lambda console: run_session(Request.of(suite="mine.py", argv=[], out=Path("out"), **more), console, launcher)
    )


def variant_here(variant: Variant, heard: OnEvent, slower: float) -> InProcess:
    """Return a variant of `ab` in this process, with a fake launcher; variant b takes `slower` times as long."""
    times = slower if variant.name == "b" else 1.0
    launcher = FakeLauncher(lambda case: times * (0.012 if case.algorithm == "ring" else 0.010))
    return InProcess(variant, heard, VariantAgent(lambda event: None, launcher))


def of_ab(monkeypatch: pytest.MonkeyPatch, slower: float) -> str:
    Path("mine.py").write_text(SUITE)
    monkeypatch.setattr(agent, "this_machine", lambda: HERE)
    sides = [read_variant("a", ""), read_variant("b", "SIDE_B=1")]
    monkeypatch.setattr(
        driver, "running", lambda _, heard: nullcontext([variant_here(one, heard, slower) for one in sides])
    )
    monkeypatch.setattr(driver, "pass_token", lambda sides, token: [side.result() for side in sides].clear())
    run = Request.of(suite="mine.py", argv=[], out=Path("out"), launches=3, rounds=4)
    asked = driver.AbRequest(a="", b="SIDE_B=1", run=run, tolerance=0.02, alpha=0.01)

    def run_ab(console: Console) -> int:
        outcome = driver.run_ab(asked, console)
        return gate.exit_code(outcome)

    return told(run_ab)


def of_serve() -> str:
    """Return the first and the last line of `serve`, and its error for a port in use."""
    said = []
    with patch("parabench.serve.Server") as server:
        server.return_value.server_port = 8000
        server.return_value.serve_forever.side_effect = Interrupted(signal.SIGINT)
        said.append(said_by("serve", "out/results.db", "--port", "8000"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said.append(said_by("serve", "out/results.db", "--port", port).replace(str(port), "PORT"))
    return "\n".join(said)


def of_export() -> str:
    one = fake.step(fake.launch(fake.case(), 10.0))
    fake.write(Path("seen.db"), [one, fake.launch(fake.case(bucket_mib=1.0))])
    words = (("ddp native, 2 ranks",), ("ddp native 1 MiB, 2 ranks",), ("fsdp",), (one.case.id, "--launch", "9"))
    words += ((one.case.id, "--step", "1"),)
    return "\n".join(said_by("export", "seen.db", "--trace", *each) for each in words)


def of_collectives() -> str:
    launcher = FakeLauncher(seconds=lambda case, size: 1e-4 + size * (1e-9 if case.algorithm == "ring" else 2e-9))
    asked = Request.of(
        "collectives",
        argv=[],
        out=Path("out"),
        op="all_reduce",
        algorithm="native,ring",
        max_bytes="1MiB",
        launches=2,
        iterations=4,
    )
    return told(lambda console: run_session(asked, console, launcher))


def of_progress() -> str:
    """Return the progress lines of launches with each possible end."""
    console = Console(file=io.StringIO(), width=200)
    call = fake_collectives.launch(fake_collectives.case(), lambda size: size * 1e-9)
    with make_progress(console, 4, 2, "node 0: ") as progress:
        for one in (
            fake.launch(fake.case(strategy="single", world_size=1), 0.08, repetition=REFERENCE_REPETITION),
            fake.launch(fake.case(), 0.04, repetition=EXPLAIN_REPETITION),
            fake.launch(fake.case(), 0.04),
            fake.launch(fake.case(strategy="fsdp"), repetition=1, **OOM),
            fake.launch(fake.case(strategy="tp"), repetition=1, status=Status.HUNG),
            replace(call, repetition=1),
        ):
            progress.launching([one.case], one.repetition)
            progress.launched(one)
    return console.file.getvalue()  # type: ignore[attr-defined]


def of_best(*words: str) -> str:
    fake.rich(Path("rich.db"))
    return said_by("best", "rich.db", *words)


def of_bus(*words: str) -> str:
    cases = [fake_collectives.case(algorithm=name) for name in ("native", "ring")]
    speed = {"native": 2e-9, "ring": 1e-9}
    launches = fake_collectives.sweep(cases, lambda one, size: 1e-4 + size * speed[one.algorithm], noise=0.01)
    fake_collectives.write(Path("bus.db"), launches)
    return said_by("best", "bus.db", *words)


def of_compare(factor: float, *words: str) -> str:
    base, candidate = store("base.db", seed=1), store("candidate.db", factor, seed=2)
    return said_by("compare", base, candidate, *words)


def of_across(*words: str) -> str:
    base = store("old.db", seed=1, environment=fake.ENVIRONMENT | {"cpu": "Old CPU"})
    candidate = store("new.db", 0.5, seed=2, environment=fake.ENVIRONMENT | {"cpu": "New CPU"})
    return said_by("compare", base, candidate, "--across-hardware", *words)


def of_history(*words: str) -> str:
    changing, steady = fake.case(), fake.case(strategy="fsdp")
    for day in range(12):
        truth = {changing: 0.04 * (1.08 if day >= 8 else 1), steady: 0.05}
        wobble = 1 + 0.001 * (day % 3)
        launches = [
            fake.launch(one, step_s * wobble * (1 + 0.002 * (repetition - 1)), repetition=repetition, steps=4)
            for repetition in range(3)
            for one, step_s in truth.items()
        ]
        environment = fake.ENVIRONMENT | {"versions": {"torch": "2.13.0" if day < 8 else "2.13.1"}}
        fake.write(Path("nightly.db"), launches, label=f"nightly-{day}", environment=environment)
    started("nightly.db", [f"2026-03-{1 + day:02d}T02:00:00.000Z" for day in range(12)])
    return said_by("history", "nightly.db", *words)


def of_wrong_input() -> str:
    """The error message of each command in the file. The exit code is 2, and nothing is written."""
    store("a.db"), store("b.db"), of_bus()
    Path("folder").mkdir()
    Path("file").touch()
    said = []
    for line in re.findall(r"^\$ parabench (.*)", (GOLDEN / "wrong-input.txt").read_text(), re.MULTILINE):
        before = contents()
        result = parabench(*shlex.split(line))
        assert (result.exit_code, contents()) == (2, before), line
        assert result.stderr.count("\n") == (4 if result.stderr.startswith("Usage: ") else 1), line
        said.append(f"$ parabench {line}\n{result.stdout}{result.stderr}")
    return "\n".join(said)


def of_warnings(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a warning of every code, with its advice."""
    of_run(failing=True, memory_snapshot=True)
    stored = load(Path("out/results.db")).finding[["code", "message", "advice"]].itertuples(index=False)
    found = [*(Finding(*row) for row in stored), *every_warning.findings(Path()), *of_problems(monkeypatch)]
    found += map(warning, warnings_of(Trial(left_out=("head.bias",)), "exact", gradients=True))
    first = {each.code: each for each in reversed(found)}
    assert first.keys() == every_warning.DOCUMENTED.keys()
    return "".join(f"{code}: {first[code].message}\n    {first[code].advice}\n" for code in sorted(first))


def of_problems(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Return all warnings of `doctor`."""
    of_doctor(monkeypatch, gpus=False)
    Path("scaling_governor").write_text("powersave\n")
    governor = SimpleNamespace(glob=lambda pattern: [Path("scaling_governor")])
    monkeypatch.setattr(doctor, "Path", lambda path: governor)
    return list(doctor.problems(HERE))


def contents() -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in Path().rglob("*")}


TEXTS: dict[str, Callable[..., str]] = {
    "help": lambda: of_help(""),
    "predict": lambda: predicted("--world-size", "2,16", "--set", "bucket_mib=default,4"),
    "predict-refused": lambda: predicted("--world-size", "16", "--set", "algorithm=tree"),
    "predict-best": lambda: predicted("--world-size", "16", "--best"),
    "predict-check": lambda: predicted("--check", "other.db"),
    **{f"help-{name}": lambda name=name: of_help(name) for name in COMMANDS},
    "list": lambda: said_by("list"),
    "doctor": lambda monkeypatch: of_doctor(monkeypatch, gpus=False),
    "doctor-gpus": lambda monkeypatch: of_doctor(monkeypatch, gpus=True),
    "dry-run": of_dry_run,
    "dry-run-nodes": lambda: of_dry_run("--nnodes", "4", "--nproc-per-node", "2", "--until-decided", "--links"),
    "dry-run-collectives": lambda: said_by("collectives", "--dry-run", "--op", "all_reduce", "--max", "1MiB"),
    "run": of_run,
    "run-failing": lambda: of_run(failing=True),
    "run-interrupted": lambda: of_run(interrupt_at=3),
    "collectives": of_collectives,
    "progress": of_progress,
    "ab-same": lambda monkeypatch: of_ab(monkeypatch, slower=1.0),
    "ab-slower": lambda monkeypatch: of_ab(monkeypatch, slower=1.1),
    "serve": of_serve,
    "export": of_export,
    "best": of_best,
    "best-by": lambda: of_best("--by", "world_size", "--objective", "memory"),
    "best-collectives": of_bus,
    "compare-same": lambda: of_compare(1.0, "--tolerance", "20%"),
    "compare-slower": lambda: of_compare(1.5),
    "compare-inconclusive": lambda: of_compare(1.0, "--tolerance", "0.01%"),
    "compare-markdown": lambda: of_compare(1.5, "--markdown", "-"),
    "compare-markdown-same": lambda: of_compare(1.0, "--tolerance", "20%", "--markdown", "-"),
    "compare-markdown-inconclusive": lambda: of_compare(1.0, "--tolerance", "0.01%", "--markdown", "-"),
    "compare-junit": lambda: of_compare(1.5, "--junit", "-"),
    "compare-across": of_across,
    "compare-across-markdown": lambda: of_across("--markdown", "-"),
    "history": of_history,
    "history-all": lambda: of_history("--all"),
    "warnings": of_warnings,
    "wrong-input": of_wrong_input,
}


@pytest.mark.parametrize("name", TEXTS)
def test_output_equals_golden_file(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make = TEXTS[name]
    text = make(monkeypatch) if make.__code__.co_varnames[:1] == ("monkeypatch",) else make()
    text = text.replace(str(tmp_path), "FOLDER").replace(__version__, "VERSION")
    text = re.sub(r"\(not installed: pip install \w+\)", "", text)  # packages that may be installed or not
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    file = GOLDEN / f"{name}.txt"
    if request.config.getoption("--golden"):
        file.write_text(text)
    assert text == file.read_text(), "if this is correct: make golden"


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(TEXTS)
