"""Dumps of torch's flight recorder: calls, ranks that did not enter a call, and pickles of other objects."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import recordings
from parabench.errors import UsageError
from parabench.imports import flight_recorder, read_folder
from parabench.imports.into_store import launch_of
from parabench.store.record import Status
from recordings import RUNNING, dump, entry


def read(folder: Path, content: Any) -> Any:
    path = folder / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(content, 2))
    return flight_recorder.read(path)


def test_call_has_size_and_duration(tmp_path):
    found = read(tmp_path, dump(entry(5)))
    (call,) = found.calls.itertuples()
    assert (call.step, call.seq, call.op, call.ranks, call.bytes, call.dtype) == (
        5, 4, "all_reduce", (0, 1), 4000, "float32",
    )  # fmt: skip
    assert (found.zero_ns, call.made_s, call.duration_s) == (1_700_000_000_000_000_005, 0, pytest.approx(1.5e-3))


def test_unpickled_values_are_those_that_were_pickled():
    value = {"a": [1, -5, 2**40, -(2**80), 1.5, None, True, "é" * 300, (), (1,), (1, 2, 3, 4)]}
    value["again"] = value["a"]
    for protocol in (2, 5):
        assert flight_recorder.unpickled(pickle.dumps(value, protocol)) == value


class Evil:
    def __reduce__(self) -> Any:
        return print, ("executed",)


@pytest.mark.parametrize("value", [{"entries": Evil()}, print, {"a": Path("x")}])
@pytest.mark.parametrize("protocol", [2, 5])
def test_pickle_of_another_object_is_refused(tmp_path, value, protocol, capsys):
    (tmp_path / "dump_0").write_bytes(pickle.dumps({"pg_config": value}, protocol))
    with pytest.raises(UsageError, match="nothing else is unpickled") as refused:
        read_folder(tmp_path)
    assert "\n" not in str(refused.value)
    assert capsys.readouterr().out == ""


def test_messages_and_groups_of_calls_are_not_collectives(tmp_path):
    sent = entry(1, "nccl:send 0->1", is_p2p=True, p2p_seq_id=4)
    found = read(tmp_path, dump(sent, entry(2, "nccl:coalesced")))
    rows = list(found.calls[["op", "step", "phase"]].itertuples(index=False, name=None))
    assert rows == [("send", 4, "flight"), ("coalesced", 2, None)]
    assert found.skipped == {"left out: they are no collectives": 1}


def test_launch_is_hung_when_a_rank_did_not_enter_a_call(tmp_path):
    recordings.write(tmp_path, rank_0__json=dump(entry(1), entry(2, **RUNNING)), rank_1__json=dump(entry(1)))
    assert launch_of(read_folder(tmp_path)).status is Status.HUNG
