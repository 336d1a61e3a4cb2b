"""What the fork server imports once, so that a launch's ranks import nothing. It must not initialise CUDA.

Some of torch is imported on first use (the optimizer pulls in dynamo, DDP and DTensor their own parts); it is
named here because each rank would otherwise pay for it again.
"""

import gc

import torch._dynamo
import torch.autograd.profiler
import torch.distributed._composable.replicate
import torch.distributed.elastic.multiprocessing.api
import torch.distributed.fsdp
import torch.distributed.optim
import torch.distributed.tensor.parallel

import parabench.cli
import parabench.collectives.halving_doubling
import parabench.collectives.parameter_server
import parabench.collectives.ring
import parabench.collectives.tree
import parabench.collectives.two_level
import parabench.data.loader
import parabench.launch.launcher
import parabench.models.base
import parabench.models.build
import parabench.models.gpt
import parabench.models.small
import parabench.probes.communication
import parabench.probes.flops
import parabench.probes.memory
import parabench.probes.nccl
import parabench.probes.profiler
import parabench.probes.replicas
import parabench.strategies.data_parallel
import parabench.strategies.fsdp
import parabench.strategies.parameter_server
import parabench.strategies.parameter_server_async
import parabench.strategies.pipeline
import parabench.strategies.tensor_parallel
import parabench.workloads.collectives
import parabench.workloads.links
import parabench.workloads.training

__all__ = ["parabench", "torch"]

# The first range imports more (torch 2.13), and every step of an optimizer is one.
with torch.autograd.profiler.record_function("preload"):
    pass

# Collected and frozen here, these objects are never visited by a rank's collector, and their pages stay shared.
gc.collect()
gc.freeze()
