"""What a host has, from what its ranks say of themselves: a batch system or a container may show each only its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import permutations
from typing import Any

from parabench.machine import gpus, host
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine, environment
from parabench.machine.nvml import readable_devices
from parabench.watching.group import Group

# What one rank says of itself.
About = Mapping[str, Any]

APART = "no process of this host sees both devices"


def of_this(group: Group, machine: Machine) -> dict[str, Any]:
    """What this rank says of its host and its devices. Only the first rank of a host describes all that NVML shows it;
    each other one describes the device that it uses itself, which may be hidden from the first."""
    about: dict[str, Any] = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "cores": sorted(os.sched_getaffinity(0)),
        "core_limit": host.core_limit(),
        "devices": [asdict(gpu) for gpu in machine.gpus],
        "devices_reason": machine.gpus_reason,
        "environment": None,
        "described": [],
    }
    if group.local_rank == 0:
        shown = gpus.devices(readable_devices)[0] if machine.gpus else ()
        about["environment"] = environment(replace(machine, gpus=shown))
        about["described"] = [asdict(gpu) for gpu in shown]
    elif machine.gpus:
        about["own"] = _described(_used(about["devices"], group.local_rank))
    return about


def _described(gpu: Gpu) -> dict[str, Any]:
    record = gpus.describe([gpu])
    found: dict[str, Any] = record["gpus"][0]
    found.setdefault("reasons", record["driver"]["reasons"])
    return found


def cores_of(said: Sequence[About]) -> int:
    """How many cores the ranks of one host may use together: mpirun and srun bind each of them to some of its own."""
    bound, limit = len({core for about in said for core in about["cores"]}), said[0]["core_limit"]
    return bound if limit is None else max(1, min(bound, round(limit)))


def machine_of(said: Sequence[About], machine: Machine, group: Group) -> Machine:
    """What the planner needs of rank 0's host and the others, which are like it: `machine` with the cores of all its
    ranks and the devices that they use, each once."""
    used = used_devices(said)
    reason = next((each["devices_reason"] for each in said if each["devices_reason"]), None)
    if used and not _found_by_torch(said):
        reason = None
    return replace(
        machine,
        cores=cores_of(said),
        gpus=tuple(used),
        gpus_reason=reason,
        nodes=group.nodes,
        ranks_per_node=group.ranks_per_node,
    )


def used_devices(said: Sequence[About]) -> list[Gpu]:
    """The devices that a host's ranks use, each once, in the order of their ranks, and numbered for the record."""
    number = _numbers(said)
    used: dict[str, Gpu] = {}
    for local_rank, about in enumerate(said):
        if about["devices"]:
            gpu = _used(about["devices"], local_rank)
            used.setdefault(_place(gpu), replace(gpu, index=number[_place(gpu)]))
    return list(used.values())


def _used(devices: Sequence[Mapping[str, Any]], local_rank: int) -> Gpu:
    """Of the devices that a rank sees the one that it takes, as `rank.device_of` does."""
    return Gpu(**devices[local_rank % len(devices)])


def _place(gpu: Gpu) -> str:
    return gpu.address or f"device {gpu.index}"


def _numbers(said: Sequence[About]) -> dict[str, int]:
    """The number of each device that a rank of the host sees: NVML's, unless it shows ranks different devices under the
    same one. Then they are counted in the order of their addresses, as NVML counts where it shows them all."""
    seen = {_place(gpu): gpu.index for about in said for gpu in (Gpu(**each) for each in about["devices"])}
    if len(set(seen.values())) == len(seen):
        return seen
    return {place: at for at, place in enumerate(sorted(seen))}


def environment_of(said: Sequence[About]) -> dict[str, Any]:
    """What is recorded of a host: of its devices those that its ranks see, the used ones first."""
    first = said[0]
    found: dict[str, Any] = dict(first["environment"]) | {"cores": cores_of(said)}
    number = _numbers(said)
    if not number:
        return found
    order = [_place(gpu) for gpu in used_devices(said)] + sorted(number, key=number.__getitem__)
    at = {_place(Gpu(**each)): position for position, each in enumerate(first["described"])}
    known = {place: found["gpus"][position] for place, position in at.items()}
    for local_rank, each in enumerate(said):
        if "own" in each:
            known.setdefault(_place(_used(each["devices"], local_rank)), each["own"])
    places = [place for place in dict.fromkeys(order) if place in known]
    found["gpus"] = [known[place] | {"index": number[place]} for place in places]
    found["links"] = _links(found["links"], [at.get(place) for place in places])
    if not _found_by_torch(said):
        found["nvml"] = {"available": True, "reason": None}
    return found


def _found_by_torch(said: Sequence[About]) -> bool:
    """Return whether NVML does not read the devices that the ranks use."""
    return any(each["devices"] and each["devices_reason"] for each in said)


def _links(links: Mapping[str, Any], positions: Sequence[int | None]) -> dict[str, Any]:
    """Of a record of links the rows and columns at `positions`, of which None are devices that it does not have."""
    matrix, switched = links.get("matrix"), links.get("nvlinks_to_switches")
    if matrix is None and any(each is not None for each in positions):
        return dict(links)
    rows: list[list[str | None]] = [[gpus.ITSELF] * len(positions) for _ in positions]
    moved = {str(old): str(new) for new, old in enumerate(positions) if old is not None}
    reasons = {
        "-".join(moved[old] for old in key.split("-")): reason
        for key, reason in (links.get("reasons") or {}).items()
        if moved.keys() >= {*key.split("-")}
    }
    for (a, row), (b, column) in permutations(enumerate(positions), 2):
        if row is None or column is None:
            rows[a][b], reasons[f"{min(a, b)}-{max(a, b)}"] = None, APART
        elif matrix is not None:
            rows[a][b] = matrix[row][column]
    return {
        "matrix": rows,
        "nvlinks_to_switches": [None if each is None or not switched else switched[each] for each in positions],
        "reasons": reasons,
    }


def node_records(hosts: Sequence[Sequence[About]]) -> list[dict[str, Any]]:
    """What is recorded of all hosts where there are several; of rank 0's own only where it is."""
    if len(hosts) < 2:
        return []
    return [{"node": 0}] + [{"node": node, **environment_of(hosts[node])} for node in range(1, len(hosts))]
