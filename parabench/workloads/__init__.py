"""The table of kinds of measurement: training, compute-only runs, single collectives, links.

This table is free of torch. The code of the ranks is in the class of each kind (`launch.spec.Workload`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.links import LinkProtocol
from parabench.plan.protocol import Protocol
from parabench.plan.schedule import TrainingSchedule
from parabench.registry import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadEntry(Entry):
    """A kind of measurement, with the types of its cases and protocols.

    - `launch_type` is the type of a launch's protocol; None if it is `protocol_type`.
    - If it is not `planned`, it is measured within sessions of another kind.
    - If ranks are `alone`, they exchange nothing, and only one node's ranks run.
    - If it is `verified`, each launch is compared with one device.
    - `command` measures it, and prints its lines with `prefix`.
    """

    case_type: type[Any]
    protocol_type: type[Any]
    launch_type: type[Any] | None = None
    planned: bool = True
    alone: bool = False
    verified: bool = False
    command: str = "run"
    prefix: str = ""


WORKLOADS: dict[str, WorkloadEntry] = {
    "training": WorkloadEntry(
        target="parabench.workloads.training:TrainingWorkload",
        summary="steps of training runs, interleaved if there are several, each verified against one device",
        case_type=Case,
        protocol_type=Protocol,
        launch_type=TrainingSchedule,
        verified=True,
    ),
    "compute": WorkloadEntry(
        target="parabench.workloads.training:TrainingWorkload",
        summary="steps of the ranks of one node of many, with nothing exchanged",
        case_type=Case,
        protocol_type=Protocol,
        launch_type=TrainingSchedule,
        alone=True,
    ),
    "collectives": WorkloadEntry(
        target="parabench.workloads.collectives:CollectivesWorkload",
        summary="calls of one operation at every size, checked against exact values",
        case_type=CollectiveCase,
        protocol_type=CollectiveProtocol,
        command="collectives",
        prefix="# ",  # tools that read the output of nccl-tests ignore such lines
    ),
    "links": WorkloadEntry(
        target="parabench.workloads.links:LinksWorkload",
        summary="latency and bandwidth between pairs of ranks",
        case_type=Case,
        protocol_type=LinkProtocol,
        planned=False,
    ),
}
