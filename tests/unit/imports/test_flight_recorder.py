"""Dumps of torch's flight recorder: calls, ranks that did not come, pickles that hold more than values."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import recordings
from parabench.errors import UsageError
from parabench.imports import flight_recorder, literals, read_folder
from parabench.imports.into_store import launch_of
from parabench.store.record import Status
from recordings import RUNNING, dump, entry


def read(folder: Path, told: Any, rank: int = 0) -> Any:
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickle.dumps(told, 2))
    return flight_recorder.read(path)


def test_a_call_has_its_size_and_how_long_it_took(tmp_path):
    found = read(tmp_path, dump(entry(5)))
    (call,) = found.calls.itertuples()
    assert (call.step, call.seq, call.op, call.ranks, call.bytes, call.dtype) == (
        5, 4, "all_reduce", (0, 1), 4000, "float32",
    )  # fmt: skip
    assert (found.zero_ns, call.made_s, call.duration_s) == (1_700_000_000_000_000_005, 0, pytest.approx(1.5e-3))


def test_values_are_those_that_were_pickled(tmp_path):
    value = {
        "a": [1, -5, 2**40, -(2**80), 1.5, None, True, False, "é" * 300, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]
    }
    value["again"] = value["a"]
    for protocol in (2, 3, 4, 5):
        (tmp_path / "x").write_bytes(pickle.dumps(value, protocol))
        assert literals.read(tmp_path / "x") == value


class Evil:
    def __reduce__(self) -> Any:
        return print, ("executed",)


@pytest.mark.parametrize("value", [Evil(), [Evil()], {"entries": Evil()}, 1j, print, {"a": Path("x")}])
def test_a_pickle_of_anything_else_is_refused(tmp_path, value, capsys):
    for protocol in (2, 4, 5):
        (tmp_path / "dump_0").write_bytes(pickle.dumps(value, protocol))
        with pytest.raises(UsageError, match="nothing else is unpickled") as refused:
            flight_recorder.read(tmp_path / "dump_0")
        assert "\n" not in str(refused.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x02", b"\x80\x02e.", b"\x80\x02h\x05.", b"\x80\x02](K\x01K\x02s.", b"\x80\x02X\xff\xff\xff\x7fabc",
        b"\x80\x02]r\xff\xff\xff\xff.",
    ],
)  # fmt: skip
def test_a_damaged_pickle_is_refused_in_a_line(tmp_path, raw):
    (tmp_path / "dump_0").write_bytes(raw)
    with pytest.raises(UsageError, match="cannot be read") as refused:
        flight_recorder.read(tmp_path / "dump_0")
    assert "\n" not in str(refused.value)


def test_messages_and_groups_of_calls_are_no_collectives_of_all(tmp_path):
    sent = entry(1, "nccl:send 0->1", is_p2p=True, p2p_seq_id=4)
    found = read(tmp_path, dump(sent, entry(2, "nccl:coalesced")))
    rows = list(found.calls[["op", "step", "phase"]].itertuples(index=False, name=None))
    assert rows == [("send", 4, "flight"), ("coalesced", 2, None)]
    assert found.skipped == {"left out: they are no collectives": 1}


def test_a_hang_is_how_the_launch_ended(tmp_path):
    recordings.write(tmp_path, rank_0__json=dump(entry(1, **RUNNING)), rank_1__json=dump())
    launch = launch_of(read_folder(tmp_path))
    # Both dumps hold active calls only, so rank 1 is not in the call.
    assert launch.status is Status.HUNG
    recordings.write(tmp_path, rank_0__json=dump(entry(1), entry(2, **RUNNING)), rank_1__json=dump(entry(1)))
    assert launch_of(read_folder(tmp_path)).status is Status.HUNG
