"""MLflow: a run for the session, which has the report, and in it a run for each case, which has parameters and metrics.

To a tracking server, or to a folder or database of this machine, as MLflow itself takes them (its `set_tracking_uri`).
"""

from __future__ import annotations

import shlex
import tempfile
from datetime import datetime
from pathlib import Path

from mlflow.tracking import MlflowClient, get_tracking_uri
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from parabench.analysis.session import SessionData
from parabench.errors import UsageError
from parabench.exporters.results import Metric, Result, results_of
from parabench.report.build import write_report

EXPERIMENT = "parabench"


def log(seen: SessionData, place: str) -> list[str]:
    """Hand a session over to `place`, a tracking URI; where it is empty to MLflow's own: what its configuration or
    MLFLOW_TRACKING_URI says.

    Returns what to tell. Raises UsageError for a session without numbers, and for a place that MLflow cannot use; the
    session's run is finished when all of it is there.
    """
    uri = place or get_tracking_uri()
    results = results_of(seen)
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(EXPERIMENT)
        experiment = client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
        parent = _session(client, experiment, seen)
        for each in results:
            _case(client, experiment, seen, each, parent)
        client.set_terminated(parent)
    except UsageError:
        raise
    except Exception as error:  # MLflow's own, and those of what it speaks to a server or a database with
        why = " ".join(str(error).split())
        remedy = "give another with -o, such as http://HOST:5000"
        raise UsageError(f"MLflow cannot use {uri!r}: {why}; {remedy}") from error
    return [f"{uri}: experiment {EXPERIMENT}, run {parent} with {len(results)} runs in it"]


def _began(seen: SessionData) -> int:
    """Milliseconds since 1970."""
    return round(datetime.fromisoformat(seen.session.started_utc).timestamp() * 1000)


def _session(client: MlflowClient, experiment: str, seen: SessionData) -> str:
    session = seen.session
    tags = {"suite": session.suite, "command": shlex.join(session.argv), "parabench": session.version}
    known = {"commit": session.commit, "host": session.known("host"), "torch": session.known("versions", "torch")}
    tags |= {name: value for name, value in known.items() if value is not None}
    run: str = client.create_run(experiment, start_time=_began(seen), tags=tags, run_name=session.name).info.run_id
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(seen.results, Path(folder) / "report.html", str(session.id))
        client.log_artifact(run, str(page))
    return run


def _case(client: MlflowClient, experiment: str, seen: SessionData, each: Result, parent: str) -> None:
    tags = {MLFLOW_PARENT_RUN_ID: parent, "case_id": each.case_id}
    began = _began(seen)
    run = client.create_run(experiment, start_time=began, tags=tags, run_name=each.name).info.run_id
    for name, value in each.fields.items():
        client.log_param(run, name, value)
    for metric in each.metrics:
        _metric(client, run, metric, began)
    client.set_terminated(run)


def _metric(client: MlflowClient, run: str, metric: Metric, began: int) -> None:
    """The number, its interval's ends where known; and a history, a step for each launch."""
    unit = metric.unit.replace("/s", "_per_s")
    for end, value in {"": metric.value, "_low": metric.low, "_high": metric.high}.items():
        if value is not None:
            client.log_metric(run, f"{metric.name}{end}_{unit}", value, timestamp=began, step=0)
    for step, value in enumerate(metric.launches):
        client.log_metric(run, f"{metric.name}_of_launch_{unit}", value, timestamp=began, step=step)
