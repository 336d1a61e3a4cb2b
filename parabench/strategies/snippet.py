"""The code that applies a configuration in a user's training script."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from parabench.collectives.nccl import is_nccls, nccl_environment
from parabench.machine import accelerator
from parabench.plan.case import DEFAULTS, Case
from parabench.plan.fields import number
from parabench.strategies import STRATEGIES, entry_of

# A remark about a variable of the script.
BLOCKS = "blocks: your model's repeated layers"
SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B"}

# {name: its import}. The lines of a strategy may have further imports.
IMPORTS = {
    name: f"from {module} import {name}"
    for module, names in {
        "contextlib": ("nullcontext",),
        "functools": ("partial",),
        "parabench.strategies.fsdp": ("group_blocks",),
        "parabench.strategies.tensor_parallel": ("Parts",),
        "torch.distributed.device_mesh": ("init_device_mesh",),
        "torch.distributed.fsdp": ("MixedPrecisionPolicy", "fully_shard"),
        "torch.distributed.optim": ("ZeroRedundancyOptimizer",),
        "torch.distributed.pipelining": ("PipelineStage", *SCHEDULES.values()),
        "torch.distributed.tensor": ("Shard",),
        "torch.distributed.tensor.parallel": ("RowwiseParallel", "parallelize_module"),
        "torch.nn": ("DataParallel",),
        "torch.nn.parallel": ("DistributedDataParallel",),
        "torch.optim": ("AdamW",),
        "torch.utils.checkpoint": ("checkpoint",),
        "torch.utils.data": ("DataLoader", "DistributedSampler"),
    }.items()
    for name in names
} | {
    "dist": "import torch.distributed as dist",
    "os": "import os",
    "torch": "import torch",
    "use": "from parabench.collectives.join import leave, use",
}


def snippet(case: Case) -> str:
    """Return the Python code that applies this case's configuration in a user's script.

    It uses the script's `model`, `device`, `optimizer`, `blocks`, ... Defaults and axes such as precision are left out.
    """
    lines = [*_algorithm(case), *_means(case), *_strategy(case), *_data(case)]
    code = [line for line in lines if not line.startswith(("import ", "from "))]
    used = set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", "\n".join(line.partition("#")[0] for line in code)))
    needed = {IMPORTS[name] for name in used & IMPORTS.keys()} | set(lines).difference(code)
    imports = sorted(needed, key=lambda line: (line.startswith("from"), line))
    return "\n".join([*imports, *([""] if imports else []), *code])


def _algorithm(case: Case) -> list[str]:
    if case.algorithm == DEFAULTS["algorithm"] or "algorithm" not in entry_of(case.strategy).axes:
        return []
    if is_nccls(case.algorithm):
        pinned = nccl_environment(case.algorithm).items()
        lines = [f'os.environ["{name}"] = "{value}"' for name, value in pinned]
        return ["# Before init_process_group, with NCCL 2.24 or newer:", *lines]
    backend = f'"{case.backend}"'
    if case.backend == "auto":
        backend = f'"{accelerator.BACKEND}" if torch.{accelerator.TYPE}.is_available() else "gloo"'
    nodes = "" if case.ranks_per_node is None else f", ranks_per_node={case.ranks_per_node}"
    return [
        f'use("{case.algorithm}", {backend}{nodes})',
        'dist.init_process_group("parabench")  # and leave() instead of dist.destroy_process_group(), after del model',
    ]


def _means(case: Case) -> list[str]:
    """What is done to each block, before the model is made parallel."""
    lines = []
    if case.compile:
        lines.append("    block.forward = torch.compile(block.forward, dynamic=False)")
    if case.activation_checkpointing:
        lines.append("    block.forward = partial(checkpoint, block.forward, use_reentrant=False)")
    return [f"for block in blocks:  # {BLOCKS}", *lines] if lines else []


def _data(case: Case) -> list[str]:
    """Return the lines for the data of each rank, unless they are defaults."""
    options = [f"num_workers={case.workers}"] if case.workers else []
    options += ["pin_memory=True"] if case.pin_memory else []
    before = []
    if case.split == "sample":
        groups = "" if case.data_ranks == case.world_size else f", {case.data_ranks}, data_rank"
        before = [f"sampler = DistributedSampler(dataset{groups}, drop_last=True)  # set_epoch(epoch) each epoch"]
        options.insert(0, "sampler=sampler")
    rows = case.global_batch // case.data_ranks
    return [*before, f"loader = DataLoader(dataset, batch_size={rows}, {', '.join(options)})"] if options else []


def _strategy(case: Case) -> list[str]:
    """Return the lines of the strategy's entry with fields of the case and PIECES. Empty lines are left out."""
    if case.strategy not in STRATEGIES:
        return [f"# {case.strategy} is your own: it wraps the model as {case.strategy}(model, context) does."]
    filled = "\n".join(line.format_map(_Filled(case=case)) for line in STRATEGIES[case.strategy].code)
    return [line for line in filled.splitlines() if line]


class _Filled(dict[str, Any]):
    """A case and its PIECES, each made when a line asks for it."""

    def __missing__(self, piece: str) -> str:
        return PIECES[piece](self["case"])


def _ddp_options(case: Case) -> str:
    options = ["device_ids=[device]"] if case.device == accelerator.TYPE else []
    options += [] if case.bucket_cap is None else [f"bucket_cap_mb={number(case.bucket_cap)}"]
    options += [f"bucket_cap_mb_list=[{', '.join(map(number, case.bucket_caps))}]"] if case.bucket_caps else []
    flags = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
    options += [f"{flag}=True" for flag in flags if getattr(case, flag)]
    return "".join(f", {option}" for option in options)


