"""A host, from what its ranks report: a batch system or a container may show each rank only its own devices and
cores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from parabench.machine import gpus, host
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine, environment
from parabench.machine.nvml import readable_devices
from parabench.watching.group import Group

# What one rank reports.
About = Mapping[str, Any]

APART = "no process of this host sees all devices"


def of_this(group: Group, machine: Machine) -> dict[str, Any]:
    """Return what this rank reports. The first rank of a host describes all devices that NVML shows it; each other rank
    describes the device that it uses, which may be hidden from the first."""
    about: dict[str, Any] = {
        "cores": sorted(os.sched_getaffinity(0)),
        "core_limit": host.core_limit(),
        "devices": [asdict(gpu) for gpu in machine.gpus],
        "devices_reason": machine.gpus_reason,
    }
    if group.local_rank == 0:
        shown = gpus.devices(readable_devices)[0] if machine.gpus else ()
        about["environment"] = environment(replace(machine, gpus=shown))
        about["described"] = [asdict(gpu) for gpu in shown]
    elif machine.gpus:
        record = gpus.describe([_used(about, group.local_rank)])
        about["own"] = {"reasons": record["driver"]["reasons"], **record["gpus"][0]}
    return about


def cores_of(abouts: Sequence[About]) -> int:
    """Return how many cores the ranks of a host may use together: mpirun and srun bind each rank to some of them."""
    bound, limit = len({core for about in abouts for core in about["cores"]}), abouts[0]["core_limit"]
    return bound if limit is None else max(1, min(bound, round(limit)))


def machine_of(abouts: Sequence[About], machine: Machine, group: Group) -> Machine:
    """Return `machine`, rank 0's host, with the cores of all its ranks and the devices that they use."""
    used = used_devices(abouts)
    reason = next((each["devices_reason"] for each in abouts if each["devices_reason"]), None)
    return replace(
        machine,
        cores=cores_of(abouts),
        gpus=tuple(used),
        gpus_reason=None if used and not _found_by_torch(abouts) else reason,
        nodes=group.nodes,
        ranks_per_node=group.ranks_per_node,
    )


def used_devices(abouts: Sequence[About]) -> list[Gpu]:
    """Return the devices that the ranks of a host use, each once, in the order of ranks, numbered for the record."""
    number = _numbers(abouts)
    used = [_used(about, local_rank) for local_rank, about in enumerate(abouts) if about["devices"]]
    return [*{_place(gpu): replace(gpu, index=number[_place(gpu)]) for gpu in used}.values()]


def _used(about: About, local_rank: int) -> Gpu:
    """Return the device that a rank uses, as `rank.device_of` does."""
    devices = about["devices"]
    return Gpu(**devices[local_rank % len(devices)])


def _place(gpu: Gpu) -> str:
    return gpu.address or f"device {gpu.index}"


def _numbers(abouts: Sequence[About]) -> dict[str, int]:
    """Return the number of each visible device: NVML's, unless it shows ranks different devices under the same number.
    Then they are counted in the order of their addresses, as NVML counts if it shows them all."""
    seen = {_place(gpu): gpu.index for about in abouts for gpu in (Gpu(**each) for each in about["devices"])}
    if len(set(seen.values())) == len(seen):
        return seen
    return {place: at for at, place in enumerate(sorted(seen))}


def environment_of(abouts: Sequence[About]) -> dict[str, Any]:
    """Return the record of a host, with the devices that its ranks see, the used ones first."""
    first = abouts[0]
    found: dict[str, Any] = dict(first["environment"]) | {"cores": cores_of(abouts)}
    number = _numbers(abouts)
    if not number:
        return found
    at = {_place(Gpu(**each)): position for position, each in enumerate(first["described"])}
    known = {place: found["gpus"][position] for place, position in at.items()}
    for local_rank, each in enumerate(abouts):
        if "own" in each:
            known.setdefault(_place(_used(each, local_rank)), each["own"])
    order = [_place(gpu) for gpu in used_devices(abouts)] + sorted(number, key=number.__getitem__)
    places = [place for place in dict.fromkeys(order) if place in known]
    found["gpus"] = [known[place] | {"index": number[place]} for place in places]
    found["links"] = _links(found["links"], [at.get(place) for place in places])
    if not _found_by_torch(abouts):
        found["nvml"] = {"available": True, "reason": None}
    return found


def _found_by_torch(abouts: Sequence[About]) -> bool:
    """Return whether NVML does not read the devices that the ranks use."""
    return any(each["devices"] and each["devices_reason"] for each in abouts)


def _links(links: Mapping[str, Any], positions: Sequence[int | None]) -> dict[str, Any]:
    """Return the rows and columns at `positions` of a record of links; unknown if it lacks one of these devices."""
    matrix = links["matrix"]
    known = [each for each in positions if each is not None]
    if len(known) < len(positions):
        return {"matrix": None, "reasons": {"all": APART}}
    if matrix is None:
        return dict(links)
    moved = {str(old): str(new) for new, old in enumerate(known)}
    return {
        "matrix": [[matrix[a][b] for b in known] for a in known],
        "nvlinks_to_switches": [links["nvlinks_to_switches"][each] for each in known],
        "reasons": {
            "-".join(moved[old] for old in key.split("-")): reason
            for key, reason in links["reasons"].items()
            if moved.keys() >= {*key.split("-")}
        },
    }


def node_records(hosts: Sequence[Sequence[About]]) -> list[dict[str, Any]]:
    """Return the records of all hosts if there are several; rank 0's own is completed later."""
    if len(hosts) < 2:
        return []
    return [{"node": 0}] + [{"node": node, **environment_of(hosts[node])} for node in range(1, len(hosts))]
