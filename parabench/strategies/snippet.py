"""A configuration as code: the lines that give a training script of one's own what a case measured."""

from __future__ import annotations

import re
from collections.abc import Callable

from parabench.collectives.nccl import is_nccls, nccl_environment
from parabench.machine import accelerator
from parabench.plan.case import DEFAULTS, Case
from parabench.strategies import STRATEGIES, entry_of

# What the script must know of its own model.
BLOCKS = "blocks: your model's repeated layers"
SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B"}

# Where a name that a line uses comes from.
IMPORTS = {
    "AdamW": "from torch.optim import AdamW",
    "DataLoader": "from torch.utils.data import DataLoader",
    "DataParallel": "from torch.nn import DataParallel",
    "DistributedDataParallel": "from torch.nn.parallel import DistributedDataParallel",
    "DistributedSampler": "from torch.utils.data import DistributedSampler",
    "MixedPrecisionPolicy": "from torch.distributed.fsdp import MixedPrecisionPolicy",
    "Parts": "from parabench.strategies.tensor_parallel import Parts",
    "PipelineStage": "from torch.distributed.pipelining import PipelineStage",
    "RowwiseParallel": "from torch.distributed.tensor.parallel import RowwiseParallel",
    "Schedule1F1B": "from torch.distributed.pipelining import Schedule1F1B",
    "ScheduleGPipe": "from torch.distributed.pipelining import ScheduleGPipe",
    "ScheduleInterleaved1F1B": "from torch.distributed.pipelining import ScheduleInterleaved1F1B",
    "Shard": "from torch.distributed.tensor import Shard",
    "ZeroRedundancyOptimizer": "from torch.distributed.optim import ZeroRedundancyOptimizer",
    "checkpoint": "from torch.utils.checkpoint import checkpoint",
    "deepspeed": "import deepspeed",
    "dist": "import torch.distributed as dist",
    "fully_shard": "from torch.distributed.fsdp import fully_shard",
    "group_blocks": "from parabench.strategies.fsdp import group_blocks",
    "init_device_mesh": "from torch.distributed.device_mesh import init_device_mesh",
    "nullcontext": "from contextlib import nullcontext",
    "os": "import os",
    "parallelize_module": "from torch.distributed.tensor.parallel import parallelize_module",
    "partial": "from functools import partial",
    "torch": "import torch",
    "use": "from parabench.collectives.join import leave, use",
}


def snippet(case: Case) -> str:
    """The lines of Python that give a script of one's own this case's configuration, their imports first.

    `model`, `device`, `optimizer`, `blocks`, ... stand for the script's own. What the same training has in common
    however it is made parallel (model, data, precision, learning rate) is not repeated, nor what is at its default.
    Where there is no such line a comment says why.
    """
    code = [*_algorithm(case), *_means(case), *LINES.get(case.strategy, _no_line)(case), *_data(case)]
    used = set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", "\n".join(line.partition("#")[0] for line in code)))
    lines = {IMPORTS[name] for name in used & IMPORTS.keys()}
    imports = sorted(lines, key=lambda line: (line.startswith("from"), line))
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
        lines.append("    block.forward = torch.compile(block.forward)")
    if case.activation_checkpointing:
        lines.append("    block.forward = partial(checkpoint, block.forward, use_reentrant=False)")
    return [f"for block in blocks:  # {BLOCKS}", *lines] if lines else []


def _data(case: Case) -> list[str]:
    """How each rank is fed, where that is not at its default."""
    options = [f"num_workers={case.workers}"] if case.workers else []
    options += ["pin_memory=True"] if case.pin_memory else []
    before = []
    if case.split == "sample":
        groups = "" if case.data_ranks == case.world_size else f", {case.data_ranks}, data_rank"
        before = [f"sampler = DistributedSampler(dataset{groups}, drop_last=True)  # set_epoch(epoch) each epoch"]
        options.insert(0, "sampler=sampler")
    rows = case.global_batch // case.data_ranks
    return [*before, f"loader = DataLoader(dataset, batch_size={rows}, {', '.join(options)})"] if options else []


def _single(case: Case) -> list[str]:
    return ["# One device: the model as it is.", *_optimizer(case), *_accumulated(case)]


def _dp(case: Case) -> list[str]:
    line = f"model = DataParallel(model, device_ids=list(range({case.world_size})))"
    return [line, *_optimizer(case), *_accumulated(case)]


def _ddp(case: Case) -> list[str]:
    return [f"model = {_replicated(case, 'model')}", *_optimizer(case), *_accumulated(case, _no_sync(case))]


