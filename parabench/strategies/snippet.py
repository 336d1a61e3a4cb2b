"""A configuration as code: the lines that give a training script of one's own what a case measured."""

from __future__ import annotations

import re

from parabench.collectives.nccl import is_nccls, nccl_environment
from parabench.plan.case import DEFAULTS, Case
from parabench.strategies import entry_of
from parabench.strategies.snippet_lines import BLOCKS, LINES, users_own

# Where a name that a line uses comes from.
IMPORTS = {
    "AdamW": "from torch.optim import AdamW",
    "DataLoader": "from torch.utils.data import DataLoader",
    "DataParallel": "from torch.nn import DataParallel",
    "DistributedDataParallel": "from torch.nn.parallel import DistributedDataParallel",
    "DistributedSampler": "from torch.utils.data import DistributedSampler",
    "MixedPrecisionPolicy": "from torch.distributed.fsdp import MixedPrecisionPolicy",
    "Parts": "from parabench.strategies.tp_ddp import Parts",
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
    code = [*_algorithm(case), *_means(case), *LINES.get(case.strategy, users_own)(case), *_data(case)]
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
        backend = '"nccl" if torch.cuda.is_available() else "gloo"'
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
