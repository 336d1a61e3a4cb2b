"""Dumps of torch's flight recorder: calls, ranks that did not enter a call, and pickles of other objects."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from parabench.errors import UsageError
from parabench.imports import flight_recorder, read_folder
from recordings import dump, entry


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


def test_entries_are_calls_messages_and_groups_of_calls(tmp_path):
    sent = entry(1, "nccl:send 0->1", is_p2p=True, p2p_seq_id=4)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump(sent, entry(2, "nccl:coalesced"), entry(5)), 2))
    found = flight_recorder.read(path)
    rows = list(found.calls[["op", "step", "phase"]].itertuples(index=False, name=None))
    assert rows == [("send", 4, "flight"), ("coalesced", 2, None), ("all_reduce", 5, "flight")]
    assert found.skipped == {"left out: they are no collectives": 1}
    *_, call = found.calls.itertuples()
    assert (call.ranks, call.bytes, call.dtype, call.duration_s) == ((0, 1), 4000, "float32", pytest.approx(1.5e-3))
    assert (found.zero_ns, call.made_s) == (1_700_000_000_000_000_001, pytest.approx(4e-9))
