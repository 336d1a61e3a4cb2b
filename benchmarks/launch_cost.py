"""Compare a launch, without its steps, with `torchrun` of an empty script.

    python -m benchmarks.launch_cost [PAIRS]
    python -m benchmarks.launch_cost nodes [LAUNCHES]

A launch includes fresh ranks, the process group, gpt-nano, DDP, the optimizer, the data, the steps, and the transfer of
the samples. The time of the steps themselves (the slowest rank's, every step) is subtracted. On one node, launches of
two ranks are interleaved with `torchrun`. `nodes` uses two network namespaces with two ranks each (root, `ip`, `tc`).

Every rank imports this module, so it must not import slow modules.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.hosts import Host, NoNodes, hosts, rendezvous, run
from parabench.launch.launcher import launch
from parabench.launch.processes import start_server
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Launch, Status

RANKS = 2
CASE = Case(strategy="ddp", world_size=RANKS, device="cpu", backend="gloo", seq_len=32)
PROTOCOL = Protocol(warmup=5, steps=20)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
SUITE = '''"""How long does a launch take?"""
from parabench import Protocol, sweep
CASES = sweep(strategy="ddp", world_size={ranks}, seq_len=32, device="cpu")
PROTOCOL = Protocol(warmup=5, steps=20, rounds=0, instrumented=0, launches={launches})
'''


def torchrun_s(script: Path) -> float:
    begin = time.perf_counter()
    words = [*TORCHRUN, "--nproc-per-node", str(RANKS), str(script)]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def launched(case: Case, protocol: Protocol) -> Launch:
    """Launch a case once. Raises RuntimeError if the launch fails."""
    done = launch(LaunchSpec.of(case, protocol, deadline_s=120.0))
    if done.status is not Status.OK:
        raise RuntimeError(f"{case.label}: {done.status}: {done.failure}")
    return done


def beyond_steps_s() -> float:
    done = launched(CASE, PROTOCOL)
    return done.wall_s - sum(done.step_times())


def beyond_steps_on_nodes_s(nodes: tuple[Host, ...], folder: Path, launches: int) -> list[float]:
    """Return the seconds of each launch of a session, without its steps."""
    from parabench.store.results import load  # it imports pandas, which no rank needs

    suite = folder / "suite.py"
    suite.write_text(SUITE.format(ranks=len(nodes) * RANKS, launches=launches))
    run(nodes, [sys.executable, "-m", "parabench", "run", str(suite), "--out", str(folder), *rendezvous(nodes, RANKS)],
        folder)  # fmt: skip
    results = load(folder / "results.db")
    rows = results.sample[results.sample["metric"] == "step_s"]
    busiest = rows.groupby(["launch_id", "rank"])["value"].sum().groupby("launch_id").max()
    launches_s = results.launch[results.launch["repetition"] >= 0].set_index("id")["wall_s"]
    return list((launches_s - busiest).dropna())


def main(number: int = 10, *, two_nodes: bool = False) -> None:
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "empty.py"
        script.touch()
        if two_nodes:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
            with hosts(2) as nodes:
                words = [*TORCHRUN, *rendezvous(nodes, RANKS), "--rdzv-backend", "c10d"]
                # Until the agents of all nodes have ended; each has a separate rendezvous.
                _, *bare = (run(nodes, [*words, "--rdzv-id", str(n), str(script)], script.parent) for n in range(4))
                ours = beyond_steps_on_nodes_s(nodes, script.parent, number)
        else:
            start_server()
            torchrun_s(script)  # warms the file cache for both
            bare, ours = zip(*((torchrun_s(script), beyond_steps_s()) for _ in range(number)), strict=True)
    torchrun, launch = statistics.median(bare), statistics.median(ours)
    print(f"torchrun of an empty script:        {torchrun:.2f} s")
    print(f"parabench launch without its steps: {launch:.3f} s ({min(ours):.3f} to {max(ours):.3f})")
    print(f"ratio: {launch / torchrun:.3f}")


if __name__ == "__main__":
    two_nodes, numbers = sys.argv[1:2] == ["nodes"], [int(word) for word in sys.argv[1:] if word != "nodes"]
    try:
        main(*numbers, two_nodes=two_nodes)
    except NoNodes as why:
        print(why, file=sys.stderr)
        sys.exit(2)
