"""A loop of all-reduces as anybody writes it: no line of parabench.

    torchrun --nproc-per-node 2 benchmarks/bare_collective.py CALLS BYTES [BYTES ...]

Rank 0 prints, a line a size, its bytes and the seconds of one call: all calls between two readings of the clock, by
their number.
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def call_s(tensor: torch.Tensor, calls: int) -> float:
    """Seconds of a call: 5 that are not counted, then `calls` between two readings."""
    for _ in range(5):
        dist.all_reduce(tensor)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor)
    return (time.perf_counter() - begin) / calls


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    calls, *sizes = map(int, sys.argv[1:])
    for size in sizes:
        seconds = call_s(torch.ones(size // 4), calls)
        if dist.get_rank() == 0:
            print(size, seconds, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
