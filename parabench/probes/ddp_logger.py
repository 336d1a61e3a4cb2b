"""What DDP noted of itself: its own logger, on for the instrumented steps, so that two instruments can be compared.

torch's reducer takes the time at five moments of a step (`torch/csrc/distributed/c10d/reducer.cpp`, `logger.cpp`):
forward begins; the module's forward is over, which it calls the begin of backward; the first bucket is ready; the last
gradient was there; all buckets are reduced and copied back. Reading a step's moments is left to the next step's
forward; here it is done after the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from parabench.probes.moments import Moment, Moments, step_of

# One step in a hundred, torch's own choice (kDDPRuntimeLoggingSampleRate).
USUAL_RATE = 100

# DDP's name of each span, in nanoseconds, and ours. Its "overlap" is one span too: from the first bucket to the last
# gradient, whether anything travelled in between or not.
SPANS = {
    "forward_compute_time": "forward_s",
    "backward_compute_time": "backward_s",
    "backward_comm_time": "communication_s",
    "backward_compute_comm_overlap_time": "overlap_s",
}


class DdpLogger:
    """Every step is logged until `stop`, and the end of the module's forward noted beside it."""

    def __init__(self, module: DistributedDataParallel, moments: Moments) -> None:
        self._module, self._moments = module, moments
        self._forward_end: Moment | None = None
        self._logged: dict[str, Any] = {}
        module._set_ddp_runtime_logging_sample_rate(1)
        self._hook = module.register_forward_hook(self._forward_is_over)

    def _forward_is_over(self, *_: object) -> None:
        self._forward_end = self._moments.now()

    def stop(self) -> None:
        """Log as seldom as before; what is kept is the last step's."""
        self._hook.remove()
        logger: Any = self._module.logger
        logger.set_runtime_stats_and_log()
        self._logged = self._module._get_ddp_logging_data()
        self._module._set_ddp_runtime_logging_sample_rate(USUAL_RATE)

    def told(self, begins: Sequence[float]) -> dict[str, Any]:
        """The last logged step's spans in seconds, None where DDP did not take a moment; `begins` as for Instruments.

        `forward_end_s` is on the clock that all processes share: with it the spans' moments can be found in our tables.
        """
        if self._forward_end is None:
            return {}
        forward_end = self._moments.seconds(self._forward_end)
        spans = {ours: _seconds(self._logged.get(theirs)) for theirs, ours in SPANS.items()}
        return {
            "step": step_of(forward_end, begins),
            "iteration": self._logged.get("iteration"),
            "forward_end_s": forward_end,
            **spans,
        }


def _seconds(nanoseconds: int | None) -> float | None:
    return nanoseconds / 1e9 if nanoseconds else None
