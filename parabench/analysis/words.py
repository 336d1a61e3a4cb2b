"""How numbers are said: sensible digits, one unit per quantity. None and NaN are "unknown", never 0."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeGuard

from parabench.record import MIB

UNKNOWN = "unknown"


def known(value: float | None) -> TypeGuard[float]:
    """Whether there is a number at all."""
    return value is not None and math.isfinite(value)


def number_or_none(value: float | None) -> float | None:
    """`value` as JSON can hold it: NaN and infinity become None."""
    return float(value) if known(value) else None


def digits(value: float, significant: int = 3) -> str:
    """`value` with that many significant digits, whole above that: 0.0123, 41.2, 1,234."""
    return f"{value:,.{_decimals(value, significant)}f}"


def _decimals(value: float, significant: int = 3) -> int:
    exponent = int(f"{value:.{significant - 1}e}".partition("e")[2])  # of the rounded value: 9.999 is 10.0
    return max(0, significant - 1 - exponent) if value else 0


def milliseconds(seconds: float | None) -> str:
    """A latency: '41.2 ms'."""
    return f"{digits(seconds * 1e3)} ms" if known(seconds) else UNKNOWN


def margin(margin_s: float, of_s: float) -> str:
    """The ± of a latency: '0.4 ms'. As many decimals as the latency has, or one digit where that shows 0."""
    decimals = max(_decimals(of_s * 1e3), _decimals(margin_s * 1e3, 1))
    return f"{margin_s * 1e3:,.{decimals}f} ms"


def percent(fraction: float | None) -> str:
    """A share or a difference: '9 %', '0.4 %'."""
    if not known(fraction):
        return UNKNOWN
    size = abs(fraction) * 100
    return f"{fraction * 100:,.0f} %" if size >= 9.95 else f"{fraction * 100:.1f} %"


def mebibytes(count: float | None) -> str:
    """Memory: '1,024 MiB'."""
    return f"{digits(count / MIB)} MiB" if known(count) else UNKNOWN


def scaled(largest: float) -> tuple[float, str]:
    """(factor, prefix) of the SI unit in which `largest` has one to three digits before the point: (1e9, 'G')."""
    power = min(5, max(0, math.floor(math.log10(largest) / 3))) if known(largest) and largest > 0 else 0
    return 10.0 ** (3 * power), ("", "k", "M", "G", "T", "P")[power]


def gibibytes(count: float | None) -> str:
    """A machine's memory: '16 GiB'."""
    return f"{count / 1024 / MIB:,.0f} GiB" if known(count) else UNKNOWN


def unit_of(seq_len: int) -> str:
    """What throughput counts: models without sequences have a seq_len of 1, and no tokens."""
    return "tokens" if seq_len > 1 else "samples"


def rate(per_s: float | None) -> str:
    """A throughput without its unit, rounded to three digits: '12,400'."""
    if not known(per_s) or per_s <= 0:
        return UNKNOWN
    step = 10.0 ** max(0, math.floor(math.log10(per_s)) - 2)
    return digits(round(per_s / step) * step)


def throughput(per_s: float | None, unit: str = "tokens") -> str:
    """'12,400 tokens/s', or of another `unit`."""
    said = rate(per_s)
    return said if said == UNKNOWN else f"{said} {unit}/s"


def staleness(mean: float, most: float) -> str:
    """How many updates of others a gradient missed: '1.5 updates on average, 4 at most'."""
    return f"{digits(mean, 2)} updates on average, {most:.0f} at most"


def count(n: int, thing: str) -> str:
    """'1 launch', '3 launches'."""
    plural = thing + ("es" if thing.endswith(("ch", "sh", "s", "x")) else "s")
    return f"{n:,} {thing if n == 1 else plural}"


def listed(items: Iterable[str], most: int = 6) -> str:
    """'a; b; c', and how many more there are beyond `most`. Semicolons, because labels hold commas."""
    items = list(items)
    shown = "; ".join(items[:most])
    return shown if len(items) <= most else f"{shown}; and {len(items) - most} more"
