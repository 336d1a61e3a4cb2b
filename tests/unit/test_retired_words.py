"""Retired private names do not return; the tables have the common words that replace them.

`crew` was a coordinator, and `venue` a rank's environment. RETIRED applies to the measuring packages, and `READING` to
the packages that read results.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import parabench
from tests.unit.test_imports import READING as ANSWERING
from tests.unit.test_imports import names

# The replacement of each word, in comments and in parts of names (`crew_of`, `CrewGone`), too.
WORDS = {
    "allegory": "", "crew": "coordinator", "door": "join request", "follower": "agent", "grounds": "shared store",
    "guest": "join request", "knocking": "pending", "linking": "links", "meeting": "rendezvous point",
    "parcel": "blob", "pulse": "heartbeat", "roll": "membership", "venue": "RankEnv", "walking": "runner",
    "welcome": "admit",
}  # fmt: skip
# As a whole name: as words of English they may stand.
NAMES = {
    "Attempt": "", "CollectiveWalk": "Runner", "Course": "Workload", "Ended": "ProcessOutcome",
    "Flags": "LauncherFlags", "Flat": "FlatParameters", "Life": "Member", "Line": "Connection", "Lost": "NodeGone",
    "Opened": "SessionState", "Order": "LaunchSpec", "Part": "NodeResult", "Parallel": "ParallelModel",
    "Place": "RankInfo", "Setting": "Variant", "SideProcess": "VariantProcess", "Site": "Topology",
    "StreamLane": "StreamQueue", "Team": "LaunchContext", "ThreadLane": "ThreadQueue",
    "Until": "AdaptiveStopping", "Versions": "ParameterVersions", "Walk": "Runner", "Way": "Route", "Word": "Abort",
    "begun_by": "load_state", "dismiss": "close", "freshen": "", "hand_over": "rank.main",
    "heard_by": "on_abort", "last_reduces": "gradient_sync", "misfit": "exceeds_machine", "nodes_of": "",
    "own_names": "user_code", "reopened": "load_state", "run_ranks": "run_processes", "take_part": "run_on_node",
    "team": "context", "tie_to_driver": "die_with_driver", "way_in": "listen_route", "way_to": "route_to",
}  # fmt: skip
# As whole words, in what reads stores.
READING = {
    "Evidence": "SessionData", "Headroom": "NoCommBaseline", "Partners": "Matches", "base_s": "base_step_time_s",
    "candidate_s": "candidate_step_time_s", "equals": "tied", "excused": "exempt", "number_s": "step_s",
    "no answer": "not ranked", "sweet_spots": "ranked", "told apart": "distinguishable",
    "told_apart": "distinguishable",
}  # fmt: skip

# In what users read: sentences of the package, pages, goldens.
PHRASES = {
    "doubts?": "warning", "ended well": "succeeded", "held down": "throttled", "is no (file|folder)": "is not a",
    "launches a (side|case)": "per side", "mend": "fix", "nobody can say": "cannot be tested", "not believed": "",
    "speaks? against": "", "st(oo|an)ds? still": "waits, is blocked", "t(old|ell) apart": "distinguishable",
    "would have been found": "minimum detectable slowdown",
}  # fmt: skip


def used(text: str) -> Iterator[str]:
    """The retired words and names in the text of a module."""
    parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}
    yield from WORDS.keys() & parts
    for node in ast.walk(ast.parse(text)):
        for field in ("id", "attr", "name", "arg", "asname"):
            if getattr(node, field, None) in NAMES:
                yield str(getattr(node, field))


def test_no_retired_word_comes_back() -> None:
    measuring = {name: path for name, path in names().items() if name.split(".")[0] not in ANSWERING}
    found = {(name, word) for name, path in measuring.items() for word in used(path.read_text())}
    new = sorted(f"{name}: {word} (say {(WORDS | NAMES)[word] or 'otherwise'})" for name, word in found)
    assert new == []


def test_no_retired_name_comes_back_in_analysis() -> None:
    paths = (Path(parabench.__file__).parent / "analysis").rglob("*.py")
    retired = re.compile(rf"\b({'|'.join(READING)})\b")
    found = {(path.name, word) for path in paths for word in retired.findall(path.read_text())}
    assert sorted(f"{name}: {word} (say {READING[word]})" for name, word in found) == []


def said(text: str) -> Iterator[str]:
    """The retired phrases in what users read."""
    yield from (phrase for phrase in PHRASES if re.search(rf"\b({phrase})\b", text, re.IGNORECASE))


def sentences(module: str) -> Iterator[str]:
    """Return the texts of a module that are not docstrings."""
    tree = ast.parse(module)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_texts_have_no_retired_phrase() -> None:
    package, root = Path(parabench.__file__).parent, Path(__file__).parents[2]
    texts = {path: "\n".join(sentences(path.read_text(encoding="utf-8"))) for path in package.rglob("*.py")}
    read = [*root.glob("tests/golden/*.txt"), *root.glob("reports/*.html"), *root.glob("reports/script/**/*.js")]
    for path in read:
        lines = path.read_text(encoding="utf-8").splitlines()
        texts[path] = "\n".join(line for line in lines if not line.lstrip().startswith(("//", "{#")))
    assert len(texts) > 300
    found = {(path.relative_to(path.parents[1]), phrase) for path, text in texts.items() for phrase in said(text)}
    assert sorted(f"{path}: {phrase} (say {PHRASES[phrase] or 'otherwise'})" for path, phrase in found) == []
