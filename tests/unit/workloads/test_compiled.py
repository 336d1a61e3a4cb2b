"""The graphs of torch.compile and the frames that it leaves to eager mode, counted for each case of a process."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fake_results as fake
from answers_helpers import check
from parabench.models.options import CompileCounts, compile_blocks
from parabench.plan.case import Case
from parabench.strategies.base import RankInfo
from parabench.workloads.trainer import build
from trained_helpers import Marks

CPU = torch.device("cpu")


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[list[torch.Size]]:
    """Return the shapes of the inputs of each graph of torch.compile, whose graphs run without Inductor."""
    seen: list[list[torch.Size]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        seen.append([each.shape for each in inputs if isinstance(each, Tensor)])
        assert not any(isinstance(each, torch.SymInt) for each in inputs), "a dynamic shape"
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr("parabench.models.options.share_compile_threads", lambda: None)
    return seen


class Residual(nn.Module):
    """A block whose code is compiled again whenever its number changes."""

    def __init__(self, number: int = 0, *, moves: bool = False) -> None:
        super().__init__()
        self.linear, self.number, self.moves = nn.Linear(4, 4), number, moves

    def forward(self, x: Tensor) -> Tensor:
        if self.moves:
            self.number += 1
        y: Tensor = self.linear(x) * self.number
        return y


def counted(blocks: list[Residual], *, steps: int = 4) -> dict[str, int]:
    counts = CompileCounts()
    compile_blocks(blocks)
    for _ in range(steps):
        with counts:
            for block in blocks:
                block(torch.ones(2, 4))
    return counts.facts()


# torch hides this warning in `warnings.showwarning`, which filters that raise do not call.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_cases_of_one_process_have_static_graphs(shapes: list[list[torch.Size]]) -> None:
    trainings = [
        build(
            Case(strategy="single", world_size=1, device="cpu", data="synthetic", seq_len=8, global_batch=batch,
                 compile=True),
            RankInfo(0, 1, CPU),
        )
        for batch in (2, 8)
    ]  # fmt: skip
    for _ in range(2):
        for training in trainings:
            training.take(Marks(), 2)
    told = [training.compiled and training.compiled.facts() for training in trainings]
    assert told == [{"graphs": 1, "eager_frames": 0}] * 2
    assert all(any(shape[:2] == (batch, 8) for shape in of) for of, batch in zip(shapes, (2, 8), strict=True))


def test_blocks_of_one_case_share_a_graph(shapes: list[list[torch.Size]]) -> None:
    assert counted([Residual() for _ in range(3)]) == {"graphs": 1, "eager_frames": 0}
    assert counted([Residual(number) for number in range(3)]) == {"graphs": 3, "eager_frames": 0}


def test_eager_frames_count_only_for_their_case(shapes: list[list[torch.Size]]) -> None:
    with torch._dynamo.config.patch(recompile_limit=2):
        assert counted([Residual(moves=True)]) == {"graphs": 2, "eager_frames": 1}
        assert counted([Residual()]) == {"graphs": 1, "eager_frames": 0}
        assert counted([Residual(moves=True)]) == {"graphs": 2, "eager_frames": 1}


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ([{"rank": 0, "graphs": 2, "eager_frames": 0}], None),
        # A parameter server computes nothing, so its rank compiles nothing.
        ([{"rank": 0, "graphs": 0, "eager_frames": 0}, {"rank": 1, "graphs": 2, "eager_frames": 0}], None),
        ([{"rank": 0, "graphs": 0, "eager_frames": 0}], "made 0 graphs"),
    ],
)
def test_warning_names_cases_left_to_eager_mode(told: list[dict[str, int]], text: str | None, tmp_path: Path) -> None:
    case = fake.case(compile=True)
    results = fake.write(tmp_path / "r.db", [fake.launch(case, facts={"compiled": told})])
    messages = [finding.message for finding in check(results) if finding.code == "not_compiled"]
    assert len(messages) == (text is not None)
    assert all(str(text) in each and case.label in each for each in messages)
