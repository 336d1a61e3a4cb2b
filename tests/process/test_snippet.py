"""The code snippets for a user's script compile, and configure the same as the measured case."""

import ast
import builtins
import gc
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from parabench.collectives import ALGORITHMS, join
from parabench.collectives.join import use
from parabench.collectives.nccl import nccl_environment
from parabench.errors import UsageError
from parabench.plan.case import MEANS, Case, fields_of
from parabench.strategies import OPTIONAL, STRATEGIES, entry_of
from parabench.strategies.snippet import snippet
from ranks_helpers import run_ranks, start_rank
from rounding_helpers import FLOAT64_BOUND


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


# -- the code as a part of a user's script, in two ranks

WIDTH = 512  # a layer's weight is 1 MiB
ALIKE: dict[str, Any] = {"device": "cpu", "backend": "gloo", "world_size": 2, "algorithm": "ring"}
DDP = Case(strategy="ddp", bucket_mib=1.5, gradient_as_bucket_view=True, grad_accumulation=2, **ALIKE)
ZERO1 = Case(strategy="zero1", **ALIKE)
FSDP = Case(strategy="fsdp", bucket_mib=2.5, grad_accumulation=2, **ALIKE)
GRID = Case(strategy="tp_ddp", tp_size=2, **ALIKE)
PIPELINE = Case(strategy="pp", microbatches=2, **ALIKE)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(x)))
        return out


def script(case: Case, rank: int, *, joins: bool = False) -> dict[str, Any]:
    """Return the names of a user's script after it has run the case's lines. Only the first one joins the group."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    names: dict[str, Any] = {
        "model": model,
        "blocks": list(model),
        "rank": rank,
        "device": torch.device("cpu"),
        "lr": 0.1,
        "plan": {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()},
        "part": model[rank],
        "inputs": torch.ones(4, WIDTH),
        "targets": torch.zeros(4, WIDTH),
        "loss_of": nn.functional.mse_loss,
    }
    lines = snippet(case).splitlines()
    if not joins:
        lines = [line for line in lines if not line.startswith(("use(", "dist.init_process_group("))]
    exec(compile("\n".join(lines), "snippet", "exec"), names)
    return names


def scripts(folder: Path) -> None:
    """Run all scripts in one group, which the lines of the first one create, and write their results."""
    rank = start_rank()
    # A script has an address from torchrun; here ranks meet through a file.
    dist.init_process_group = partial(
        dist.init_process_group, init_method=f"file://{folder / 'store'}", rank=rank, world_size=2
    )
    seen = [ddp(rank), zero1(rank), fsdp(rank), grid(rank), pipeline(rank)]
    gc.collect()
    join.leave()
    (folder / f"rank{rank}.json").write_text(json.dumps({k: v for each in seen for k, v in each.items()}))


def ddp(rank: int) -> dict[str, Any]:
    model = script(DDP, rank, joins=True)["model"]  # whose lines took a first, accumulated step
    calls = join.calls()["all_reduce"]
    logged = model._get_ddp_logging_data()
    return {
        "backend": dist.get_backend(),
        "algorithm": calls["algorithm"],
        "bucket_cap_bytes": logged["bucket_cap_bytes"],
        "gradient_as_bucket_view": bool(logged["gradient_as_bucket_view"]),
        "reduced_once": calls["calls"] <= len(logged["bucket_sizes"].split(",")) + 1,
        "alike": alike(next(model.parameters()).grad),
    }


def zero1(rank: int) -> dict[str, Any]:
    names = script(ZERO1, rank)
    model, optimizer = names["model"], names["optimizer"]
    model(torch.full((4, WIDTH), rank + 1.0)).sum().backward()
    optimizer.step()
    return {"own_states": len(optimizer.optim.state), "updated_alike": alike(next(model.parameters()).detach())}


def fsdp(rank: int) -> dict[str, Any]:
    model = script(FSDP, rank)["model"]
    weight = model[0].up.weight
    assert isinstance(weight, DTensor)
    return {
        "shard": list(weight.to_local().shape),
        "units": sum(hasattr(each, "unshard") for each in model),
        "gradient_is_sharded": isinstance(weight.grad, DTensor),
    }


def grid(rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    ones = torch.ones(4, WIDTH, dtype=torch.float64)
    expected = nn.Sequential(Block(), Block()).double()(ones)
    model = script(GRID, rank)["model"].double()
    same = torch.allclose(model(ones), expected, rtol=FLOAT64_BOUND, atol=FLOAT64_BOUND)
    return {"part": list(model.module.parts[0].shape), "computes_the_same": same}


def pipeline(rank: int) -> dict[str, Any]:
    names = script(PIPELINE, rank)
    return {"stage_gradient": bool(names["part"].up.weight.grad.abs().sum() > 0)}


def alike(mine: Tensor) -> bool:
    """Return whether both ranks have the same tensor."""
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine.contiguous())
    return torch.equal(*both)


def test_the_lines_do_what_the_case_measured(tmp_path: Path) -> None:
    run_ranks(scripts, tmp_path, size=2, folder=tmp_path)
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
