"""Check cases for unknown names, combinations that no machine can run, and requirements that this machine lacks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from parabench.collectives import ALGORITHMS, levels_of, table_name
from parabench.collectives.nccl import NCCL_ALGORITHMS, NCCL_PREFIX, is_nccls
from parabench.data import checks
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.machine.machine import RANKS_PER_CORE, Machine
from parabench.machine.versions import SHARED_GPU, Nccl
from parabench.models import BLOCKS, FIRST, MODELS, SAME_SPLIT, SEQUENCE, TENSOR, TF32, ModelEntry
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.fields import list_text
from parabench.plan.schedule import STAGES_PER_RANK, microbatches_error
from parabench.registry import Entry, find, load
from parabench.store.record import AnyCase
from parabench.strategies import STRATEGIES, Group, Layout, entry_of

# The compilers that torch.compile looks for when it builds CPU code.
COMPILERS = (os.environ.get("CXX", "g++"), "g++", "clang++")

# torch/_dynamo/backends/distributed.py: DDPOptimizer compiles what DDP wraps in pieces as large as DDP's largest cap,
# and raises an AssertionError if its first piece, `torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`, is larger.
LEAST_COMPILED_MIB = 1.0

# The advice for a model that lacks a requirement of a strategy.
REMEDIES = {
    BLOCKS: "give Model.blocks (and stem and head, where the blocks are not the whole module)",
    TENSOR: "give Model.tensor_parallel",
    SEQUENCE: "give Model.sequence_parallel",
    FIRST: "give Model.first, the name of the linear layer that takes the features",
}


def check_name(kind: str, name: str, table: Mapping[str, Entry]) -> None:
    """Raise UsageError unless `name` is in `table`, or is a custom "package.module:name" that can be imported."""
    if find(table, kind, name) is None:
        own = load(table, kind, name)
        if not callable(own) and not hasattr(own, "all_reduce"):
            raise UsageError(f"{kind} {name!r} is {own!r}; it must be a function, or an Algorithm")


def check_algorithm(name: str, ranks_per_node: int | None) -> None:
    """Raise UsageError for an unknown algorithm. A custom one is created, which needs torch; built-in ones are not."""
    check_name("algorithm", table_name(name), ALGORITHMS)
    if find(ALGORITHMS, "algorithm", table_name(name)) is None:
        from parabench.collectives.algorithm import make

        make(name, ranks_per_node)


def check_names(case: Case) -> None:
    """Raise UsageError for an unknown strategy, algorithm or model."""
    check_name("strategy", case.strategy, STRATEGIES)
    check_algorithm(case.algorithm, case.ranks_per_node)
    check_name("model", case.model, MODELS)


def entry_of_model(case: Case) -> ModelEntry:
    """Return the entry of the case's model. A custom model is built once to describe it, and may depend on the case.

    Raises UsageError for an unknown name, and for a custom model that cannot be built.
    """
    entry = find(MODELS, "model", case.model)
    if entry is not None:
        return entry
    from parabench.models.factory import describe  # needs torch, unlike built-in models

    return describe(case)


def check_group(case: AnyCase) -> None:
    """Raise UsageError if the case's algorithm, backend, device and nodes contradict each other."""
    if is_nccls(case.algorithm) and case.backend != "nccl":
        raise UsageError(
            f"algorithm {case.algorithm} is NCCL's own and the backend here is {case.backend}; use backend nccl on "
            "CUDA devices, or an algorithm without nccl: before its name"
        )
    if case.device == "cpu" and case.backend == accelerator.BACKEND:
        raise UsageError("backend nccl needs device cuda; use gloo on the CPU")
    has = case.world_size // case.nodes
    if case.nodes > 1 and levels_of(case.algorithm) is not None and case.ranks_per_node != has:
        raise UsageError(
            f"ranks_per_node is {case.ranks_per_node}, and on {case.nodes} nodes {case.algorithm} goes by the {has} "
            "ranks that each has; drop ranks_per_node"
        )


