"""The code snippets for a user's script compile, and configure the same as the measured case."""

import ast
import builtins
import json
from pathlib import Path

import pytest

import snippet_helpers
from parabench.collectives import ALGORITHMS
from parabench.collectives.join import use
from parabench.collectives.nccl import nccl_environment
from parabench.errors import UsageError
from parabench.plan.case import MEANS, Case, fields_of
from parabench.strategies import OPTIONAL, STRATEGIES, entry_of
from parabench.strategies.snippet import snippet
from ranks_helpers import run_ranks


def code(**fields: object) -> str:
    return snippet(Case(**{"world_size": 4, "device": "cpu", "backend": "gloo"} | fields))  # type: ignore[arg-type]


# Each option off its default.
OPTIONS = {
    "bucket_mib": 10, "ranks_per_node": 2, "grad_accumulation": 4, "no_sync": False, "find_unused_parameters": True,
    "static_graph": True, "gradient_as_bucket_view": True, "tp_size": 2, "sequence_parallel": True,
    "schedule": "interleaved", "microbatches": 8, "algorithm": "tree",
}  # fmt: skip
EVERYWHERE = {
    "activation_checkpointing": True, "compile": True, "fused": False, "workers": 2, "pin_memory": True,
    "split": "sample", "precision": "bf16-mixed",
}  # fmt: skip


# Names of the user's script that the code uses.
GIVEN = {
    "model", "targets", "inputs", "blocks", "loss_of", "lr", "dataset", "plan", "data_rank", "part", "parts", "device",
    "microbatches", "rank",
}  # fmt: skip


def undefined(text: str) -> set[str]:
    """Return the names that code uses and neither defines nor imports."""
    nodes = [*ast.walk(ast.parse(text))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    made = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    made |= {
        alias.asname or alias.name.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {node.id for node in names} - made - {*dir(builtins)}


def test_options_cover_every_optional_axis() -> None:
    assert set(OPTIONS) == OPTIONAL, (
        f"tests/process/test_snippet.py: give OPTIONS a value of {sorted(OPTIONAL - {*OPTIONS})}"
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_snippet_of_every_strategy_and_option_compiles(strategy: str) -> None:
    size = 1 if entry_of(strategy).one_rank_only else 4
    plain = code(strategy=strategy, world_size=size)
    compile(plain, strategy, "exec")
    own = {name: value for name, value in OPTIONS.items() if name in entry_of(strategy).axes}
    everything = code(strategy=strategy, world_size=size, **own | EVERYWHERE)
    compile(everything, strategy, "exec")
    unknown = (undefined(plain) | undefined(everything)) - GIVEN
    assert not unknown, f"strategies/snippet.py: give IMPORTS the import of {sorted(unknown)}"
    told = [
        name
        for name in own
        if code(strategy=strategy, world_size=size, **{"grad_accumulation": 4} | {name: own[name]})
        != code(strategy=strategy, world_size=size, grad_accumulation=1 if name == "grad_accumulation" else 4)
    ]
    no_lines = strategy.startswith(("parameter_server", "local_only"))
    silent = [name for name in own if name not in told]
    assert no_lines or not silent, f"strategies/snippet.py: no line of CODE[{strategy!r}] tells of {silent}"
    assert not (no_lines and told)


@pytest.mark.parametrize("name", fields_of(MEANS))
def test_every_axis_that_every_strategy_has_is_in_the_code(name: str) -> None:
    assert name in EVERYWHERE, (
        f"tests/process/test_snippet.py: give EVERYWHERE a value of {name} that is not its default"
    )
    assert code(**{name: EVERYWHERE[name]}) != code(), f"strategies/snippet.py has no line for {name}"


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "two_level(ring,tree)", "direct:DIRECT"])
def test_every_algorithm_gives_code_that_compiles(algorithm: str) -> None:
    text = code(algorithm=algorithm)
    compile(text, algorithm, "exec")
    pinned = nccl_environment(algorithm)
    assert ("parabench" in text) == (algorithm != "native" and not pinned)
    for name, value in pinned.items():
        assert f'os.environ["{name}"] = "{value}"' in text


def test_the_lines_are_exactly_these() -> None:
    assert code(bucket_mib=10).splitlines()[-1] == "model = DistributedDataParallel(model, bucket_cap_mb=10)"
    assert code(bucket_mib=0.5).splitlines()[-1] == "model = DistributedDataParallel(model, bucket_cap_mb=0.5)"
    assert code(device="cuda", backend="nccl", algorithm="nccl:tree").splitlines() == [
        "import os",
        "from torch.nn.parallel import DistributedDataParallel",
        "",
        "# Before init_process_group, with NCCL 2.24 or newer:",
        'os.environ["NCCL_ALGO"] = "allreduce:tree"',
        "model = DistributedDataParallel(model, device_ids=[device])",
    ]
    assert 'use("two_level(ring,tree)", "gloo", ranks_per_node=2)' in code(
        algorithm="two_level(ring,tree)", ranks_per_node=2
    )
    assert 'init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))' in code(
        strategy="hsdp", ranks_per_node=2
    )
    assert "reshard_after_forward=True" in code(strategy="fsdp")
    assert "reshard_after_forward=False" in code(strategy="zero2")
    zero1 = code(strategy="zero1")
    assert 0 < zero1.index("optimizer = ZeroRedundancyOptimizer(") < zero1.index("model = DistributedDataParallel(")
    assert "No code" in code(strategy="local_only")
    assert "No code" in code(strategy="parameter_server")
    assert code(strategy="mine:ours").startswith("# mine:ours is a custom strategy")


@pytest.mark.parametrize("algorithm", ["native", "nccl:tree"])
def test_snippet_has_no_line_for_backend_defaults(algorithm: str) -> None:
    with pytest.raises(UsageError, match=f"{algorithm}.*use dist.init_process_group"):
        use(algorithm, "nccl")


def test_the_lines_do_what_the_case_measured(tmp_path: Path) -> None:
    run_ranks(snippet_helpers.scripts, tmp_path, size=2, folder=tmp_path)
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    expected = {
        "backend": "parabench", "algorithm": "ring", "bucket_cap_bytes": 3 << 19, "gradient_as_bucket_view": True,
        "reduced_once": True, "alike": True,
        "own_states": 4, "updated_alike": True,
        "shard": [256, 512], "units": 2, "gradient_is_sharded": True,
        "part": [256, 512], "computes_the_same": True,
        "stage_gradient": True,
    }  # fmt: skip
    assert seen == [expected, expected]
