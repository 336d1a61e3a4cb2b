"""Write a verdict as a comment on the pull request, one for each name: a new one, or the one that is there.

    GITHUB_TOKEN=... python3 comment.py VERDICT.md NAME

For GitHub Actions, whose variables say where and which (GITHUB_EVENT_PATH, GITHUB_REPOSITORY, GITHUB_API_URL). Needs
nothing but Python. Who may not write, as a workflow of a fork, gets a notice and exit code 0: the verdict is in the
summary of the job.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

# GitHub takes no more characters in a comment.
MOST_CHARACTERS = 65_536
TIMEOUT_S = 30.0
PER_PAGE = 100
# Who may not write or see is told so with these.
NOT_ALLOWED = (401, 403, 404)
# What an answer that is none, a variable that is missing or a network that breaks down raises.
BROKEN = (OSError, ValueError, LookupError, TypeError, AttributeError, http.client.HTTPException)


def marker(suite: str) -> str:
    """The first line of the comment, which readers do not see; nothing in a suite's name may end it."""
    return f"<!-- parabench: {suite.replace('-->', '').replace(chr(10), ' ')} -->"


def body_of(verdict: str, suite: str) -> str:
    """The comment: the marker, the verdict, where the run is; what is too long is cut at a line."""
    where = [os.environ.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")]
    run = f"\n\n[Report and store of this run]({where[0]}/{where[1]}/actions/runs/{where[2]})\n" if all(where) else "\n"
    head = f"{marker(suite)}\n"
    room = MOST_CHARACTERS - len(head) - len(run)
    if len(verdict) > room:
        cut = "\n\n... the rest is in the summary of the job."
        kept = verdict[: room - len(cut)]
        verdict = (kept.rpartition("\n")[0] or kept) + cut
    return head + verdict.rstrip() + run


def ask(method: str, path: str, content: dict[str, str] | None = None) -> Any:
    """What GitHub answers. Raises urllib.error.URLError."""
    request = urllib.request.Request(
        f"{os.environ.get('GITHUB_API_URL', 'https://api.github.com')}/repos/{os.environ['GITHUB_REPOSITORY']}/{path}",
        method=method,
        data=None if content is None else json.dumps(content).encode(),
        headers={
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
            "X-GitHub-Api-Version": "2022-11-28",
        },
    )
    # Whoever an answer leads to does not get the token.
    request.add_unredirected_header("Authorization", f"Bearer {os.environ['GITHUB_TOKEN']}")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def existing(number: int, suite: str) -> int | None:
    """The id of the comment that is there already."""
    page = 1
    while True:
        found = ask("GET", f"issues/{number}/comments?per_page={PER_PAGE}&page={page}")
        for comment in found:
            if (comment.get("body") or "").startswith(marker(suite)):
                return int(comment["id"])
        if len(found) < PER_PAGE:
            return None
        page += 1


def main(verdict: str, suite: str) -> int:
    """Comment, or say why not; 0 in any case, as the verdict does not depend on it."""
    try:
        return _comment(verdict, suite)
    except BROKEN as error:
        print(f"::warning::The comment could not be written: {type(error).__name__}: {error}")
        return 0


def _comment(verdict: str, suite: str) -> int:
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text())
    number = (event.get("pull_request") or {}).get("number")
    if number is None:
        print("::notice::This is no pull request, so nothing is commented.")
        return 0
    if not os.environ.get("GITHUB_TOKEN"):
        print("::notice::There is no token, so nothing is commented; the summary has the verdict.")
        return 0
    content = {"body": body_of(Path(verdict).read_text(encoding="utf-8"), suite)}
    try:
        comment = existing(number, suite)
        if comment is None:
            ask("POST", f"issues/{number}/comments", content)
        else:
            ask("PATCH", f"issues/comments/{comment}", content)
    except urllib.error.HTTPError as error:
        if error.code in NOT_ALLOWED:
            print(f"::notice::This workflow may not comment ({error.code}); the summary has the verdict.")
            return 0
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
