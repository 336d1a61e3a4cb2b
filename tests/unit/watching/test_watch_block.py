"""The block of `watch` in one process."""

import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from parabench import watch
from parabench.analysis.ranking import ranked
from parabench.analysis.session import session_data
from parabench.errors import UsageError
from parabench.metrics import STEP_PARTS
from parabench.session.resume import store_in
from parabench.store.results import load
from parabench.watching import record, schedule
from process_helpers import query


def rows(out: Path, sql: str) -> list[Any]:
    return query(out / "results.db", sql)


class Training:
    """A watched training run of a model with one layer."""

    def __init__(self, out: Path, **options: Any) -> None:
        self.lines: list[str] = []
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.options = {"out": out, "log": self.lines.append, **options}

    def take(self, steps: Iterable[Any]) -> None:
        for _ in steps:
            self.model(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()

    def run(self, *epochs: int) -> None:
        with watch(self.model, self.optimizer, **self.options) as steps:
            for count in epochs:
                self.take(steps([torch.ones(2, 4)] * count))


@pytest.mark.parametrize("epochs", [(29,), (9, 9, 9, 9)])
def test_watch_records_memory_of_each_instrumented_step(tmp_path: Path, epochs: tuple[int, ...]) -> None:
    Training(tmp_path).run(*epochs)
    steps = sum(epochs)
    assert rows(tmp_path, "SELECT count(*) FROM sample WHERE metric = 'step_s'") == [(steps,)]
    parts = rows(
        tmp_path, "SELECT step, metric FROM sample WHERE metric LIKE '%rss_bytes' AND step IS NOT NULL ORDER BY 1, 2"
    )
    each = [f"{part}_rss_bytes" for part in ("backward", "begin", "forward", "optimizer")]
    assert parts == [(step, name) for step in range(25, min(steps, 33)) for name in each]


def test_watch_records_a_sample_of_a_long_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "RECORDED", 60)
    monkeypatch.setattr(schedule, "LEAST_RECORDED", 10)
    Training(tmp_path).run(300)
    steps = [step for (step,) in rows(tmp_path, "SELECT step FROM sample WHERE metric = 'step_s' ORDER BY 1")]
    assert 30 < len(steps) < 100
    assert {*range(25, 33)} < {*steps}
    for what in ("data_s", "optimizer_s"):
        assert rows(tmp_path, f"SELECT step FROM sample WHERE metric = '{what}' ORDER BY 1") == [(at,) for at in steps]
    assert rows(tmp_path, "SELECT DISTINCT step FROM span ORDER BY 1") == [(at,) for at in range(25, 33)]
    ((message,),) = rows(tmp_path, "SELECT message FROM finding WHERE code = 'steps_sampled'")
    assert f"took 300 steps, and {len(steps)} are recorded" in message


def test_watch_uses_a_new_folder_when_the_database_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "BUSY_S", 0.1)
    training = Training(tmp_path / "out")
    with store_in(tmp_path / "out"):
        training.run(6)
    (new,) = set(tmp_path.iterdir()) - {tmp_path / "out"}
    assert any(str(new) in line and "is in use by another run" in line for line in training.lines)
    assert rows(new, "SELECT status FROM launch") == [("ok",)]
    assert rows(tmp_path / "out", "SELECT status FROM launch") == []


def test_watch_logs_errors_of_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr("parabench.watching.watch.record", broken)
    training = Training(tmp_path)
    training.run(6)
    assert training.lines == ["watch: the results of rank 0 are not recorded: KeyError: 'no such thing'"]


