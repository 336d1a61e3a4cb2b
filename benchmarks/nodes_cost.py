"""What does a launch on two nodes cost beyond its steps? Beside torchrun, which does the same, in turns.

    python -m benchmarks.nodes_cost [PAIRS]

Nodes are network namespaces of this machine, two ranks each, so it needs root, `ip` and `tc`. A launch is the whole
thing, from node 0's order to the samples of all nodes. torchrun's time goes from the start of both its agents to the
end of both: it imports torch in agents and ranks, as parabench's fork server did once, before the first launch. The
time of the steps themselves is taken off both: that of the rank whose steps took longest. (The slowest rank's of every
step, as `launch_cost` has it, would add up to more than passed: ranks do not begin and end a step at one moment.)
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.hosts import Host, NoNodes, hosts
from benchmarks.nodes_cost_rank import CASE, NODES, RANKS_PER_NODE, busiest_s

GOAL_S = 1.0

# In a namespace of its own every port is free; the drivers keep theirs open all the time.
PORT, TORCHRUN_PORT = 29400, 29500
# Not `-m`: every rank would import that module again (multiprocessing does so for spawn's sake), as no session's does.
DRIVER = "import sys; from benchmarks.nodes_cost_driver import main; sys.exit(main())"
DEADLINE_S = 120.0
GOODBYE_S = 10.0

_serial = itertools.count()


class Failed(Exception):
    """A driver or a torchrun ended badly, or not in time."""


@contextmanager
def drivers(nodes: tuple[Host, ...], folder: Path) -> Iterator[Callable[[], float]]:
    """A driver on each node, all in one session: what lets it launch once, and tells the seconds beyond the steps.

    Raises Failed.
    """
    words = [sys.executable, "-c", DRIVER, nodes[0].address, str(PORT), str(folder)]
    started = []
    try:
        for node in nodes:
            with (folder / f"driver{node.number}.err").open("wb") as errors:
                started.append(
                    subprocess.Popen(
                        node.command(words),
                        env={**os.environ, "TMPDIR": str(folder)},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        start_new_session=True,
                        text=True,
                    )
                )
        first = started[0]
        hear(first, folder)

        def beyond_steps_s() -> float:
            assert first.stdin is not None
            with suppress(BrokenPipeError):  # why it is gone is heard next
                first.stdin.write("launch\n")
                first.stdin.flush()
            return float(hear(first, folder))

        yield beyond_steps_s
    finally:
        end(started)


def hear(driver: subprocess.Popen[str], folder: Path) -> str:
    assert driver.stdout is not None
    if line := driver.stdout.readline():
        return line
    said = "; ".join(last_line(path) for path in sorted(folder.glob("driver*.err")))
    raise Failed(f"the driver of node 0 ended with exit code {driver.wait()}: {said}")


def end(started: list[subprocess.Popen[str]]) -> None:
    """Close node 0's input, which ends the session; whoever does not go then is asked to, and at last killed."""
    if started and started[0].stdin is not None:
        with suppress(BrokenPipeError):
            started[0].stdin.close()
    for ask in (subprocess.Popen.terminate, subprocess.Popen.kill):
        for driver in started:
            try:
                driver.wait(GOODBYE_S)
            except subprocess.TimeoutExpired:
                ask(driver)
    for driver in started:
        with driver:
            pass  # it is gone: its pipes are closed


def torchrun_s(nodes: tuple[Host, ...], folder: Path, *words: str) -> float:
    """Seconds that torchrun of a script takes on all nodes. Raises Failed; what is left then goes with its host."""
    flags = ["--nnodes", str(NODES), "--nproc-per-node", str(RANKS_PER_NODE), "--rdzv-backend", "c10d"]
    flags += ["--rdzv-endpoint", f"{nodes[0].address}:{TORCHRUN_PORT}", "--rdzv-id", str(next(_serial))]
    agents = []
    begin = time.perf_counter()
    for node in nodes:
        # torchrun leaves its folders of logs behind.
        environment = {"GLOO_SOCKET_IFNAME": node.interface, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
        command = [sys.executable, "-m", "torch.distributed.run", *flags, "--local-addr", node.address, *words]
        with (folder / f"torchrun{node.number}.err").open("wb") as errors:
            agents.append(node.start(command, environment=environment, errors=errors))
    # A wait with a limit of its own looks only now and then.
    limit = threading.Timer(DEADLINE_S, kill, (agents,))
    limit.daemon = True
    limit.start()
    codes = [agent.wait() for agent in agents]
    took = time.perf_counter() - begin
    limit.cancel()
    if any(codes):
        said = "; ".join(last_line(path) for path in sorted(folder.glob("torchrun*.err")))
        raise Failed(f"torchrun's agents ended with the exit codes {codes} after {took:.0f} s: {said}")
    return took


def kill(agents: list[subprocess.Popen[str]]) -> None:
    for agent in agents:
        agent.kill()


def torchrun_beyond_steps_s(nodes: tuple[Host, ...], folder: Path) -> float:
    """As `torchrun_s`, of the same training, without its steps."""
    took = torchrun_s(nodes, folder, "-m", "benchmarks.nodes_cost_rank", str(folder))
    ranks: list[list[float]] = [json.loads((folder / str(rank)).read_text()) for rank in range(CASE.world_size)]
    return took - busiest_s(ranks)


def last_line(path: Path) -> str:
    said = path.read_text(errors="replace").strip().splitlines()
    return said[-1] if said else "it said nothing"


def measure(pairs: int) -> dict[str, list[float]]:
    """The seconds of each kind, in the order of the pairs. Raises NoNodes and Failed; nothing is left then."""
    seen: dict[str, list[float]] = {"launch": [], "torchrun": [], "empty": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, hosts(NODES) as nodes:
        folder = Path(name)
        script = folder / "empty.py"
        script.touch()
        with drivers(nodes, folder) as beyond_steps_s:
            kinds: dict[str, Callable[[], float]] = {
                "launch": beyond_steps_s,
                "torchrun": lambda: torchrun_beyond_steps_s(nodes, folder),
                "empty": lambda: torchrun_s(nodes, folder, str(script)),
            }
            for once in kinds.values():  # warms the file cache for all
                once()
            for pair in range(pairs):
                # None always comes behind the same one.
                for kind in [*kinds][:: 1 if pair % 2 else -1]:
                    seen[kind].append(kinds[kind]())
    return seen


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    # Whoever ends this process with a signal leaves no namespace behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        seen = measure(pairs)
    except NoNodes as why:
        print(why, file=sys.stderr)
        sys.exit(2)
    except Failed as why:
        print(why, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    ours, least, most = statistics.median(seen["launch"]), min(seen["launch"]), max(seen["launch"])
    ratio = statistics.median(o / t for o, t in zip(seen["launch"], seen["torchrun"], strict=True))
    print(f"torchrun of an empty script, 2 nodes of 2 ranks:   {statistics.median(seen['empty']):.2f} s")
    print(f"torchrun of the same training, beyond its steps:   {statistics.median(seen['torchrun']):.2f} s")
    print(f"parabench's launch on both nodes beyond its steps: {ours:.3f} s ({least:.3f} to {most:.3f})")
    print(f"ratio: {ratio:.3f} of torchrun, median of {pairs} interleaved pairs")
    print(f"goal: {GOAL_S:g} s or less beyond its steps: {'reached' if ours <= GOAL_S else 'missed'}")


if __name__ == "__main__":
    main()
