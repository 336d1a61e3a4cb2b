"""What the fork server imports once, so that a launch's ranks import nothing. It must not initialise CUDA.

Whatever a case can name is here, from the tables that name it. Some of torch is imported on first use (the optimizer
pulls in dynamo, DDP and DTensor their own parts); it is named here because each rank would otherwise pay for it again.
"""

# ruff: noqa: E402 - what takes long to import is imported once the driver's end ends this process
import gc
import importlib
import os

from parabench.signals import die_with_parent, outlive_parent

# Where the driver is killed in the seconds of these imports, the server would see it only after them.
die_with_parent(os.getppid())

import torch._dynamo
import torch.autograd.profiler
import torch.distributed._composable.replicate
import torch.distributed.elastic.multiprocessing.api
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

import parabench.cli
import parabench.data.loader
import parabench.launch.launcher
from parabench.collectives import ALGORITHMS
from parabench.launch import descendants
from parabench.models import MODELS
from parabench.probes import PROBES
from parabench.strategies import STRATEGIES
from parabench.workloads import WORKLOADS

__all__ = ["parabench", "torch"]

for table in (WORKLOADS, STRATEGIES, ALGORITHMS, MODELS, PROBES):
    for entry in table.values():
        # What needs a package that may not be installed is imported by the ranks that need it; what the backend does by
        # itself has no code here.
        if entry.target and not entry.package:
            importlib.import_module(entry.target.partition(":")[0])

# The first range imports more (torch 2.13), and every step of an optimizer is one.
with torch.autograd.profiler.record_function("preload"):
    pass

# Where the driver is killed, the server sees it and ends.
descendants.end_with_this_process()
outlive_parent()

# Collected and frozen here, these objects are never visited by a rank's collector, and their pages stay shared.
gc.collect()
gc.freeze()
