"""What the page's data tells of each case beside its times: its anatomy, memory, use of the hardware, and energy."""

from __future__ import annotations

import pandas as pd

from parabench.analysis.efficiency import efficiency
from parabench.analysis.memory import PARTS, case_states
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import EXPOSED_IN, taken_apart
from parabench.analysis.step.stragglers import straggler_table

# Beside `peak_memory_bytes`: on a GPU what torch's allocator held, and what NVML saw in use.
PEAKS = ("peak_reserved_bytes", "used_bytes")
# By table: its columns, and what they are called beside those of the others.
ANATOMY = {
    "step_s": "instrumented_s", "data_s": "instrumented_data_s", "compute_s": "compute_s", "exposed_s": "exposed_s",
    "overlapped_s": "hidden_s", "idle_s": "idle_s", "exposed_share": "exposed_share",
    "unknown_calls": "unknown_calls", "instruments_ratio": "instruments_ratio",
} | {column: column for column in EXPOSED_IN.values()}  # fmt: skip
STATE = {
    "measured": "state_bytes", "theory": "state_theory_bytes", "formula": "state_formula", "exact": "state_exact",
} | {part: part for part in PARTS}  # fmt: skip
USE = {name: name for name in ("flops_per_s", "mfu", "mfu_reason", "joules_per_step", "joules_per_token")}
WAITS = {"straggler": "straggler", "waited_s": "waited_s", "waited_share": "waited_share"}


def case_columns(seen: SessionData) -> dict[str, pd.Series]:
    """Columns beside `seen.cases`, row by row; NaN or None where something is unknown. Seconds, bytes and shares.

    Of the median instrumented step: `instrumented_s` = `instrumented_data_s` + `compute_s` + `exposed_s` + `idle_s`,
    `hidden_s` of communication inside compute (a lower bound where there are `unknown_calls`), `exposed_forward_s` and
    so on within each part, `exposed_share` of the step. Of memory: PEAKS, the training state as measured and by
    theory. FLOP/s, MFU and joules. The rank that others wait for most, and how long a step.
    """
    tables = (
        (seen.once(taken_apart), ANATOMY),
        (seen.once(case_states), STATE),
        (seen.once(efficiency), USE),
        (seen.once(straggler_table), WAITS),
    )
    found: dict[str, pd.Series] = {name: seen.cases[name] for name in PEAKS}
    for table, columns in tables:
        own = table.set_index("case_id")[list(columns)].reindex(seen.cases["case_id"])
        for column, name in columns.items():
            found[name] = own[column].set_axis(seen.cases.index)
    return found
