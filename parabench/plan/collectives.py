"""Expand the options of `parabench collectives` into checked cases, and skip cases that this machine cannot run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from parabench.collectives import ON_ANY_BACKEND, TWO_LEVEL, canonical, is_backends, levels_of
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.machine.machine import Machine
from parabench.plan.collective_case import OPS, REDUCING, CollectiveCase, parse_size
from parabench.plan.collective_protocol import LATENCY, ROUNDS, CollectiveProtocol
from parabench.plan.fields import parse_field, typed
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
    """Expand the requested fields, in the form of the command line, and check each case.

    Raises UsageError for a case that is wrong anywhere or that this machine lacks, and if none is left to run.
    """
    cases: dict[CollectiveCase, None] = {}
    skipped: dict[Skipped[CollectiveCase], None] = {}
    for case in _cases(asked, protocol, machine):
        check_algorithm(case.algorithm, case.ranks_per_node)
        check_backend(case)
        check_nodes(case)
        if (reason := exceeds_machine(case, machine)) is not None:
            raise UsageError(reason)
        if protocol.graph and not (case.backend == accelerator.BACKEND and is_backends(case.algorithm)):
            raise UsageError(
                f"--graph captures NCCL's own calls, and here {case.algorithm} runs over {case.backend}; leave --graph "
                "out, or use --algorithm native on CUDA devices"
            )
        if (reason := unpinned(case, machine.nccl)) is None:
            cases[case] = None
        else:
            skipped[Skipped(case, reason)] = None
    if not cases:
        raise UsageError(f"nothing to run; {next(iter(skipped)).reason}")
    return Plan(cases=tuple(cases), skipped=tuple(skipped), protocol=protocol, seed=seed)


def _cases(asked: Mapping[str, Any], protocol: CollectiveProtocol, machine: Machine) -> Iterator[CollectiveCase]:
    fields = resolve_device(asked.get("device", "auto"), asked.get("backend", "auto"), machine)
    ops = parse_field(FIELDS["op"], asked["op"]) if "op" in asked else OPS
    if "world_size" in asked:
        sizes = [FIELDS["world_size"].checked(each) for each in parse_field(FIELDS["world_size"], asked["world_size"])]
    elif machine.ranks_per_node is not None:
        sizes = [machine.nodes * machine.ranks_per_node]
    else:
        sizes = [max(2, len(machine.gpus))] if fields["device"] == accelerator.TYPE else [2]
    ranks_per_node = FIELDS["ranks_per_node"].checked(asked.get("ranks_per_node"))
    fields |= {"max_bytes": MOST.get(fields["backend"], MOST["gloo"])}
    fields |= {name: parse_size(asked[name]) for name in ("min_bytes", "max_bytes") if name in asked}
    fields |= {name: asked[name] for name in ("factor", "dtype", "threads") if name in asked}
    for size, op in itertools.product(sizes, ops):
        nodes = machine.nodes_for(size)
        redop = asked.get("redop", "sum") if op in REDUCING else "none"
        per_node = ranks_per_node or (size // nodes if machine.nodes > 1 else default_ranks_per_node(size))
        for algorithm in _algorithms(asked, protocol, size):
            case = CollectiveCase(op=op, algorithm=algorithm, world_size=size, nodes=nodes, redop=redop, **fields)
            yield case.replace(ranks_per_node=None if levels_of(algorithm) is None else per_node)


def _algorithms(asked: Mapping[str, Any], protocol: CollectiveProtocol, world_size: int) -> list[str]:
    """Return the requested algorithms, or all of parabench's; two_level only if there can be nodes."""
    if "algorithm" in asked:
        return list(dict.fromkeys(map(canonical, parse_field(FIELDS["algorithm"], asked["algorithm"]))))
    if protocol.graph:
        return ["native"]
    nodes = "ranks_per_node" in asked or default_ranks_per_node(world_size) > 1
    return [name for name in ON_ANY_BACKEND if name != TWO_LEVEL or nodes]


def collective_protocol(**given: Any) -> CollectiveProtocol:
    """Return the protocol with the fields that were `given`. Raises UsageError if two contradict each other."""
    if given.get("mode") == LATENCY:
        for option in typed(CollectiveProtocol, {name: given.get(name) for name in ("batches", "measure_s")}):
            raise UsageError(f"{option} is for mode throughput, and mode latency times every call; leave it out")
    if {"iterations", "measure_s"} <= given.keys():
        raise UsageError("--iterations and --measure-seconds both set the number of timed calls; give one of them")
    return CollectiveProtocol(**{"rounds": ROUNDS, **given})
