"""Compare a launch on two nodes, without its steps, with torchrun of an empty script on both nodes.

    python -m benchmarks.nodes_cost [LAUNCHES]

Nodes are network namespaces of this machine, with two ranks each (root, `ip`, `tc`). The time of a launch goes from
node 0's order to the samples of all nodes, minus the steps of the rank whose steps took longest. torchrun's time goes
from the start of its agents to the end of both.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.hosts import Host, NoNodes, hosts, rendezvous, run
from parabench.store.results import load

NODES, PER_NODE = 2, 2
SUITE = '''"""How long does a launch take?"""
from parabench import Protocol, sweep
CASES = sweep(strategy="ddp", world_size={ranks}, seq_len=32, device="cpu")
PROTOCOL = Protocol(warmup=5, steps=20, rounds=0, instrumented=0, launches={launches})
'''


def beyond_steps_s(nodes: tuple[Host, ...], folder: Path, launches: int) -> list[float]:
    """Return the seconds of each launch of a session, without its steps."""
    suite = folder / "suite.py"
    suite.write_text(SUITE.format(ranks=NODES * PER_NODE, launches=launches))
    words = [sys.executable, "-m", "parabench", "run", str(suite), "--out", str(folder)]
    run(nodes, words + rendezvous(nodes, PER_NODE), folder)
    results = load(folder / "results.db")
    rows = results.sample[results.sample["metric"] == "step_s"]
    busiest = rows.groupby(["launch_id", "rank"])["value"].sum().groupby("launch_id").max()
    launched = results.launch[results.launch["block"] >= 0].set_index("id")
    return list((launched["wall_s"] - busiest).dropna())


def torchrun_s(nodes: tuple[Host, ...], folder: Path, serial: int) -> float:
    """Return the seconds of torchrun of an empty script; each call has a separate rendezvous."""
    script = folder / "empty.py"
    script.touch()
    words = [sys.executable, "-m", "torch.distributed.run", *rendezvous(nodes, PER_NODE)]
    return run(nodes, [*words, "--rdzv-backend", "c10d", "--rdzv-id", str(serial), str(script)], folder)


def main(launches: int = 10) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    with tempfile.TemporaryDirectory() as name, hosts(NODES) as nodes:
        folder = Path(name)
        _, *empty = (torchrun_s(nodes, folder, serial) for serial in range(4))  # the first one fills the file cache
        ours = beyond_steps_s(nodes, folder, launches)
    median = statistics.median(ours)
    print(f"torchrun of an empty script, 2 nodes of 2 ranks:  {statistics.median(empty):.2f} s")
    print(f"a launch of parabench on both, without its steps: {median:.3f} s ({min(ours):.3f} to {max(ours):.3f})")


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:]))
    except NoNodes as why:
        print(why, file=sys.stderr)
        sys.exit(2)
