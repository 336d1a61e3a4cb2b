"""Export a session to MLflow: a run with the report, and a nested run for each case with parameters and metrics."""

from __future__ import annotations

import shlex
from datetime import datetime
from itertools import groupby

from mlflow.tracking import MlflowClient, get_tracking_uri
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from parabench.analysis.session import SessionData
from parabench.errors import UsageError
from parabench.exporters.formats import metrics_of
from parabench.report.build import render

EXPERIMENT = "parabench"


def export(seen: SessionData, place: str) -> list[str]:
    """Send a session to the tracking URI `place`, or to MLflow's default if it is empty. Return lines to print.

    Raises UsageError if the session has no numbers, or if MLflow cannot use the URI.
    """
    uri, session = place or get_tracking_uri(), seen.session
    cases = [list(own) for _, own in groupby(metrics_of(seen), lambda metric: metric.case)]
    start = round(datetime.fromisoformat(session.started_utc).timestamp() * 1000)
    tags = {"suite": session.suite, "command": shlex.join(session.argv), "parabench": session.version}
    known = {"commit": session.commit, "host": session.known("host"), "torch": session.known("versions", "torch")}
    tags |= {name: value for name, value in known.items() if value is not None}
    page = render(seen.results, str(session.id))
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(EXPERIMENT)
        experiment = client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
        parent = client.create_run(experiment, start_time=start, tags=tags, run_name=session.name).info.run_id
        client.log_text(parent, page, "report.html")
        for own in cases:
            tags = {MLFLOW_PARENT_RUN_ID: parent, "case_id": own[0].case_id}
            run = client.create_run(experiment, start_time=start, tags=tags, run_name=own[0].case).info.run_id
            for name, value in own[0].fields.items():
                client.log_param(run, name, value)
            for metric in own:
                unit = metric.unit.replace("/s", "_per_s")
                for end, value in metric.ends.items():
                    client.log_metric(run, f"{metric.name}{end}_{unit}", value, timestamp=start, step=0)
                for step, value in enumerate(metric.launches):
                    client.log_metric(run, f"{metric.name}_of_launch_{unit}", value, timestamp=start, step=step)
            client.set_terminated(run)
        client.set_terminated(parent)
    except Exception as error:  # from MLflow, or from the client of a server or a database
        why = " ".join(str(error).split())
        remedy = "give another with -o, such as http://HOST:5000"
        raise UsageError(f"MLflow cannot use {uri!r}: {why}; {remedy}") from error
    return [f"{uri}: experiment {EXPERIMENT}, run {parent} with {len(cases)} runs in it"]
