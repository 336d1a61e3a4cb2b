"""How a session ends: the report is written, and what was found is said."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from parabench.errors import UsageError
from parabench.files import is_special, write_whole
from parabench.session.progress import logger
from parabench.session.request import CollectivesRequest, Request
from parabench.session.resume import REPORT_NAME, check_writable
from parabench.store.results import Results, load
from parabench.store.store import STORE_NAME


def conclude(request: Request, session_id: int, console: Console) -> None:
    """Write the report; say what was found, and where all is."""
    from parabench.report.build import write_report

    results, log = load(request.out / STORE_NAME), logger(console, request.prefix)
    if isinstance(request, CollectivesRequest):
        answers = _tables(results, session_id, console)
    else:
        from parabench.analysis.text.progress import verdict

        answers = iter(verdict(results, str(session_id)))
    report = write_report(results, results.path.with_name(REPORT_NAME), str(session_id))
    for line in (*answers, f"store:  {results.path}", f"report: {report}"):
        log(line)
    if isinstance(request, CollectivesRequest) and request.json_file is not None:
        _write_json(request.json_file, results, session_id)
        log(f"json:   {request.json_file}")


def _tables(results: Results, session_id: int, console: Console) -> Iterator[str]:
    """Print tables as nccl-tests does; what is fastest, in words."""
    from parabench.analysis.collectives.crossover import bus_answers
    from parabench.analysis.collectives.nccl_tests import table_lines
    from parabench.analysis.session import select_session

    for line in table_lines(results, select_session(results, session_id)):
        logger(console)(line)
    return (answer.sentence() for answer in bus_answers(results, session_id))


def _write_json(path: Path, results: Results, session_id: int) -> None:
    from parabench.analysis.collectives.nccl_tests import results_json
    from parabench.analysis.session import select_session

    told = results_json(results, select_session(results, session_id))
    text = json.dumps(told, indent=2, allow_nan=False) + "\n"
    write_whole(path, text, "results file", "give another file for --json")


def check_outputs(request: Request) -> None:
    """Raise UsageError when a file that is asked for could not be written at the end of a long run, or is one of the
    run's own."""
    path = request.json_file if isinstance(request, CollectivesRequest) else None
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file for --json")
    own = [request.out / REPORT_NAME, *(request.out / f"{STORE_NAME}{end}" for end in ("", "-wal", "-shm", "-journal"))]
    same = (path.exists() and each.exists() and path.samefile(each) for each in own)
    if path.resolve() in [each.resolve() for each in own] or any(same):
        raise UsageError(f"{path} is this run's own store or report; give another file for --json")
    if not is_special(path):
        check_writable(path.resolve().parent, "folder", "--json")
    elif not os.access(path, os.W_OK):
        raise UsageError(f"{path} cannot be written; give another file for --json")