def check(case: Case) -> None:
    """Raise UsageError for a case that is wrong on every machine.

    Its batch must divide among the ranks, its model must be able to read its data, and its options must not contradict
    each other.
    """
    entry, model = entry_of(case.strategy), entry_of_model(case)
    if case.split == "dimension" and entry.layout is not Layout.TENSOR:
        raise UsageError(f"split dimension is for tensor parallel; {case.strategy} splits {entry.splits}")
    if case.arithmetic.matmul == TF32 and case.device == "cpu":
        raise UsageError(f"precision {case.precision} is an arithmetic of CUDA devices; use ieee on device cpu")
    own, rest = divmod(case.global_batch, case.data_ranks)
    if rest:
        by = f"world_size {case.world_size}" if entry.layout is Layout.DATA else f"{case.data_ranks} groups of ranks"
        raise UsageError(
            f"global_batch {case.global_batch} does not divide by {by} for {case.strategy}; give a multiple"
        )
    if case.global_batch % case.batch_parts:
        part = "grad_accumulation" if case.microbatches is None else "microbatches"
        raise UsageError(
            f"a rank's batch of {own} does not divide by {part} {getattr(case, part)} for {case.strategy}; give a "
            "divisor"
        )
    if model.context is not None and case.seq_len > model.context:
        raise UsageError(f"seq_len {case.seq_len} is longer than the context of {case.model}, {model.context}")
    checks.check(case, model)
    if case.pin_memory and case.device == "cpu":
        raise UsageError("pin_memory is for copies to a CUDA device; drop it on device cpu")
    if entry.layout is Layout.PIPELINE and case.device == accelerator.TYPE and case.backend == "gloo":
        raise UsageError(f"{case.strategy} sends between ranks, and gloo sends no CUDA tensors; use backend nccl")
    on_gloo = case.device == accelerator.TYPE and case.backend == "gloo" and case.algorithm == "native"
    if case.sequence_parallel and on_gloo:
        # c10d's allgather_into_tensor_coalesced_ reads CUDA pointers on the host there (pytorch/pytorch#132471).
        raise UsageError("sequence_parallel gathers activations, and gloo gathers no CUDA tensors; use backend nccl")
    if case.verification == SAME_SPLIT and case.split != "batch":
        raise UsageError(f"verification same_split compares rows of each batch; use split batch, not {case.split}")
    check_group(case)


def check_fit(case: Case) -> None:
    """Raise UsageError if the strategy cannot split the model among this number of ranks."""
    entry, model = entry_of(case.strategy), entry_of_model(case)
    if entry.layout is Layout.PIPELINE:
        per_rank = STAGES_PER_RANK[case.schedule] if "schedule" in entry.axes else 1
        stages = case.world_size * per_rank
        if 0 < model.blocks < stages:
            raise UsageError(
                f"{case.strategy} needs {stages} stages for world_size {case.world_size}, and {case.model} has "
                f"{model.blocks} blocks; use fewer ranks"
            )
        if why := case.microbatches and microbatches_error(case.schedule, case.world_size, case.microbatches):
            raise UsageError(
                f"microbatches is {case.microbatches} of global_batch {case.global_batch}; for {case.strategy} "
                f"{case.schedule} it {why}"
            )
    sharing = {Layout.TENSOR: case.world_size, Layout.GRID: case.tp_size or 1}.get(entry.layout, 1)
    name = "tp_size" if entry.layout is Layout.GRID else "world_size"
    shared = [(f"the {model.heads} heads of {case.model}", model.heads)]
    shared += [(f"a layer's width of {width} in {case.model}", width) for width in model.widths]
    if case.sequence_parallel:
        shared.append((f"seq_len {case.seq_len}, which sequence_parallel splits,", case.seq_len))
    if case.split == "dimension":
        shared.append((f"the {model.features} features of {case.model}", model.features))
    for what, size in shared:
        if size is not None and size % sharing:
            raise UsageError(f"{name} {sharing} does not divide {what} for {case.strategy}; use a divisor")


