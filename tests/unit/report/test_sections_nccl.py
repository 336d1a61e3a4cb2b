"""The section of NCCL's choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_results as fake
from parabench.analysis.session import session_data
from parabench.report.sections.step import nccl_section
from parabench.report.spec import Section
from parabench.store.record import EXPLAIN_REPETITION, Launch

NCCL = fake.case(device="cuda", backend="nccl")
TOLD: dict[str, Any] = {
    "version": "2.27.5+cuda12.9", "network": "IB", "channels": {"coll": 24, "p2p": 32}, "transports": {"P2P/CUMEM": 2},
    "choices": [
        {"op": "all_reduce", "bytes": 4, "algorithm": "tree", "protocol": "ll", "channels": 1, "calls": 3},
        {"op": None, "bytes": 26_214_400, "algorithm": "ring", "protocol": "simple", "channels": None, "calls": 1},
    ],
}  # fmt: skip
NOTHING: dict[str, Any] = {
    "version": None, "network": None, "channels": {}, "transports": {"P2P/CUMEM": 1}, "choices": [],
}  # fmt: skip


def section(folder: Path, *launches: Launch) -> Section | None:
    return nccl_section(session_data(fake.write(folder / "r.db", launches)))


def test_nccl_section_has_choices_and_connections(tmp_path: Path) -> None:
    logs = [{"rank": 0, **TOLD}, {"rank": 1, **NOTHING}]
    found = section(
        tmp_path, fake.launch(NCCL, 99.0, repetition=EXPLAIN_REPETITION, facts={"nccl": logs}), fake.launch(NCCL)
    )
    assert found is not None
    (table,) = found.tables
    assert [row[1:] for row in table.rows] == [
        ("all_reduce", "tree", "ll", "4", "1", "3"),
        ("unknown", "ring", "simple", "26,214,400", "–", "1"),
    ]
    assert found.lead == ("NCCL 2.27.5+cuda12.9: network IB; channels 24 coll, 32 p2p; connections 3 P2P/CUMEM.")


def test_nccl_section_lists_the_inspectors_operations(tmp_path: Path) -> None:
    op = {"op": "all_reduce", "bytes": 1024, "ranks": 2, "calls": 3, "duration_s": 1e-5}
    files = [{"file": "a.log", "ops": [op | {"algbw_bytes_per_s": 1e9, "busbw_bytes_per_s": 2e9}]}]
    found = section(tmp_path, fake.launch(NCCL, facts={"nccl_inspector": files}))
    assert found is not None
    assert found.tables[0].rows[0][1:] == ("all_reduce", "1,024", "2", "3", "10.0", "1.00", "2.00")


def test_nccl_section_is_absent_without_a_record(tmp_path: Path) -> None:
    assert section(tmp_path, fake.launch(fake.case())) is None
