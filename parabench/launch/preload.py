"""Import once, in the fork server, all modules that ranks need. It must not initialize CUDA.

The tables name the modules of all cases. Some parts of torch are imported on first use, such as dynamo by the
optimizer. They are named here, because each rank would import them again.
"""

# ruff: noqa: E402 - slow imports come after the call that ends this process with the driver
import atexit
import gc
import importlib
import os
import warnings

from parabench.signals import adopt_orphans, die_with_parent, outlive_parent

# Without this, the server would detect the end of its driver only after these imports.
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
from parabench.launch.processes import end_descendants
from parabench.models import MODELS
from parabench.probes import PROBES
from parabench.strategies import STRATEGIES
from parabench.workloads import WORKLOADS

__all__ = ["parabench", "torch"]

for table in (WORKLOADS, STRATEGIES, ALGORITHMS, MODELS, PROBES):
    for entry in table.values():
        # Ranks import modules that need another package. Algorithms of the backend have no module.
        if entry.target and not entry.package:
            importlib.import_module(entry.target.partition(":")[0])

# The first range imports more (torch 2.13), and every step of an optimizer is one.
with torch.autograd.profiler.record_function("preload"):
    pass

# If the driver is killed, the server ends, and with it all processes that ranks leave behind.
adopt_orphans()
# The fork server warns when a process ends that it has not forked itself.
warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
SERVER = os.getpid()
atexit.register(lambda: end_descendants(gone_s=0.0) if os.getpid() == SERVER else None)
outlive_parent()

# Collected and frozen here, these objects are never visited by a rank's collector, and their pages stay shared.
gc.collect()
gc.freeze()
