"""Exported numbers equal the database, in the schemas of other tools."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import fake_collectives
import fake_results as fake
from command_line import parabench
from consumer_schemas import BENCHER, GITHUB, PYTORCH
from parabench.analysis.session import SessionData, session_data
from parabench.exporters import EXPORTERS, formats
from parabench.exporters.formats import metrics_of
from parabench.store.record import MIB, Status

JSON = {"bencher": BENCHER, "github": GITHUB, "pytorch": PYTORCH}


def training(path: Path, **more: Any) -> SessionData:
    """DDP at 40, 41 and 42 ms, and one that never succeeded."""
    cases = [fake.case(), fake.case(bucket_mib=1.0)]
    launches = [
        fake.launch(case, (0.040 + 0.001 * repetition) * (1 + 0.5 * at), repetition=repetition)
        for at, case in enumerate(cases)
        for repetition in range(3)
    ]
    launches.append(fake.launch(fake.case(strategy="fsdp"), status=Status.CRASHED))
    fake.write(path, launches, **more)
    return session_data(fake.load(path))


def collectives(path: Path) -> SessionData:
    launches = fake_collectives.sweep([fake_collectives.case()], lambda case, size: size * 1e-9, repetitions=2)
    return session_data(fake_collectives.write(path, launches))


@pytest.fixture
def seen(tmp_path: Path) -> SessionData:
    return training(tmp_path / "results.db")


def rich(path: Path) -> SessionData:
    return session_data(fake.rich(path, gpu=True))


@pytest.mark.parametrize("of", [training, collectives, rich])
def test_each_format_is_what_its_tool_documents(tmp_path: Path, of: Callable[[Path], SessionData]) -> None:
    seen = of(tmp_path / "r.db")
    for name, schema in JSON.items():
        written = json.loads(getattr(formats, name)(seen))
        jsonschema.Draft202012Validator(schema).validate(written)
        assert written


def test_bencher_has_nanoseconds_with_bounds_and_the_rest(seen: SessionData) -> None:
    found = json.loads(formats.bencher(seen))
    assert list(found) == ["ddp native, 2 ranks", "ddp native 1 MiB, 2 ranks"]  # without failed configurations
    latency = found["ddp native, 2 ranks"]["latency"]
    assert latency["value"] == pytest.approx(41e6, rel=0.01)
    assert latency["lower_value"] < latency["value"] < latency["upper_value"]
    throughput = found["ddp native, 2 ranks"]["throughput"]
    assert throughput["value"] * latency["value"] == pytest.approx(8 * 64 * 1e9)
    assert throughput["upper_value"] * latency["lower_value"] == pytest.approx(8 * 64 * 1e9)
    assert found["ddp native, 2 ranks"]["peak-memory"] == {"value": 101.0 * MIB}


def test_github_has_metrics_that_are_better_when_smaller(seen: SessionData) -> None:
    found = json.loads(formats.github(seen))
    names = [each["name"] for each in found]
    assert len(set(names)) == len(names)
    first = found[0]
    assert (first["name"], first["unit"]) == ("ddp native, 2 ranks: time", "ms")
    assert (first["value"], first["range"][:2]) == (pytest.approx(41, rel=0.01), "± ")
    assert first["extra"].splitlines()[0] == "3 launches"
    assert not [name for name in names if "throughput" in name]


def test_pytorch_has_a_record_of_each_metric_with_every_launch(seen: SessionData) -> None:
    found = json.loads(formats.pytorch(seen))
    named = [(each["benchmark"]["extra_info"]["case"], each["metric"]["name"]) for each in found]
    step = found[named.index(("ddp native, 2 ranks", "latency(s)"))]
    assert step["metric"]["benchmark_values"] == pytest.approx([0.040, 0.041, 0.042], rel=0.02)
    assert step["benchmark"]["mode"] == "training"
    assert step["benchmark"]["extra_info"]["world_size"] == "2"
    assert (step["model"]["name"], step["dependencies"]["torch"]["version"]) == ("gpt-nano", "2.13.0")
    assert step["runners"][0]["cpu_count"] == 8


def test_export_of_collectives_has_each_size(tmp_path: Path) -> None:
    found = metrics_of(collectives(tmp_path / "r.db"))
    assert len({(each.case, each.name) for each in found}) == len(found)
    for time, algorithm, bus in zip(found[::3], found[1::3], found[2::3], strict=True):
        assert {algorithm.case, bus.case} == {time.case}
        assert time.value == pytest.approx(time.fields["bytes"] * 1e-9)
        assert len(time.launches) == 2
        assert algorithm.value == pytest.approx(1e9)
        assert bus.value == pytest.approx(1e9 * 2 * (time.fields["world_size"] - 1) / time.fields["world_size"])


class TestCommand:
    @pytest.fixture(autouse=True)
    def here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "parabench-results").mkdir()
        training(tmp_path / "parabench-results" / "results.db")

    @pytest.mark.parametrize("name", JSON)
    def test_a_format_goes_to_its_usual_file_and_where_it_is_sent(self, tmp_path: Path, name: str) -> None:
        done = parabench("export", f"--{name}")
        assert (done.exit_code, done.output) == (0, f"{EXPORTERS[name].place}\n")
        usual = (tmp_path / EXPORTERS[name].place).read_text()
        assert parabench("export", f"--{name}", "-o", "-").stdout == usual
        assert parabench("export", f"--{name}", "-o", "new/file.json").output == "new/file.json\n"
        assert (tmp_path / "new" / "file.json").read_text() == usual

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ((), "no format is given; give one of --trace CASE, --bencher, "),
            (("--bencher", "--github"), "--bencher and --github are several formats; give one of"),
            (("--bencher", "--step", "1"), "--from, --launch and --step are options of --trace; leave them out"),
            (("--trace", "ddp", "-o", "-"), "a trace goes to a file; give one with -o"),
            (("--format", "benchr"), "exporter 'benchr' is unknown; did you mean 'bencher'? use one of bencher, "),
            (("--format", "sys:path"), "exporter 'sys:path' is list; it must be a function of a session"),
            (("--bencher", "-o", "parabench-results/results.db"), "is a database, not a file of another tool"),
        ],
    )
    def test_export_error_is_one_line_and_writes_nothing(
        self, tmp_path: Path, words: tuple[str, ...], message: str
    ) -> None:
        done = parabench("export", *words)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
        assert message in done.stderr
        assert [each.name for each in tmp_path.iterdir()] == ["parabench-results"]

    def test_missing_package_or_number_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake.write(tmp_path / "bad.db", [fake.launch(fake.case(), status=Status.CRASHED)], label="bad")
        reason = "bad has nothing to export: no launch succeeded; name another session: STORE@SESSION"
        assert parabench("export", "--bencher", "bad.db").stderr == f"parabench: {reason}\n"
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        needs = "--parquet needs pyarrow, which is not installed: pip install pyarrow"
        assert parabench("export", "--parquet").stderr == f"parabench: {needs}\n"

    def test_a_format_of_ones_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "my_formats.py").write_text(
            "def names(seen):\n    return ' '.join(seen.labels.values())\n"
            "def tables(seen):\n    return {'a.bin': b'1', 'b.bin': b'2'}\n"
            "def broken(seen):\n    return seen.labels['x']\n"
            "def wrong(seen):\n    return 7\n"
        )
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
        names = parabench("export", "--format", "my_formats:names", "-o", "-").stdout
        assert names == "ddp native, 2 ranks ddp native 1 MiB, 2 ranks fsdp native, 2 ranks"
        done = parabench("export", "--format", "my_formats:tables", "-o", "folder")
        assert (done.exit_code, done.output) == (0, "folder/a.bin\nfolder/b.bin\n")
        assert (tmp_path / "folder" / "b.bin").read_bytes() == b"2"
        for words, message in (
            (("my_formats:names",), "--format my_formats:names has no usual file; give one with -o"),
            (("my_formats:tables", "-o", "-"), "- is not a folder, and a.bin, b.bin go into one; give another place"),
            (("my_formats:tables", "-o", "my_formats.py"), "is not a folder, and a.bin, b.bin go into one"),
            (("my_formats:broken", "-o", "x"), "exporter 'my_formats:broken' failed: KeyError: 'x'"),
            (("my_formats:wrong", "-o", "x"), "returned int; it must return text, or bytes by file name"),
        ):
            done = parabench("export", "--format", *words)
            assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
            assert message in done.stderr
