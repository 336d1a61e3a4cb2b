"""A wall clock of these processes' own, as many seconds ahead of the machine's as a file says.

Python imports a module of this name before anything else. Clocks that only run are the machine's. What reads
`time.time` has it, and those modules of ours that read `datetime`; libraries in C would not bear another type in its
place.
"""

import datetime
import importlib.abc
import importlib.machinery
import os
import sys
import time
from types import ModuleType

_file = os.environ.get("PARABENCH_FAULT_CLOCK", "")
_time, _time_ns = time.time, time.time_ns

READERS = ("parabench.store.record", "parabench.serve.server")


def _ahead_s() -> float:
    try:
        with open(_file) as file:
            return float(file.read())
    except (OSError, ValueError):
        return 0.0


class _Stepped(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return datetime.datetime.now(tz) + datetime.timedelta(seconds=_ahead_s())


class _Readers(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name not in READERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            module.datetime = _Stepped  # type: ignore[attr-defined]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if _file:
    time.time = lambda: _time() + _ahead_s()
    time.time_ns = lambda: _time_ns() + round(_ahead_s() * 1e9)
    sys.meta_path.insert(0, _Readers())