def _replicated(case: Case, module: str, *further: str) -> str:
    options = ["device_ids=[device]"] if case.device == accelerator.TYPE else []
    options += [] if case.bucket_mib is None else [f"bucket_cap_mb={_number(case.bucket_mib)}"]
    flags = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
    options += [f"{flag}=True" for flag in flags if getattr(case, flag)]
    return f"DistributedDataParallel({', '.join([module, *options, *further])})"


def _zero1(case: Case) -> list[str]:
    return [
        f"model = {_replicated(case, 'model')}",
        "optimizer = ZeroRedundancyOptimizer(",
        f"    model.parameters(), AdamW, parameters_as_bucket_view=True, fused={case.fused}, lr=lr",
        ")  # and your own settings",
        *_accumulated(case, _no_sync(case)),
    ]


def _fsdp(case: Case) -> list[str]:
    return [_mesh(case), *_sharded(case, "mesh")]


def _zero2(case: Case) -> list[str]:
    return [_mesh(case), *_sharded(case, "mesh", reshard=False)]


def _hsdp(case: Case) -> list[str]:
    return [_mesh(case, case.ranks_per_node or case.world_size, "replicate", "shard"), *_sharded(case, "mesh")]


def _sharded(case: Case, mesh: str, *, reshard: bool = True) -> list[str]:
    units = "blocks" if case.bucket_mib is None else f"group_blocks(blocks, {_number(case.bucket_mib)})"
    policy, options = [], f"mesh={mesh}"
    if narrow := case.arithmetic.autocast:
        policy = [f"policy = MixedPrecisionPolicy(param_dtype=torch.{narrow}, reduce_dtype=torch.float32)"]
        options += ", mp_policy=policy"
    return [
        *policy,
        f"for unit in {units}:  # {BLOCKS}",
        f"    fully_shard(unit, {options}, reshard_after_forward={reshard})",
        f"fully_shard(model, {options}{'' if reshard else ', reshard_after_forward=False'})",
        *_optimizer(case),
        *_accumulated(case, (f"model.set_requires_gradient_sync(i == {case.grad_accumulation - 1})",)),
    ]


def _tp(case: Case) -> list[str]:
    return [_mesh(case), *_split(case, "mesh"), *_optimizer(case), *_accumulated(case)]


def _tp_ddp(case: Case) -> list[str]:
    group = 'process_group=mesh.get_group("dp")'
    return [
        *_grid(case),
        "# DDP takes plain tensors only: each rank's parts of the layers.",
        f"model = {_replicated(case, 'Parts(model)', group)}",
        *_optimizer(case),
        *_accumulated(case, _no_sync(case)),
    ]


def _tp_fsdp(case: Case) -> list[str]:
    return [*_grid(case), *_sharded(case, 'mesh["dp"]')]


def _grid(case: Case) -> list[str]:
    return [_mesh(case, case.tp_size or case.world_size, "dp", "tp"), *_split(case, 'mesh["tp"]')]


def _split(case: Case, mesh: str) -> list[str]:
    """Tensor parallel by a plan of the user's own: which layers there are, only its model knows."""
    into, out = "ColwiseParallel()", "RowwiseParallel()"
    if case.sequence_parallel:
        into, out = "ColwiseParallel(input_layouts=Shard(1))", "RowwiseParallel(output_layouts=Shard(1))"
    lines = [
        "# plan: {name of a layer: its style}, of your own model: for what leads into a block's attention and MLP",
        f"# {into}, for what leads out of them {out}{', for its norms SequenceParallel()' * case.sequence_parallel}.",
    ]
    if case.split == "dimension":
        lines.append("plan[first] = RowwiseParallel(input_layouts=Shard(-1))  # the layer that takes split features")
    return [*lines, f"parallelize_module(model, {mesh}, plan)"]


def _mesh(case: Case, inside: int | None = None, *names: str) -> str:
    device = "device.type" if case.device == "auto" else f'"{case.device}"'
    if inside is None:
        return f"mesh = init_device_mesh({device}, ({case.world_size},))"
    called = ", ".join(f'"{name}"' for name in names)
    return f"mesh = init_device_mesh({device}, ({case.world_size // inside}, {inside}), mesh_dim_names=({called}))"


def _pp(case: Case) -> list[str]:
    return _pipeline(case, case.schedule, str(case.microbatches or "microbatches"))


def _layer_split(case: Case) -> list[str]:
    return _pipeline(case, "gpipe", "1")


