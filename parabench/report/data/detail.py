"""What the page's script needs beside cases and launches: for a case's details, the Trust tab, and all launches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from parabench.analysis.launch_number import STATISTIC
from parabench.analysis.ranking.answer import Answer
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.analysis.warnings.launches import AA_SPREAD, DRIFTS, check_evidence
from parabench.report.data.columns import packed
from parabench.report.rerun import rerun_of


def detail_data(seen: SessionData, rows: dict[Any, int], launch: Sequence[str]) -> dict[str, Any]:
    """`apart` are launches of no case in the tables, with their label and the columns `launch`; `findings` are as
    `_findings` has them; `rerun` is what makes the command of a case; `limits` are what the Trust tab draws beside
    launches. `rows` are the cases' rows by id."""
    others = seen.launches[~seen.launches["case_id"].isin(rows)]
    apart = others[["launch_id", "case_id", "label", *launch, "error"]].assign(buckets=buckets(others["facts"]))
    return {
        "apart": packed(apart),
        "findings": packed(_findings(seen, rows)),
        "rerun": rerun_of(seen.session).to_dict(),
        "limits": {"drift": DRIFTS, "aa": {STATISTIC[device]: spread for device, spread in AA_SPREAD.items()}},
    }


def buckets(facts: Iterable[object]) -> list[str]:
    """What `bucket_sizes` says of each launch's facts; many launches have the same."""
    facts = list(facts)
    said = {each: bucket_sizes(each) for each in set(facts)}
    return [said[each] for each in facts]


def bucket_bytes(launches: pd.DataFrame) -> dict[str, str]:
    """By case id: the sizes in bytes of the buckets that its first launch which tells them used, space between."""
    known: dict[str, str] = {}
    said: dict[object, str] = {}
    for case, facts in zip(launches["case_id"], launches["facts"], strict=True):
        if case not in known:
            if facts not in said:
                sizes = json.loads(facts).get("bucket_bytes") if isinstance(facts, str) else None
                said[facts] = " ".join(f"{size:.0f}" for size in sizes) if isinstance(sizes, list) else ""
            if said[facts]:
                known[case] = said[facts]
    return known


def plus_minus(answers: Iterable[Answer]) -> dict[str, float | None]:
    """By case id: the 95 % half-width of its step latency, in s, where an answer knows it."""
    return {one.case_id: one.plus_minus_s for answer in answers for one in answer.candidates}


def _findings(seen: SessionData, rows: dict[Any, int]) -> pd.DataFrame:
    """Stored and computed findings of one case each: its row, `case`, `code`, `message` without its label, `advice`."""
    stored = seen.results.finding[seen.results.finding["session_id"] == seen.session.id]
    told = [
        *zip(stored["case_id"], stored["code"], stored["message"], stored["advice"], strict=True),
        *((each.case_id, each.code, each.message, each.advice) for each in seen.once(check_evidence)),
    ]
    labels = dict(zip(seen.cases["case_id"], seen.cases["label"], strict=True))
    own = dict.fromkeys(
        (rows[case], str(code), str(message).removeprefix(f"{labels[case]}: "), str(advice))
        for case, code, message, advice in told
        if case in rows
    )
    return pd.DataFrame(list(own), columns=["case", "code", "message", "advice"])


def bucket_sizes(facts: object) -> str:
    """The buckets that a launch really used: '3, largest 25.0 MiB'; empty when they were not recorded."""
    sizes = json.loads(facts).get("bucket_bytes") if isinstance(facts, str) else None
    if not isinstance(sizes, list) or not sizes:
        return ""
    return f"{len(sizes)}, largest {format.mebibytes(max(sizes))}"
