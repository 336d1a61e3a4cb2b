"""The code that applies a configuration in a user's training script."""

from __future__ import annotations

import re
from collections.abc import Callable

from parabench.collectives.nccl import is_nccls, nccl_environment
from parabench.machine import accelerator
from parabench.models import MODELS
from parabench.plan.case import DEFAULTS, Case
from parabench.plan.fields import number
from parabench.strategies import STRATEGIES, entry_of

# A remark about a variable of the script.
BLOCKS = "blocks: your model's repeated layers"
SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B"}

# {name: its import}. Lines may have further imports.
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
    own = [f"# {case.strategy} is a custom strategy: wrap the model as {case.strategy}(model, context) does."]
    strategy = CODE[case.strategy](case) if case.strategy in STRATEGIES else own
    lines = [*_algorithm(case), *_blocks(case), *strategy, *_data(case)]
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


def _blocks(case: Case) -> list[str]:
    """Return the lines that change each block, before the model is made parallel."""
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


def _ddp(case: Case, model: str = "model", *more: str) -> str:
    options = [model]
    options += ["device_ids=[device]"] if case.device == accelerator.TYPE else []
    options += [] if case.bucket_cap is None else [f"bucket_cap_mb={number(case.bucket_cap)}"]
    options += [f"bucket_cap_mb_list=[{', '.join(map(number, case.bucket_caps))}]"] if case.bucket_caps else []
    flags = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
    options += [f"{flag}=True" for flag in flags if getattr(case, flag)]
    return f"model = DistributedDataParallel({', '.join([*options, *more])})"


def _no_sync(case: Case) -> str:
    # A static graph is learned in the first backward, which must reduce (strategies/data_parallel.py).
    first = " or step == i == 0" if case.static_graph else ""
    return f"with nullcontext() if i == {case.grad_accumulation - 1}{first} else model.no_sync():"


def _zero1(case: Case) -> list[str]:
    name, fused, remark = "AdamW", f" fused={case.fused},", "and your own settings"
    if case.model not in MODELS:  # a custom model may have another optimizer
        name, fused, remark = "Optimizer", "", "Optimizer: the class of your optimizer, with its settings"
    return [
        "# Create it before DDP, because it moves the parameters.",
        "optimizer = ZeroRedundancyOptimizer(",
        "    [parameter for parameter in model.parameters() if parameter.requires_grad],",
        f"    {name}, parameters_as_bucket_view=True,{fused} lr=lr,",
        f")  # {remark}",
        _ddp(case),
        *_backward(case, _no_sync(case)),
    ]


def _mesh(case: Case, inside: int | None = None, *names: str) -> str:
    """Return the line for a mesh of all ranks or, with `names`, of groups of `inside` ranks."""
    device = "device.type" if case.device == "auto" else f'"{case.device}"'
    if not names:
        return f"mesh = init_device_mesh({device}, ({case.world_size},))"
    inside = inside or case.world_size
    called = ", ".join(f'"{name}"' for name in names)
    return f"mesh = init_device_mesh({device}, ({case.world_size // inside}, {inside}), mesh_dim_names=({called}))"


def _sharded(case: Case, mesh: str = "mesh") -> list[str]:
    reshard = case.strategy != "zero2"
    units = "blocks" if case.bucket_cap is None else f"group_blocks(blocks, {number(case.bucket_cap)})"
    policy, options = [], f"mesh={mesh}"
    if narrow := case.arithmetic.autocast:
        policy = [f"policy = MixedPrecisionPolicy(param_dtype=torch.{narrow}, reduce_dtype=torch.float32)"]
        options += ", mp_policy=policy"
    return [
        *policy,
        f"for unit in {units}:  # {BLOCKS}",
        f"    fully_shard(unit, {options}, reshard_after_forward={reshard})",
        f"fully_shard(model, {options}{'' if reshard else ', reshard_after_forward=False'})",
        *_step(case, f"model.set_requires_gradient_sync(i == {case.grad_accumulation - 1})"),
    ]


def _split_layers(case: Case, mesh: str = "mesh") -> list[str]:
    """Return the lines for tensor parallel with a plan of the user."""
    into, out = "ColwiseParallel()", "RowwiseParallel()"
    if case.sequence_parallel:
        into, out = "ColwiseParallel(input_layouts=Shard(1))", "RowwiseParallel(output_layouts=Shard(1))"
    lines = [
        f"# plan: {{name of a layer: its style}} of your model. For layers into a block's attention and MLP: {into};",
        f"# for layers out of them: {out}{'; for norms: SequenceParallel()' * case.sequence_parallel}.",
    ]
    if case.split == "dimension":
        lines.append("plan[first] = RowwiseParallel(input_layouts=Shard(-1))  # the layer that takes split features")
    return [*lines, f"parallelize_module(model, {mesh}, plan)"]


