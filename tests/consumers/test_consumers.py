"""Let other tools read the files that parabench writes for them. `make consumers` installs these tools."""

import math
import shutil
from datetime import datetime
from importlib.resources import files
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from hta.trace_analysis import TraceAnalysis
from mlflow.tracking import MlflowClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

import fake_collectives
import fake_results as fake
from command_line import parabench
from guard import GUARD_S
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import MIB, Status


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write two databases: training runs with one failure, and collectives. Return their folder."""
    monkeypatch.chdir(tmp_path)
    cases = [fake.case(), fake.case(bucket_mib=1.0), fake.case(strategy="pp", microbatches=4, schedule="gpipe")]
    launches = fake.sweep(cases, lambda case: 0.04 if case.bucket_mib is None else 0.05, noise=0.01)
    launches.append(fake.launch(fake.case(strategy="fsdp"), status=Status.CRASHED))
    fake.write(tmp_path / "results.db", launches, label='night "7"\n\\')
    operations = [
        fake_collectives.launch(fake_collectives.case(), lambda size: size * 1e-9, repetition=repetition)
        for repetition in range(2)
    ]
    fake_collectives.write(tmp_path / "bus.db", operations)
    return tmp_path


def exported(kind: str, store: str = "results.db", place: str | None = None) -> str:
    done = parabench("export", f"--{kind}", store, *(["-o", place] if place else []))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("parse", [openmetrics, prometheus], ids=["OpenMetrics", "Prometheus' text format"])
def test_prometheus_reads_every_number_with_its_case(here: Path, parse: object) -> None:
    text = exported("openmetrics", place="-")
    families = {family.name: family for family in parse(text)}  # type: ignore[operator]
    latency = families["parabench_latency_seconds"]
    assert latency.type == "gauge"
    (sample,) = (each for each in latency.samples if each.labels["case"] == "ddp native, 2 ranks")
    assert sample.value == pytest.approx(0.04, rel=0.05)
    assert sample.labels["session"] == 'night "7"\n\\'
    assert (sample.labels["strategy"], sample.labels["world_size"], sample.labels["bucket_mib"]) == ("ddp", "2", "")
    for end, sign in (("low", -1), ("high", 1)):
        (bound,) = (
            each.value for each in families[f"parabench_latency_{end}_seconds"].samples if each.labels == sample.labels
        )
        assert math.copysign(1, bound - sample.value) == sign
    assert len(latency.samples) == 3
    assert families["parabench_throughput_tokens_per_second"].samples[0].value > 0
    assert families["parabench_peak_memory_bytes"].samples[0].value == 101.0 * MIB


def test_pandas_and_duckdb_read_the_tables(here: Path) -> None:
    assert exported("parquet", place="tables").split() == [
        f"tables/{name}.parquet" for name in ("cases", "launches", "samples")
    ]
    cases = pd.read_parquet(here / "tables" / "cases.parquet")
    assert cases.set_index("label")["step_time_s"]["ddp native, 2 ranks"] == pytest.approx(0.04, rel=0.05)
    assert cases["bucket_mib"].isna().sum() == 3  # numbers and unknown, no text
    said = duckdb.sql(
        "SELECT label, count(*) AS steps, avg(value) AS mean FROM 'tables/samples.parquet' "
        "WHERE metric = 'step_s' AND phase = 'measure' AND rank = 0 GROUP BY label ORDER BY mean"
    ).df()
    assert list(said["steps"]) == [60, 60, 60]
    assert said["mean"].iloc[0] == pytest.approx(0.04, rel=0.05)
    exported("parquet", "bus.db", "bus")
    assert len(pd.read_parquet(here / "bus" / "sizes.parquet")) == 4


def test_duckdb_reads_the_store_itself(here: Path) -> None:
    extension = next(Path(str(files("duckdb_extension_sqlite_scanner"))).rglob("*.duckdb_extension"))
    with duckdb.connect() as db:
        db.execute(f"LOAD '{extension}'")
        db.execute("ATTACH 'results.db' AS r (TYPE sqlite, READ_ONLY)")
        rows = db.execute("SELECT strategy, status, count(*) FROM r.launch GROUP BY ALL ORDER BY ALL").fetchall()
    assert rows == [("ddp", "ok", 6), ("fsdp", "crashed", 1), ("pp", "ok", 3)]


def test_mlflow_has_a_run_for_the_session_and_one_for_each_case(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    said = exported("mlflow", place="runs")
    client = MlflowClient(tracking_uri="runs")
    experiment = client.get_experiment_by_name("parabench")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    assert said == f"runs: experiment parabench, run {parent.info.run_id} with 3 runs in it\n"
    assert [each.path for each in client.list_artifacts(parent.info.run_id)] == ["report.html"]
    (first,) = (run for run in runs if run.info.run_name == "ddp native 1 MiB, 2 ranks")
    assert first.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (first.data.params["strategy"], first.data.params["bucket_mib"]) == ("ddp", "1.0")
    assert first.data.metrics["latency_s"] == pytest.approx(0.05, rel=0.05)
    assert first.data.metrics["latency_low_s"] < first.data.metrics["latency_s"] < first.data.metrics["latency_high_s"]
    history = client.get_metric_history(first.info.run_id, "latency_of_launch_s")
    assert [each.step for each in history] == [0, 1, 2]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert parent.info.start_time <= datetime.now().timestamp() * 1000
    # The folder has a second session.
    exported("mlflow", place="runs")
    assert len(client.search_runs([experiment.experiment_id])) == 8


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside pandas
def test_holistic_trace_analysis_finds_the_step(tmp_path: Path) -> None:
    """It assigns events to steps. Its other views of a step need GPU kernels."""
    case = Case(world_size=2, device="cpu", backend="gloo")
    protocol = Protocol(warmup=2, steps=2, instrumented=1, profile=True)
    launched = launch(LaunchSpec.of(case, protocol, deadline_s=GUARD_S, traces=tmp_path / "traces"))
    assert launched.status is Status.OK, launched.failure
    seen = TraceAnalysis(trace_dir=str(tmp_path / "traces"))
    assert seen.get_profiler_steps() == [5]
    assert sorted(seen.t.get_all_traces()) == [0, 1]
    for rank in (0, 1):
        events = seen.t.get_trace(rank)
        assert (events["iteration"] == 5).mean() > 0.9
    shutil.rmtree(tmp_path / "traces")
