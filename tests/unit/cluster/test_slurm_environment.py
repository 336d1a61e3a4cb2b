"""Slurm's variables, as Slurm 22.05 sets them. test_slurm.py runs a real Slurm."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parabench.cluster.foreign_group import first_host, group_of

# Two nodes of a job of three: what srun adds to what the batch script has.
BATCH = {
    "SLURM_JOB_ID": "31415",
    "SLURM_NNODES": "3",
    "SLURM_NTASKS": "3",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_JOB_NODELIST": "n[1-3]",
}
TASK = BATCH | {
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[2-3]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_LOCALID": "0",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Names and what they resolve to; an address is known anyway."""
    names: dict[str, str] = {}

    def getaddrinfo(host: str, port: None, *, type: int) -> list[Any]:
        address = host if host[0].isdigit() else names.get(host)
        if address is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, type, 6, "", (address, 0))]

    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    return names


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a scontrol of that shell script on a PATH that has no other."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(script: str) -> None:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
        os.chmod(tmp_path / "scontrol", 0o755)

    return put


def endpoint_host(environ: dict[str, str]) -> str | None:
    group = group_of(environ)
    assert group is not None
    return group.endpoint_host


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-2]", "n1"),
        ("n[07,09-12]", "n07"),
        ("rack[1-2]n[03-04],x", "rack1n03"),
        ("n[2,4]-ib.example.org,m1", "n2-ib.example.org"),
        ("gpu-a-1,gpu-b-[1-2]", "gpu-a-1"),
    ],
)
def test_the_first_host_of_a_list(nodelist: str, first: str) -> None:
    assert first_host(nodelist) == first


def test_a_name_that_does_not_resolve_is_asked_of_slurm(known: dict[str, str], scontrol: Callable[[str], None]) -> None:
    scontrol('test "$*" = "--oneliner show node n2" && echo "NodeName=n2 NodeAddr=10.0.0.2 NodeHostName=n2 Port=6818"')
    assert endpoint_host(TASK) == "10.0.0.2"