def _pipeline(case: Case) -> list[str]:
    schedule, microbatches = case.schedule, str(case.microbatches or "microbatches")
    if case.strategy == "layer_split":
        schedule, microbatches = "gpipe", "1"
    ranks = case.world_size
    stages = ranks * (2 if schedule == "interleaved" else 1)
    part, run = "part", f"PipelineStage(part, rank, {stages}, device)"
    what = f"part: your model's layers in stage `rank` of {stages} equal stages. The first also has the embedding."
    if schedule == "interleaved":
        part, run = "parts", f"[PipelineStage(parts[i], i, {stages}, device) for i in (rank, rank + {ranks})]"
        what = f"parts: your model's layers in {stages} equal stages. The first also has the embedding."
    return [
        f"# {what}",
        "# If two stages share a weight (a tied embedding), add their gradients after each step.",
        f"schedule = {SCHEDULES[schedule]}({run}, {microbatches}, loss_fn=loss_of)",
        *_optimizer(case, part),
        "fed = [inputs] if rank == 0 else []",
        f"seen = targets if rank == {ranks - 1} else None",
        "schedule.step(*fed, target=seen)  # forward and backward",
    ]


def _deepspeed(case: Case) -> list[str]:
    return [
        "import deepspeed",
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


def _no_server(case: Case) -> list[str]:
    return [
        f"# No code: PyTorch has no parameter server of this kind. {case.strategy} is in",
        f"# parabench/strategies/{case.strategy}.py.",
    ]


def _optimizer(case: Case, parameters: str = "model") -> list[str]:
    if case.fused == DEFAULTS["fused"] or case.model not in MODELS:
        return []
    return [f"optimizer = AdamW({parameters}.parameters(), lr=lr, fused={case.fused})  # and your own settings"]


def _backward(case: Case, reducing: str = "") -> list[str]:
    """Return the lines for forward and backward of a rank's batch in parts; none for one part.

    `reducing` is a line that lets only the last part's backward reduce. It may open a block.
    """
    parts = case.grad_accumulation
    if parts == 1:
        return []
    held = reducing if case.no_sync else ""
    indent = "        " if held.endswith(":") else "    "
    return [
        f"for i, (some, theirs) in enumerate(zip(inputs.chunk({parts}), targets.chunk({parts}))):",
        *([f"    {held}"] if held else []),
        f"{indent}(loss_of(model(some), theirs) / {parts}).backward()",
    ]


def _step(case: Case, reducing: str = "") -> list[str]:
    return [*_optimizer(case), *_backward(case, reducing)]


# {strategy: its lines}.
CODE: dict[str, Callable[[Case], list[str]]] = {
    "single": lambda case: ["# One device: the model as it is.", *_step(case)],
    "dp": lambda case: [
        f"model = DataParallel(model, device_ids=list(range({case.world_size})))",
        *_step(case),
    ],
    "ddp": lambda case: [_ddp(case), *_step(case, _no_sync(case))],
    "zero1": _zero1,
    "zero2": lambda case: [_mesh(case), *_sharded(case)],
    "fsdp": lambda case: [_mesh(case), *_sharded(case)],
    "hsdp": lambda case: [_mesh(case, case.ranks_per_node, "replicate", "shard"), *_sharded(case)],
    "tp": lambda case: [_mesh(case), *_split_layers(case), *_step(case)],
    "tp_ddp": lambda case: [
        _mesh(case, case.tp_size, "dp", "tp"),
        *_split_layers(case, 'mesh["tp"]'),
        "# DDP supports only plain tensors, so it gets each rank's parts of the layers.",
        _ddp(case, "Parts(model)", 'process_group=mesh.get_group("dp")'),
        *_step(case, _no_sync(case)),
    ],
    "tp_fsdp": lambda case: [
        _mesh(case, case.tp_size, "dp", "tp"),
        *_split_layers(case, 'mesh["tp"]'),
        *_sharded(case, 'mesh["dp"]'),
    ],
    "pp": _pipeline,
    "layer_split": _pipeline,
    "parameter_server": _no_server,
    "parameter_server_async": _no_server,
    "local_only": lambda case: [
        "# No code: without exchanging gradients, ranks train separately. It shows what communication could cost at "
        "most.",
    ],
    **dict.fromkeys(("deepspeed1", "deepspeed2", "deepspeed3"), _deepspeed),
}