@pytest.mark.parametrize(
    ("number", "error", "status"),
    [
        (signal.SIGTERM, SystemExit, ("ok", None)),
        (signal.SIGINT, KeyboardInterrupt, ("ok", None)),
        (None, ValueError, ("failed", "rank 0: ValueError: the loop is wrong")),
    ],
)
def test_watch_keeps_the_steps_of_a_loop_that_ends(
    tmp_path: Path, number: int | None, error: type[BaseException], status: tuple[str, str | None]
) -> None:
    training = Training(tmp_path)

    def batches() -> Iterator[torch.Tensor]:
        yield from [torch.ones(2, 4)] * 12
        if number is None:
            raise ValueError("the loop is wrong")
        signal.raise_signal(number)

    with pytest.raises(error), watch(training.model, training.optimizer, **training.options) as steps:
        training.take(steps(batches()))
    assert rows(tmp_path, "SELECT status, error FROM launch") == [status]
    assert rows(tmp_path, "SELECT count(*) FROM sample WHERE metric = 'step_s'") == [(12,)]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_watch_headline_agrees_with_the_wall_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, training = [0.0], Training(tmp_path, warmup=2)
    for module in ("parabench.watching.loop", "parabench.probes.step_clock"):
        monkeypatch.setattr(f"{module}.perf_counter", lambda: now_s[0])
    with watch(training.model, training.optimizer, **training.options) as steps:
        for _ in range(3):
            for at, batch in enumerate(steps([torch.ones(8, 4)] * 34)):
                if now_s == [0.0]:
                    now_s[0] += 1.0  # the first step also loads kernels
                loss = training.model(batch).sum()
                now_s[0] += 0.002
                loss.backward()
                training.optimizer.step()
                now_s[0] += 0.02 if at % 4 == 3 else 0.0
            now_s[0] += 0.1  # a validation
    wall_s = (now_s[0] - 1.0 - 2 * 0.002 - 0.1) / 100  # without the warm-up and the time after the last step
    text = "\n".join(training.lines)
    assert f"{1e3 * wall_s:.2f} ms per step, {8 / wall_s:,.0f} samples/s." in text
    assert "on rank 0 (mean of 100 steps after the first 2): backward 23%, after the optimizer 77%." in text
    assert "Undisturbed step (10th percentile): 2.00 ms." in text
    assert "one takes 20.0 ms longer after the optimizer" in text
    data = session_data(load(tmp_path / "results.db"), 1)
    ((case,), (launch,)) = data.cases.to_dict("records"), data.numbers.to_dict("records")
    assert (case["step_time_s"], launch["step_s"]) == pytest.approx((wall_s, wall_s))
    assert sum(case[part] for part in STEP_PARTS if case[part] == case[part]) == pytest.approx(wall_s)
    assert (launch["statistic"], launch["undisturbed_s"]) == ("mean", pytest.approx(0.002))
    (rows,) = ranked(data.numbers)
    assert rows["candidates"][0]["step_time_s"] == pytest.approx(wall_s)
    assert "mean step of the loop" in rows["workloads"][0]["basis"]


def test_watch_reports_that_the_optimizer_never_stepped(tmp_path: Path) -> None:
    training = Training(tmp_path)
    watched = torch.optim.Adam(training.model.parameters())  # the loop never calls its step(), as with SAM
    with watch(training.model, watched, **training.options) as steps:
        training.take(steps([torch.ones(2, 4)] * 8))
    (line,) = training.lines
    assert line.startswith("watch: nothing is recorded: step() of the watched Adam was never called")
    assert "give the inner optimizer" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup": 1}, "warmup is 1; it must be a whole number of 2 or more"),
        ({"global_batch": "8"}, "global_batch is '8'; it must be a whole number"),
        ({"out": None}, "out is None; give the path of a folder"),
        ({"label": 5}, "label 5: use 1 to 64 of"),
        ({"tune": [1, 4]}, r"tune is \[1, 4\]; give two or more different bucket caps"),
        ({"tune": {"bucket_mib": [1, 1]}}, "give two or more different bucket caps"),
        ({"tune": {"bucket_mib": [0, 1]}}, "give two or more different bucket caps"),
    ],
)
def test_watch_rejects_invalid_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    training = Training(tmp_path)
    training.options |= options
    with pytest.raises(UsageError, match=message):
        training.run(1)
    assert training.model.weight.grad is None
    assert [*tmp_path.iterdir()] == []


def test_watch_warns_when_the_model_is_never_called(tmp_path: Path) -> None:
    training = Training(tmp_path)
    with watch(nn.Linear(3, 3), training.optimizer, **training.options) as steps:
        training.take(steps([torch.ones(2, 4)] * 12))
    assert any(line.startswith("The loop never called the watched Linear") for line in training.lines)
    assert rows(tmp_path, "SELECT count(*) FROM finding WHERE code = 'model_uncalled'") == [(1,)]
