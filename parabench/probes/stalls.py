"""When the training's stream stands still for another stream's event: how FSDP2 waits for communication on CUDA.

`Work.wait` is seen by `probes.calls`. FSDP2 gathers and reduces on streams of its own and lets the training's stream
wait for events there. While this watches, `torch.cuda.Stream.wait_event` (`wait_stream` ends in it too) notes the
moments before and after; afterwards it is torch's own again.
"""

from __future__ import annotations

from typing import Any

import torch

from parabench.probes.collective_calls import Recorder
from parabench.probes.moments import event


class Stalls:
    """While its block runs, `recorder` has every wait of the training's stream for an event."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> Stalls:
        recorder, wait_event = self._recorder, torch.cuda.Stream.wait_event

        def watched(stream: Any, awaited: Any) -> None:
            if stream != recorder.stream:
                wait_event(stream, awaited)
                return
            begin = event(stream)
            wait_event(stream, awaited)
            recorder.waits.append((begin, event(stream)))

        self._own = wait_event
        torch.cuda.Stream.wait_event = watched  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *exc: object) -> None:
        torch.cuda.Stream.wait_event = self._own  # type: ignore[method-assign]
