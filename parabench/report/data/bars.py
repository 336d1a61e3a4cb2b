"""How the parts of a case's bars look, on every page: by column, its colour and its name."""

from __future__ import annotations

Look = dict[str, tuple[str, str]]

# Where a timed step's time goes.
PART: Look = {
    "data_s": ("#56B4E9", "data"),
    "forward_s": ("#0072B2", "forward"),
    "backward_s": ("#D55E00", "backward"),
    "forward_backward_s": ("#CC79A7", "forward and backward in turns"),
    "optimizer_s": ("#009E73", "optimizer"),
}
# An instrumented step is these, one after the other; communication has one colour, seen or hidden.
SHARE: Look = {
    "instrumented_data_s": ("#56B4E9", "data"),
    "compute_s": ("#5F6CAF", "compute"),
    "exposed_s": ("#E69F00", "exposed communication"),
    "idle_s": ("#999999", "idle"),
}
# On the CPU the first is the process's resident set, and there are no others.
PEAK: Look = {
    "peak_memory_bytes": ("#0072B2", "torch tensors"),
    "peak_reserved_bytes": ("#56B4E9", "torch's allocator"),
    "used_bytes": ("#E69F00", "device (NVML)"),
}
STATE: Look = {
    "parameter_bytes": ("#0072B2", "parameters"),
    "gradient_bytes": ("#E69F00", "gradients"),
    "optimizer_bytes": ("#009E73", "optimizer state"),
}


def bars() -> dict[str, list[dict[str, str]]]:
    """What the page's script draws of cases as bars, in the order in which it is drawn."""
    return {
        name: [{"column": column, "color": colour, "name": meaning} for column, (colour, meaning) in look.items()]
        for name, look in {"parts": PART, "shares": SHARE, "peaks": PEAK, "state": STATE}.items()
    }
