"""What does a launch on two nodes cost beyond its steps? Compare it with torchrun of an empty script on both nodes.

    python -m benchmarks.nodes_cost [LAUNCHES]

Nodes are network namespaces of this machine, two ranks each, so it needs root, `ip` and `tc`. A launch is the whole
thing, from node 0's order to the samples of all nodes. The time of the steps is subtracted: that of the rank whose
steps took longest. torchrun's time goes from the start of both its agents to the end of both.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.hosts import Host, NoNodes, hosts
from parabench.store.results import load

NODES, RANKS_PER_NODE = 2, 2
# In a namespace every port is free.
PORT, TORCHRUN_PORT = 29400, 29500
ADDRESS = "ADDRESS"
DEADLINE_S = 600.0
SUITE = '''"""How long does a launch take?"""
from parabench import Protocol, sweep
CASES = sweep(strategy="ddp", world_size={ranks}, seq_len=32, device="cpu")
PROTOCOL = Protocol(warmup=5, steps=20, rounds=0, instrumented=0, launches={launches})
'''


def run(nodes: tuple[Host, ...], words: list[str], folder: Path) -> float:
    """Run a command on all nodes; return the seconds until all have ended. Raises RuntimeError if one fails.

    A word ADDRESS becomes the node's address.
    """
    environment = {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder), "PYTHONPATH": os.getcwd()}
    begin = time.perf_counter()
    with (folder / "output").open("w+") as output:
        started = [
            node.start(
                [node.address if word == ADDRESS else word for word in words],
                environment=environment | {"GLOO_SOCKET_IFNAME": node.interface},
                folder=folder,
                output=output,
                errors=subprocess.STDOUT,
            )
            for node in nodes
        ]
        codes = [process.wait(DEADLINE_S) for process in started]
        took = time.perf_counter() - begin
        if any(codes):
            output.seek(0)
            raise RuntimeError(f"{words} ended with {codes}: {output.read()[-2000:]}")
    return took


def beyond_steps_s(nodes: tuple[Host, ...], folder: Path, launches: int) -> list[float]:
    """Return the seconds of each launch of a session without those of its steps."""
    suite = folder / "suite.py"
    suite.write_text(SUITE.format(ranks=NODES * RANKS_PER_NODE, launches=launches))
    words = [sys.executable, "-m", "parabench", "run", str(suite), "--out", str(folder), "--nnodes", str(NODES)]
    words += ["--local-addr", ADDRESS]
    words += ["--nproc-per-node", str(RANKS_PER_NODE), "--rdzv-endpoint", f"{nodes[0].address}:{PORT}"]
    run(nodes, words, folder)
    results = load(folder / "results.db")
    rows = results.sample[results.sample["metric"] == "step_s"]
    busiest = rows.groupby(["launch_id", "rank"])["value"].sum().groupby("launch_id").max()
    launched = results.launch[results.launch["block"] >= 0].set_index("id")
    return list((launched["wall_s"] - busiest).dropna())


def main(launches: int = 10) -> None:
    # A process that is ended by a signal leaves no namespace behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as name, hosts(NODES) as nodes:
        folder, serial = Path(name), itertools.count()
        script = folder / "empty.py"
        script.touch()

        def torchrun_s() -> float:
            words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NODES), "--rdzv-backend", "c10d"]
            words += ["--nproc-per-node", str(RANKS_PER_NODE), "--rdzv-id", str(next(serial))]
            words += ["--rdzv-endpoint", f"{nodes[0].address}:{TORCHRUN_PORT}"]
            return run(nodes, [*words, "--local-addr", ADDRESS, str(script)], folder)

        torchrun_s()  # warms the file cache
        empty = [torchrun_s() for _ in range(3)]
        ours = beyond_steps_s(nodes, folder, launches)
    median = statistics.median(ours)
    print(f"torchrun of an empty script, 2 nodes of 2 ranks:   {statistics.median(empty):.2f} s")
    print(f"parabench's launch on both nodes beyond its steps: {median:.3f} s ({min(ours):.3f} to {max(ours):.3f})")


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:]))
    except NoNodes as why:
        print(why, file=sys.stderr)
        sys.exit(2)