def _mesh(case: Case, inside: int | None = None, *names: str) -> str:
    device = "device.type" if case.device == "auto" else f'"{case.device}"'
    if inside is None:
        return f"mesh = init_device_mesh({device}, ({case.world_size},))"
    called = ", ".join(f'"{name}"' for name in names)
    return f"mesh = init_device_mesh({device}, ({case.world_size // inside}, {inside}), mesh_dim_names=({called}))"


def _sharded(case: Case, mesh: str = "mesh", *, reshard: bool = True) -> str:
    units = "blocks" if case.bucket_cap is None else f"group_blocks(blocks, {number(case.bucket_cap)})"
    policy, options = [], f"mesh={mesh}"
    if narrow := case.arithmetic.autocast:
        policy = [f"policy = MixedPrecisionPolicy(param_dtype=torch.{narrow}, reduce_dtype=torch.float32)"]
        options += ", mp_policy=policy"
    lines = [
        *policy,
        f"for unit in {units}:  # {BLOCKS}",
        f"    fully_shard(unit, {options}, reshard_after_forward={reshard})",
        f"fully_shard(model, {options}{'' if reshard else ', reshard_after_forward=False'})",
        _step(case, f"model.set_requires_gradient_sync(i == {case.grad_accumulation - 1})"),
    ]
    return "\n".join(lines)


def _split_layers(case: Case, mesh: str = "mesh") -> str:
    """Return the lines for tensor parallel with a plan of the user."""
    into, out = "ColwiseParallel()", "RowwiseParallel()"
    if case.sequence_parallel:
        into, out = "ColwiseParallel(input_layouts=Shard(1))", "RowwiseParallel(output_layouts=Shard(1))"
    lines = [
        "# plan: {name of a layer: its style}, of your own model: for what leads into a block's attention and MLP",
        f"# {into}, for what leads out of them {out}{', for its norms SequenceParallel()' * case.sequence_parallel}.",
    ]
    if case.split == "dimension":
        lines.append("plan[first] = RowwiseParallel(input_layouts=Shard(-1))  # the layer that takes split features")
    return "\n".join([*lines, f"parallelize_module(model, {mesh}, plan)"])


def _pipeline(case: Case, schedule: str, microbatches: str) -> str:
    ranks = case.world_size
    stages = ranks * (2 if schedule == "interleaved" else 1)
    run = f"PipelineStage(part, rank, {stages}, device)"
    what = f"part: your model's layers of stage rank, of {stages} as even as can be, the first with the embedding."
    if schedule == "interleaved":
        run = f"[PipelineStage(parts[i], i, {stages}, device) for i in (rank, rank + {ranks})]"
        what = f"parts: your model's layers as {stages} stages, as even as can be, the first with the embedding."
    lines = [
        f"# {what}",
        "# A weight that two stages share (a tied embedding) needs their gradients added up after each step.",
        f"schedule = {SCHEDULES[schedule]}({run}, {microbatches}, loss_fn=loss_of)",
        _optimizer(case, "parts" if schedule == "interleaved" else "part"),
        "fed = [inputs] if rank == 0 else []",
        f"seen = targets if rank == {ranks - 1} else None",
        "schedule.step(*fed, target=seen)  # forward and backward",
    ]
    return "\n".join(lines)


def _optimizer(case: Case, parameters: str = "model") -> str:
    if case.fused == DEFAULTS["fused"]:
        return ""
    return f"optimizer = AdamW({parameters}.parameters(), lr=lr, fused={case.fused})  # and your own settings"


def _step(case: Case, reducing: str = "") -> str:
    return "\n".join((_optimizer(case), _backward(case, reducing)))


def _backward(case: Case, reducing: str) -> str:
    """A rank's batch in parts, one after the other. `reducing` is a line that holds back what only the last part's
    backward needs to reduce; it may open a block."""
    parts = case.grad_accumulation
    if parts == 1:
        return ""
    held = reducing if case.no_sync else ""
    indent = "        " if held.endswith(":") else "    "
    lines = [
        f"for i, (some, theirs) in enumerate(zip(inputs.chunk({parts}), targets.chunk({parts}))):",
        *([f"    {held}"] if held else []),
        f"{indent}(loss_of(model(some), theirs) / {parts}).backward()",
    ]
    return "\n".join(lines)


def _no_sync(case: Case) -> str:
    # A static graph is learned in the first backward, which must reduce (strategies/data_parallel.py).
    first = " or step == i == 0" if case.static_graph else ""
    return f"with nullcontext() if i == {case.grad_accumulation - 1}{first} else model.no_sync():"


# {name: text} of placeholders in the lines of a strategy's entry.
PIECES: dict[str, Callable[[Case], str]] = {
    "optimizer": _optimizer,
    "step": _step,
    "step_no_sync": lambda case: _step(case, _no_sync(case)),
    "backward_no_sync": lambda case: _backward(case, _no_sync(case)),
    "rank_batch": lambda case: str(case.global_batch // case.batch_parts),
    "ddp_options": _ddp_options,
    "flat_mesh": _mesh,
    "node_mesh": lambda case: _mesh(case, case.ranks_per_node or case.world_size, "replicate", "shard"),
    "tp_mesh": lambda case: _mesh(case, case.tp_size or case.world_size, "dp", "tp"),
    "sharded": _sharded,
    "sharded_once": lambda case: _sharded(case, reshard=False),
    "sharded_between": lambda case: _sharded(case, 'mesh["dp"]'),
    "split_layers": _split_layers,
    "split_layers_inside": lambda case: _split_layers(case, 'mesh["tp"]'),
    "pipeline": lambda case: _pipeline(case, case.schedule, str(case.microbatches or "microbatches")),
    "pipeline_of_one": lambda case: _pipeline(case, "gpipe", "1"),
}
