"""The GitHub Action: its inputs, its script in temporary repositories, and its comment, with a fake API."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from gate_helpers import Ran
from guard import GUARD_S
from paths import ROOT

ACTION, GATE, COMMENT = ROOT / "action.yml", ROOT / "action/gate", ROOT / "action/comment.py"


def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(ACTION.read_text(), Loader=yaml.BaseLoader)
    return found


def test_action_passes_inputs_by_variables_only() -> None:
    steps = action()["runs"]["steps"]
    for step in steps:
        assert "${{" not in step.get("run", "")
        assert ("uses" in step) != ("run" in step)
    given = set(re.findall(r"inputs\.(\w+)", ACTION.read_text()))
    assert given == set(action()["inputs"])
    read = set(re.findall(r"\$\{([A-Z]+):", GATE.read_text()))
    assert set(steps[0]["env"]) <= read
    # Code of the pull request runs in the first step alone, and only the second has the token.
    assert [name for name, step in enumerate(steps) if "inputs.token" in str(step)] == [1]
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)


def test_workflow_template_uses_inputs_of_the_action() -> None:
    found = yaml.load((ROOT / "parabench/commands/templates/github.yml").read_text(), Loader=yaml.BaseLoader)
    (job,) = found["jobs"].values()
    assert found["permissions"] == {}
    assert job["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert "github.event.pull_request.head.repo.full_name == github.repository" in job["if"]
    checkout, gate = job["steps"]
    assert re.fullmatch(r"actions/checkout@[0-9a-f]{40}", checkout["uses"])
    assert checkout["with"]["persist-credentials"] == "false"
    assert set(gate["with"]) <= set(action()["inputs"])


def test_page_lists_every_input_of_the_action() -> None:
    page = (ROOT / "docs/how-to/ci.md").read_text()
    table = page.partition("## The GitHub Action")[2].partition("- Outputs are")[0]
    listed = {word for row in re.findall(r"^\| (`.*?) \|", table, re.M) for word in re.findall(r"`(\w+)`", row)}
    assert listed == set(action()["inputs"])
    assert set(re.findall(r"\b([A-Z]+)=", of_buildkite())) <= set(re.findall(r"\$\{([A-Z]+):", GATE.read_text()))


def of_buildkite() -> str:
    """The command of the page, as a shell gets it."""
    page = (ROOT / "docs/how-to/ci.md").read_text()
    (command,) = re.findall(r"command: >-\n(.*?)\n    artifact", page, re.S)
    return " ".join(command.split()).replace("$$", "$")


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, side: str) -> str:
    (folder / "side.txt").write_text(side)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", side)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """main has one commit, and a pull request another, merged as GitHub merges it for a check."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    commit(folder, "base")
    git(folder, "checkout", "-q", "-b", "change")
    commit(folder, "change")
    git(folder, "checkout", "-q", "main")
    git(folder, "merge", "-q", "--no-ff", "-m", "merge", "change")
    return folder


def ran_gate(folder: Path, code: int = 0, **inputs: str) -> Ran:
    return Ran([str(GATE)], folder, folder.parent, code, **{"SUITE": "quick"} | inputs)


def test_a_merge_is_compared_with_what_it_would_be_merged_into(repository: Path) -> None:
    ran = ran_gate(repository, OPTIONS="--launches 4 --label 'a b;$(touch evil)'")
    assert (ran.code, ran.error, ran.base) == (0, "", "base")
    assert ran.words[:3] == ["ab", "quick", "--baseline"]
    assert ran.words[-4:] == ["--launches", "4", "--label", "a b;$(touch evil)"]
    assert not (repository / "evil").exists()
    out = Path(ran.outputs["out"])
    assert ran.outputs == {"out": str(out), "exit-code": "0", "verdict": "pass"}
    assert ran.summary == "verdict\n"
    # Nothing is left of the other side.
    assert git(repository, "worktree", "list").count("\n") == 0


def test_base_is_the_merge_base_or_what_is_named(repository: Path) -> None:
    git(repository, "update-ref", "refs/remotes/origin/main", "main^1")
    git(repository, "checkout", "-q", "change")
    assert ran_gate(repository).base == "base"
    assert ran_gate(repository, BASE="main").base == "change"
    git(repository, "update-ref", "-d", "refs/remotes/origin/main")
    ran = ran_gate(repository)
    assert ran.code == 2
    assert "no merge base with origin/main is known; check out with fetch-depth: 0, or give base" in ran.error


def test_buildkite_compares_with_the_merge_base(repository: Path, tmp_path: Path) -> None:
    """The branch is checked out, and the target has gone on since."""
    git(repository, "branch", "-f", "target", "main^1")
    git(repository, "checkout", "-q", "target")
    commit(repository, "gone on")
    git(tmp_path, "clone", "-q", "--branch", "change", str(repository), "clone")
    script = of_buildkite().replace("parabench/action/gate", str(GATE))
    place = tmp_path / "clone", tmp_path, 0
    assert Ran(["sh", "-ec", script], *place, BUILDKITE_PULL_REQUEST_BASE_BRANCH="target").base == "base"