def missing_requirement(case: Case, machine: Machine) -> str | None:
    """Return why the model or this machine lacks a requirement of the strategy; None if they have all."""
    entry, model = entry_of(case.strategy), entry_of_model(case)
    if entry.one_process and (case.nodes > 1 or not 2 <= case.world_size <= len(machine.gpus)):
        return (
            f"strategy {case.strategy} drives 2 or more CUDA devices from one process; here are {len(machine.gpus)}, "
            f"and world_size is {case.world_size} on {case.nodes} node(s); use ddp"
        )
    if case.arithmetic.scaled and entry.own_steps:
        return f"strategy {case.strategy} scales no loss, which precision {case.precision} needs; use bf16-mixed"
    if entry.package is not None and case.arithmetic.parameters != "float32":
        return f"strategy {case.strategy} is not set up for precision {case.precision}; use bf16-mixed"
    if entry.layout is Layout.PIPELINE and ("forward" in model.own or "loss" not in model.own):
        has = "its own forward" if "forward" in model.own else "no loss function"
        return (
            f"{case.strategy} passes one tensor from block to block and compares the last one with the targets, and "
            f"model {case.model} has {has}; use another strategy"
        )
    if entry.layout is Layout.PIPELINE and model.brings >= entry.needs and case.model not in MODELS:
        from parabench.data.trial import SAME, trial_of  # needs torch, unlike built-in models

        checks.check(case, model)
        if (trial_of(case).apart or 0.0) > SAME:
            return (
                f"head(blocks(stem(x))) is not module(x) in model {case.model}, which {case.strategy} needs; a stage "
                "takes one tensor and gives one"
            )
    if case.strategy == "parameter_server_async" and {"optimizer", "scheduler", "clip_norm"} & model.own:
        return f"strategy {case.strategy} trains with AdamW alone, and model {case.model} has its own; use ddp"
    if entry.package is not None and {"scheduler", "clip_norm"} & model.own:
        return f"strategy {case.strategy} takes no clip_norm or scheduler of model {case.model}; use fsdp"
    if case.arithmetic.scaled and {"scheduler", "clip_norm"} & model.own:
        return f"precision {case.precision} scales the loss, without clip_norm or scheduler; use bf16-mixed"
    if entry.missing is not None:
        return f"strategy {case.strategy} needs a package that is not installed: pip install {entry.missing}"
    if case.compile and case.device == "cpu" and not any(map(shutil.which, COMPILERS)):
        return "compile needs a C++ compiler on the CPU, and there is none; install g++, or leave compile off"
    if case.bucket_caps and not entry.takes_caps:
        have = ", ".join(name for name, each in STRATEGIES.items() if each.takes_caps)
        return (
            f"bucket_mib {list_text(case.bucket_caps)} is a list of caps for DDP's buckets, and {case.strategy} has "
            f"none; give it one size, or use strategy {have}"
        )
    largest = max(case.bucket_caps, default=case.bucket_cap)
    if case.compile and entry.takes_caps and largest is not None and largest < LEAST_COMPILED_MIB:
        return (
            f"compile needs buckets of {LEAST_COMPILED_MIB:g} MiB or more for {case.strategy} (torch's DDPOptimizer), "
            f"and the largest cap is {largest:g} MiB; raise bucket_mib, or leave compile off"
        )
    needed = set(entry.needs)
    if case.sequence_parallel:
        needed |= {SEQUENCE}
    if case.split == "dimension" and entry.layout is Layout.TENSOR:
        needed |= {FIRST}
    for need in sorted(needed - model.brings):
        if why := model.why_missing.get(need):
            return f"model {case.model} has no {need} for {case.strategy}: {why}"
        has = f"blocks without {model.outside}" if need == BLOCKS and model.outside else f"no {need}"
        return f"model {case.model} has {has} for {case.strategy}; {REMEDIES[need]}"
    return None


