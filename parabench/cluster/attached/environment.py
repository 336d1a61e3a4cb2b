"""Which rank of which group of processes this one is, as who started it says in the environment. Free of torch.

torch's own `env://` knows the names that torchrun sets, and no other launcher's.
"""

# Where each name is from:
# - RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT: torchrun; Ray Train sets them too.
#   Kubeflow gives a pod RANK and WORLD_SIZE of its own, which count nodes: there is no LOCAL_RANK then.
# - OMPI_COMM_WORLD_*: Open MPI, "Environment variables set for MPI applications". Its job's name is PMIX_NAMESPACE.
# - PMI_RANK, PMI_SIZE: Hydra, the mpiexec of MPICH and Intel MPI, with MPI_LOCALRANKID and MPI_LOCALNRANKS; Cray's PALS
#   has PMI_LOCAL_RANK and PMI_LOCAL_SIZE.
# - SLURM_STEP_* exist only in what srun starts, as slurm.py says. PMIX_RANK alone is of no use: no size goes with it.

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from parabench.cluster.slurm import FIRST_PORT, PORTS, first_host
from parabench.errors import UsageError

LOOPBACK = "127.0.0.1"

# torch.distributed's own.
PORT = 29500

# Who may have started the group, in the order in which they count: torchrun may have been started by mpirun, and mpirun
# within a Slurm job, never the other way round. Each with the names of rank, size, local rank and local size.
NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "PALS' mpiexec": ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
}

# What names a job, so that two on one host do not meet.
JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PALS_APID", "SLURM_JOB_ID")

NOBODY = (
    "no group of processes is here: neither RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE are set, nor what mpirun "
    "or srun sets; start it as torchrun --nproc-per-node 2 -m parabench worker SUITE, or mpirun -np 2 parabench worker "
    "SUITE"
)


class WrongRank(UsageError):
    """What is wrong with one rank and perhaps with no other: it says so itself, for rank 0 would wait unknowing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnvironment:
    """Process `rank` of `size`, of which every host has `local_size` in a row: this is number `local_rank` of its own.

    They meet at `address`:`port`. `agents` says that torchrun already keeps a store there; else rank 0 does. `name`
    tells this start of this group from others that may meet at the same place.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    agents: bool = False
    name: str = "none"

    @property
    def nodes(self) -> int:
        return self.size // self.local_size

    @property
    def node(self) -> int:
        return self.rank // self.local_size

    def announce(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Set what torchrun would have: strategies of the user's own, and devices, go by it."""
        environ.update(
            RANK=str(self.rank),
            WORLD_SIZE=str(self.size),
            LOCAL_RANK=str(self.local_rank),
            LOCAL_WORLD_SIZE=str(self.local_size),
            MASTER_ADDR=self.address,
            MASTER_PORT=str(self.port),
        )


def group_of(environ: Mapping[str, str]) -> ProcessEnvironment:
    """The group that the environment tells of. Raises UsageError when there is none, or one that cannot be used."""
    by, (rank, size, local_rank, local_size) = _numbers(environ)
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        raise WrongRank(
            f"{by} says that this is rank {rank} of {size}, on its host {local_rank} of {local_size}: ranks count from "
            "0, and a host has no more of them than all have; let torchrun, mpirun or srun set them"
        )
    if size % local_size or local_rank != rank % local_size:
        raise WrongRank(
            f"rank {rank} of {size} is number {local_rank} of {local_size} on its host: every host must have as many "
            "ranks, and those in a row; use mpirun --map-by slot, or srun --distribution=block"
        )
    agents = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address = _address(environ, alone=size == local_size, agents=agents)
    start = (environ.get(name, "none") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"))
    return ProcessEnvironment(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        address=address,
        port=_port(environ),
        agents=agents,
        name="/".join(start),
    )


def speaks(environ: Mapping[str, str], error: UsageError) -> bool:
    """Whether this process says what was wrong before the group met, and not another one that finds the same: the first
    of a host does, since a file or a variable may be missing there alone, and whoever has no number."""
    if isinstance(error, WrongRank):
        return True
    try:
        return _numbers(environ)[1][2] == 0
    except UsageError:
        return True


def _numbers(environ: Mapping[str, str]) -> tuple[str, tuple[int, int, int, int]]:
    """Who started the group, and rank, size, local rank and local size."""
    for by, names in NAMES.items():
        if all(name in environ for name in names):
            rank, size, local_rank, local_size = (_number(environ, name) for name in names)
            return by, (rank, size, local_rank, local_size)
    if "SLURM_STEP_NUM_TASKS" in environ:
        size, nodes = _number(environ, "SLURM_STEP_NUM_TASKS"), _number(environ, "SLURM_STEP_NUM_NODES")
        rank, local_rank = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_LOCALID")
        return "srun", (rank, size, local_rank, max(1, size // max(1, nodes)))
    raise UsageError(NOBODY)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{name} is {text!r}, which is not a number; the launcher of the processes sets it")
    return int(text)


def _address(environ: Mapping[str, str], *, alone: bool, agents: bool) -> str:
    """Where the ranks meet. On one host that is loopback, whatever MASTER_ADDR says: nobody else is to reach it."""
    given = environ.get("MASTER_ADDR")
    if alone and not agents:
        return LOOPBACK
    if given:
        return given.strip("[]")
    if "SLURM_STEP_NODELIST" in environ:
        return first_host(environ["SLURM_STEP_NODELIST"])
    raise UsageError(
        "MASTER_ADDR is not set, and the ranks are on several hosts; give rank 0's host to all of them, as in "
        "mpirun -x MASTER_ADDR=host0 ..., or mpiexec -genv MASTER_ADDR host0 ..."
    )


def _port(environ: Mapping[str, str]) -> int:
    """MASTER_PORT; else one that the job's name decides, so that two jobs of one host need not fight for it."""
    if "MASTER_PORT" in environ:
        port = _number(environ, "MASTER_PORT")
        if not 0 < port < 1 << 16:
            raise UsageError(f"MASTER_PORT is {port}, which is not a port; give one from 1 to 65535")
        return port
    job = next((environ[name] for name in JOBS if name in environ), None)
    return PORT if job is None else FIRST_PORT + zlib.crc32(job.encode()) % PORTS