def _pipeline(case: Case, schedule: str, microbatches: str) -> list[str]:
    ranks = case.world_size
    stages = ranks * (2 if schedule == "interleaved" else 1)
    run = f"PipelineStage(part, rank, {stages}, device)"
    what = f"part: your model's layers of stage rank, of {stages} as even as can be, the first with the embedding."
    if schedule == "interleaved":
        run = f"[PipelineStage(parts[i], i, {stages}, device) for i in (rank, rank + {ranks})]"
        what = f"parts: your model's layers as {stages} stages, as even as can be, the first with the embedding."
    return [
        f"# {what}",
        "# A weight that two stages share (a tied embedding) needs their gradients added up after each step.",
        f"schedule = {SCHEDULES[schedule]}({run}, {microbatches}, loss_fn=loss_of)",
        *_optimizer(case, "parts" if schedule == "interleaved" else "part"),
        "fed = [inputs] if rank == 0 else []",
        f"seen = targets if rank == {ranks - 1} else None",
        "schedule.step(*fed, target=seen)  # forward and backward",
    ]


def _deepspeed(case: Case) -> list[str]:
    return [
        "config = {",
        f'    "train_micro_batch_size_per_gpu": {case.global_batch // case.batch_parts},',
        f'    "gradient_accumulation_steps": {case.grad_accumulation},',
        f'    "zero_optimization": {{"stage": {case.strategy.removeprefix("deepspeed")}}},',
        '    "zero_allow_untested_optimizer": True,',
        "}",
        *_optimizer(case),
        "model, optimizer, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)",
        "# In the loop: model.backward(loss) and model.step().",
    ]


def _parameter_server(case: Case) -> list[str]:
    return [
        f"# No line does {case.strategy}: PyTorch has no parameter server of this kind. How it is done stands in",
        f"# parabench/strategies/{case.strategy}.py.",
    ]


def _local_only(case: Case) -> list[str]:
    return [
        "# No line: without exchanging gradients ranks train apart. It shows what communication could cost at most."
    ]


def _no_line(case: Case) -> list[str]:
    if case.strategy in STRATEGIES:
        module = STRATEGIES[case.strategy].target.partition(":")[0].replace(".", "/")
        return [f"# No line does {case.strategy}: how it is done stands in {module}.py."]
    return [f"# {case.strategy} is your own: it wraps the model as {case.strategy}(model, context) does."]


def _optimizer(case: Case, parameters: str = "model") -> list[str]:
    if case.fused == DEFAULTS["fused"]:
        return []
    return [f"optimizer = AdamW({parameters}.parameters(), lr=lr, fused={case.fused})  # and your own settings"]


def _accumulated(case: Case, reducing: tuple[str, ...] = ()) -> list[str]:
    """A rank's batch in parts, one after the other. `reducing` are lines that hold back what only the last part's
    backward needs to reduce; the last of them may open a block."""
    parts = case.grad_accumulation
    if parts == 1:
        return []
    held = reducing if case.no_sync else ()
    indent = "        " if held and held[-1].endswith(":") else "    "
    return [
        f"for i, (some, theirs) in enumerate(zip(inputs.chunk({parts}), targets.chunk({parts}))):",
        *(f"    {line}" for line in held),
        f"{indent}(loss_of(model(some), theirs) / {parts}).backward()",
    ]


def _no_sync(case: Case) -> tuple[str, ...]:
    # A static graph is learnt in the very first backward, which must reduce (strategies/data_parallel.py).
    first = " or step == i == 0" if case.static_graph else ""
    return (f"with nullcontext() if i == {case.grad_accumulation - 1}{first} else model.no_sync():",)


def _number(value: float) -> str:
    """10.0 as 10, and every other as it is."""
    return repr(int(value)) if value.is_integer() else repr(value)


LINES: dict[str, Callable[[Case], list[str]]] = {
    "single": _single,
    "dp": _dp,
    "ddp": _ddp,
    "zero1": _zero1,
    "zero2": _zero2,
    "fsdp": _fsdp,
    "hsdp": _hsdp,
    "tp": _tp,
    "tp_ddp": _tp_ddp,
    "tp_fsdp": _tp_fsdp,
    "pp": _pp,
    "layer_split": _layer_split,
    "parameter_server": _parameter_server,
    "parameter_server_async": _parameter_server,
    "local_only": _local_only,
    **{name: _deepspeed for name in STRATEGIES if name.startswith("deepspeed")},
}