def exceeds_machine(case: AnyCase, machine: Machine) -> str | None:
    """Return why this machine cannot run the case; None if it can."""
    if case.device == accelerator.TYPE and not machine.gpus:
        return f"device cuda is not here: {machine.gpus_reason}; use device cpu"
    if case.device == accelerator.TYPE and machine.cuda_fault is not None:
        return f"device cuda cannot be used: {machine.cuda_fault}; or use device cpu"
    if case.nodes > machine.nodes:
        here = f"this session has {machine.nodes}" if machine.ranks_per_node else "this is one machine; see --nnodes"
        return f"nodes is {case.nodes}, and {here}"
    if machine.ranks_per_node is not None and case.world_size // case.nodes > machine.ranks_per_node:
        where = f"{case.nodes} nodes" if case.nodes > 1 else "a node"
        return (
            f"world_size {case.world_size} cannot be spread evenly over {where} of {machine.ranks_per_node} ranks; "
            f"give a multiple of {machine.ranks_per_node}, up to {machine.nodes * machine.ranks_per_node}"
        )
    most = machine.ranks(case.device)
    if case.world_size // case.nodes <= most:
        return None
    if case.device == "cpu":
        return (
            f"world_size {case.world_size} is larger than {most}, {RANKS_PER_CORE} ranks on each of the "
            f"{machine.cores} core(s) here; use {most} or fewer"
        )
    if case.backend == "gloo" or machine.nccl.may_share:
        return None  # several ranks can share a device
    return (
        f"world_size {case.world_size} is larger than the {most} device(s) here; use {most} or fewer, backend gloo, "
        f"device cpu, or {SHARED_GPU}=1 with NCCL 2.30 or later (here is {machine.nccl})"
    )


# -- NCCL's own algorithms ---------------------------------------------------------------------------------------------

# For some communicators, NCCL disables an algorithm, and a pinned call fails with ncclInvalidUsage. The session then
# leaves the case out (`session.runner`).

# Since this version, NCCL_ALGO takes one entry per operation.
PINS_SINCE = (2, 24)

_OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}


def unpinned(case: AnyCase, nccl: Nccl) -> str | None:
    """Return why NCCL cannot be forced to use the case's algorithm, or why this would change nothing.

    Returns None if a launch can try it, and for algorithms that are not part of NCCL.
    """
    if case.backend != "nccl" or not is_nccls(case.algorithm):
        return None
    if nccl.version is not None and nccl.version < PINS_SINCE:
        return f"algorithm {case.algorithm} needs NCCL 2.24 or later, which can pin one operation; here is {nccl}"
    own = case.algorithm.removeprefix(NCCL_PREFIX)
    called = {op for size, ops in communicators(case) or () if size > 1 for op in ops}
    if called and called.isdisjoint(NCCL_ALGORITHMS[own]):
        has, calls = (", ".join(_OPS.get(op, op) for op in ops) for ops in (NCCL_ALGORITHMS[own], sorted(called)))
        return f"NCCL has {own} for {has} only, but it calls {calls}: the pin would change nothing; use native"
    return None


def communicators(case: AnyCase) -> list[tuple[int, frozenset[str]]] | None:
    """Return (number of ranks, called operations) for each communicator of rank 0.

    Returns None for a custom strategy, whose calls are unknown.
    """
    if isinstance(case, CollectiveCase):
        return [(case.world_size, frozenset({case.op.replace("_", "")}))]
    assert isinstance(case, Case)
    calls = entry_of(case.strategy).calls
    if calls is None:
        return None
    every = range(case.world_size)
    inside = case.tp_size or case.world_size
    node = case.ranks_per_node or case.world_size
    # Rank 0 is in the first row of a grid, which has consecutive ranks, and in its first column.
    ranks = {
        Group.ALL: every,
        Group.NODE: every[:node],
        Group.ACROSS_NODES: every[::node],
        Group.LAYERS: every[:inside],
        Group.ACROSS_LAYERS: every[::inside],
    }
    along_sequence = {Group.LAYERS: {"allgather", "reducescatter"}} if case.sequence_parallel else {}
    return [(len(ranks[group]), ops | along_sequence.get(group, set())) for group, ops in calls.items()]
