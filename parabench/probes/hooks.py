"""Hooks on a module that no copy of it has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


class ForwardHook:
    """Calls `tell` after every forward of the module that it is registered with, by `register_forward_hook`.

    A copy of the module, by pickle (`torch.save`) or `copy.deepcopy`, has a hook of the standard library in its place
    that does nothing: it can be made, and is loaded where no parabench is.
    """

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell

    def __call__(self, *_: object) -> None:
        self._tell()

    def __reduce__(self) -> tuple[Any, ...]:
        # A method that takes the three things that a forward hook is given, and gives None.
        return getattr, (contextlib.nullcontext(), "__exit__")