@pytest.mark.parametrize(
    ("code", "inconclusive", "ends", "verdict"),
    [
        (0, "fail", 0, "pass"), (1, "pass", 1, "regression"), (2, "warn", 2, "error"), (130, "warn", 130, "error"),
        (3, "warn", 0, "inconclusive"), (3, "pass", 0, "inconclusive"), (3, "fail", 3, "inconclusive"),
    ],
)  # fmt: skip
def test_each_verdict_is_handled(repository: Path, code: int, inconclusive: str, ends: int, verdict: str) -> None:
    ran = ran_gate(repository, code, INCONCLUSIVE=inconclusive)
    assert (ran.code, ran.outputs["verdict"], ran.outputs["exit-code"]) == (ends, verdict, str(code))
    assert ran.said.startswith("::warning title=Inconclusive::") == (code == 3 and inconclusive == "warn")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"SUITE": ""}, "no suite is given"),
        ({"BASE": "nowhere"}, "base 'nowhere' is no commit here"),
        ({"INCONCLUSIVE": "maybe"}, "inconclusive is 'maybe'; use warn, fail or pass"),
    ],
)
def test_action_refuses_wrong_input_in_one_line(repository: Path, inputs: dict[str, str], said: str) -> None:
    ran = ran_gate(repository, **inputs)
    assert ran.code == 2
    assert said in ran.error
    assert ran.error.count("\n") == 1
    assert ran.words == []
    assert "verdict" not in ran.outputs  # nothing was measured


class GitHub(BaseHTTPRequestHandler):
    """The two calls of its API that are needed: comments by page, and one that is written."""

    comments: list[dict[str, Any]]
    refuses: int

    def do_GET(self) -> None:
        page = int(self.path.rpartition("page=")[2])
        self._answer(self.comments[100 * (page - 1) : 100 * page])

    def do_POST(self) -> None:
        self.comments.append({"id": len(self.comments) + 1} | self._content())
        self._answer({})

    def do_PATCH(self) -> None:
        self.comments[int(self.path.rpartition("/")[2]) - 1] |= self._content()
        self._answer({})

    def _content(self) -> dict[str, Any]:
        assert self.headers["Authorization"] == "Bearer secret"
        found: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return found

    def _answer(self, content: Any) -> None:
        raw = json.dumps(content).encode()
        self.send_response(self.refuses or 200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def github(comments: list[dict[str, Any]], refuses: int = 0) -> Iterator[str]:
    handler = type("Own", (GitHub,), {"comments": comments, "refuses": refuses})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def comment(folder: Path, api: str, verdict: str, suite: str = "quick", **more: str) -> str:
    (folder / "verdict.md").write_text(verdict)
    (folder / "event.json").write_text(more.pop("event", '{"pull_request": {"number": 7}}'))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")} | {
        "GITHUB_EVENT_PATH": str(folder / "event.json"),
        "GITHUB_REPOSITORY": "us/ours",
        "GITHUB_API_URL": api,
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_RUN_ID": "12",
        "GITHUB_TOKEN": "secret",
        **more,
    }
    script = [sys.executable, "-I", str(COMMENT), str(folder / "verdict.md"), suite]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=GUARD_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_one_comment_is_written_and_then_updated_for_each_suite(tmp_path: Path) -> None:
    others = [{"id": at + 1, "body": "somebody's"} for at in range(150)]
    with github(others) as api:
        assert comment(tmp_path, api, "first") == ""
        comment(tmp_path, api, "other", suite="scaling")
        comment(tmp_path, api, "second")
    mine = [each["body"] for each in others[150:]]
    link = "[Report and store of this run](https://github.com/us/ours/actions/runs/12)"
    assert mine == [
        f"<!-- parabench: quick -->\nsecond\n\n{link}\n",
        f"<!-- parabench: scaling -->\nother\n\n{link}\n",
    ]


@pytest.mark.parametrize(
    ("refuses", "more", "said"),
    [
        (403, {}, "::notice::This workflow may not comment (403); the summary has the verdict.\n"),
        (500, {}, "::warning::The comment could not be written: HTTPError: HTTP Error 500: Internal Server Error\n"),
        (0, {"event": '{"pull_request": null}'}, "::notice::This is no pull request, so nothing is commented.\n"),
        (0, {"GITHUB_TOKEN": ""}, "::notice::There is no token, so nothing is commented; the summary has the verdict."),
    ],
)
def test_action_writes_the_summary_when_it_cannot_comment(
    tmp_path: Path, refuses: int, more: dict[str, str], said: str
) -> None:
    written: list[dict[str, Any]] = []
    with github(written, refuses) as api:
        assert comment(tmp_path, api, "verdict", **more).startswith(said)
    assert written == []
