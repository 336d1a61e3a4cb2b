"""What `parabench collectives` is asked for becomes checked cases; what this machine cannot run is set aside."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping
from typing import Any

from parabench.collectives import ON_ANY_BACKEND, TWO_LEVEL, canonical, is_backends, levels_of
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.machine.machine import Machine
from parabench.machine.versions import SHARED_GPU, SHARED_GPU_SINCE
from parabench.plan.collective_case import (
    ALIGNMENT_BYTES,
    IN_PLACE_ONLY,
    OPS,
    REDUCING,
    CollectiveCase,
    parse_size,
    size_text,
)
from parabench.plan.collective_protocol import LATENCY, ROUNDS, CollectiveProtocol
from parabench.plan.fields import parse_field
from parabench.plan.nccl_pins import unpinned
from parabench.plan.plan import Plan, Skipped
from parabench.plan.resolve import default_ranks_per_node, resolve_device
from parabench.plan.validate import check_algorithm, check_backend, check_nodes, exceeds_machine
from parabench.records import declared
from parabench.store.record import MIB

# The largest size by backend, unless the user gives one. NVLink reaches its full rate from 512 MiB on; gloo copies CUDA
# tensors to host memory, so that the CPU's limit holds for them, too.
MOST = {"gloo": 64 * MIB, accelerator.BACKEND: 1024 * MIB}

FIELDS = declared(CollectiveCase)

CollectivePlan = Plan[CollectiveCase, CollectiveProtocol]


def plan_collectives(
    asked: Mapping[str, Any], protocol: CollectiveProtocol, machine: Machine, seed: int
) -> CollectivePlan:
    """Expand the fields of cases that were `asked` for, as the command line has them, and check each case.

    Raises UsageError for a case that is wrong anywhere or that this machine lacks, and if none is left to run.
    """
    cases: dict[CollectiveCase, None] = {}
    skipped: dict[Skipped[CollectiveCase], None] = {}
    for case in _cases(asked, protocol, machine):
        check_algorithm(case.algorithm, case.ranks_per_node)
        check_backend(case)
        check_nodes(case)
        reason = exceeds_machine(case, machine)
        if reason is not None:
            raise UsageError(_no_peer(case, machine) or reason)
        if protocol.graph:
            check_captured(case)
        reason = unpinned(case, machine.nccl)
        if reason is None:
            cases[case] = None
        else:
            skipped[Skipped(case, reason)] = None
    if not cases:
        raise UsageError(f"nothing to run; {next(iter(skipped)).reason}")
    return Plan(cases=tuple(cases), skipped=tuple(skipped), protocol=protocol, seed=seed)


def _no_peer(case: CollectiveCase, machine: Machine) -> str | None:
    """Return what to do instead on a machine with one GPU, on which NCCL has no second rank; None on other machines."""
    alone = len(machine.gpus) == 1 and machine.cuda_fault is None and machine.ranks_per_node is None
    if not alone or case.device != accelerator.TYPE or case.nodes > 1:
        return None
    known, since = machine.nccl.version, ".".join(map(str, SHARED_GPU_SINCE))
    if known is None or known >= SHARED_GPU_SINCE:
        share = f", or set {SHARED_GPU}=1 for ranks that share the GPU (NCCL {since} or later)"
    else:
        share = f"; ranks can share a GPU from NCCL {since} on, and here is {machine.nccl}"
    return (
        f"NCCL needs one GPU per rank: {case.world_size} ranks, and this machine has 1 GPU; use --backend gloo "
        f"(through host memory) or --device cpu{share}"
    )


def _cases(asked: Mapping[str, Any], protocol: CollectiveProtocol, machine: Machine) -> Iterator[CollectiveCase]:
    device = resolve_device(asked.get("device", "auto"), asked.get("backend", "auto"), machine)
    ops = parse_field(FIELDS["op"], asked["op"]) if "op" in asked else OPS
    if "world_size" in asked:
        sizes = [FIELDS["world_size"].checked(each) for each in parse_field(FIELDS["world_size"], asked["world_size"])]
    elif machine.ranks_per_node is not None:
        sizes = [machine.nodes * machine.ranks_per_node]
    else:
        sizes = [max(2, len(machine.gpus))] if device["device"] == accelerator.TYPE else [2]
    ranks_per_node = FIELDS["ranks_per_node"].checked(asked.get("ranks_per_node"))
    ends = {name: parse_size(asked[name]) for name in ("min_bytes", "max_bytes") if name in asked}
    common = device | {"max_bytes": MOST.get(device["backend"], MOST["gloo"])} | ends
    common |= {name: asked[name] for name in ("factor", "dtype", "threads") if name in asked}
    ladder: dict[str, Any] = {name: each.default for name, each in FIELDS.items()} | common
    for size, op in itertools.product(sizes, ops):
        # What every rank has a part of; unsaid, the ladder begins at its first step that has room for them.
        needed = 1 if op in IN_PLACE_ONLY else size * ALIGNMENT_BYTES
        for name, given in ends.items():
            if given < needed:
                raise UsageError(
                    f"{FIELDS[name].field.option} {asked[name]} is less than {op} among {size} ranks can split; use "
                    f"{size_text(needed)} or more"
                )
        if "min_bytes" not in ends and ladder["factor"] > 1:
            steps = itertools.accumulate(itertools.repeat(ladder["factor"]), operator.mul, initial=ladder["min_bytes"])
            common["min_bytes"] = min(next(step for step in steps if step >= needed), ladder["max_bytes"])
        for algorithm in _algorithms(asked, protocol, size):
            redop = asked.get("redop", "sum") if op in REDUCING else "none"
            two = levels_of(algorithm) is not None
            nodes = machine.nodes_for(size)
            case = CollectiveCase(op=op, algorithm=algorithm, world_size=size, nodes=nodes, redop=redop, **common)
            per_node = ranks_per_node or (size // nodes if machine.nodes > 1 else default_ranks_per_node(size))
            yield case.replace(ranks_per_node=per_node if two else None)


def _algorithms(asked: Mapping[str, Any], protocol: CollectiveProtocol, world_size: int) -> list[str]:
    """Those that were asked for, or all of ours; two_level only where there can be nodes. In graphs NCCL's alone."""
    if "algorithm" in asked:
        return list(dict.fromkeys(map(canonical, parse_field(FIELDS["algorithm"], asked["algorithm"]))))
    if protocol.graph:
        return ["native"]
    nodes = "ranks_per_node" in asked or default_ranks_per_node(world_size) > 1
    return [name for name in ON_ANY_BACKEND if name != TWO_LEVEL or nodes]


def collective_protocol(**given: Any) -> CollectiveProtocol:
    """How each launch measures, by the fields that were `given`. Raises UsageError where two contradict each other."""
    if given.get("mode") == LATENCY:
        for option, name in (("--batches", "batches"), ("--measure-seconds", "measure_s")):
            if name in given:
                raise UsageError(
                    f"{option} {given[name]:g} is for mode throughput, and mode latency times every call; leave it out"
                )
    if "iterations" in given and "measure_s" in given:
        raise UsageError(
            f"--iterations {given['iterations']} and --measure-seconds {given['measure_s']:g} both say how many calls "
            "are timed; give one of them"
        )
    return CollectiveProtocol(**{"rounds": ROUNDS, **given})


def check_captured(case: CollectiveCase) -> None:
    """Raise UsageError for a case whose calls no CUDA graph can hold."""
    if case.backend != "nccl":
        raise UsageError(f"--graph captures NCCL's kernels, and the backend here is {case.backend}; leave --graph out")
    if not is_backends(case.algorithm):
        raise UsageError(
            f"--graph captures NCCL's own calls, and {case.algorithm} is made of many; leave --graph out, or use "
            "--algorithm native"
        )
