"""Read suites: Python files that declare the cases which answer one question. Free of torch."""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from parabench.errors import UsageError, unknown
from parabench.files import shipped_folder
from parabench.plan.case import Case
from parabench.plan.fields import parse_field
from parabench.plan.protocol import Protocol
from parabench.records import declared, is_text

# Weak scaling: the global batch grows with the world size. Cases have no field for this axis.
BATCH_PER_RANK = "batch_per_rank"

AXES = {**declared(Case), BATCH_PER_RANK: structs.replace(declared(Case)["global_batch"], name=BATCH_PER_RANK)}

BATCHES = ("global_batch", BATCH_PER_RANK)

# A suite may declare CASES and PROTOCOL for each of these machines: only CPUs, one CUDA device, several CUDA devices.
CPU, ONE_GPU, GPUS = "cpu", "one_gpu", "gpus"
MACHINES = (CPU, ONE_GPU, GPUS)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Axes and their values. The cases are all combinations of the values. `world_size` may be ("auto",)."""

    axes: Mapping[str, tuple[Any, ...]]


def sweep(**axes: Any) -> Sweep:
    """Return the combinations of the given axes, each with one value or several. Raises UsageError for an unknown axis.

    A tuple within the values of `bucket_mib` is a list of caps.

    Examples:
        >>> sweep(strategy="ddp", bucket_mib=(1, 25)).axes
        {'strategy': ('ddp',), 'bucket_mib': (1, 25)}
    """
    found = {}
    for name, value in axes.items():
        _check_axis(name)
        plain = value.tolist() if hasattr(value, "tolist") else value  # NumPy's arrays and numbers
        found[name] = tuple(plain) if isinstance(plain, (list, tuple, range)) else (plain,)
    return Sweep(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A question and the sweeps that answer it, with other sweeps and another protocol on the machines in `others`.

    Sessions of `compute` (with `compute_protocol`) and of `collectives` (by the names of options of `parabench
    collectives`) run before the training session.
    """

    name: str
    path: Path
    question: str
    sweeps: tuple[Sweep, ...]
    protocol: Protocol
    others: Mapping[str, tuple[tuple[Sweep, ...], Protocol]] = field(default_factory=dict)
    compute: tuple[Sweep, ...] = ()
    compute_protocol: Protocol = field(default_factory=Protocol)
    collectives: Mapping[str, Any] = field(default_factory=dict)

    def on(self, machine: str) -> Suite:
        """Return the suite for a machine of MACHINES."""
        sweeps, protocol = self.others.get(machine, (self.sweeps, self.protocol))
        return replace(self, sweeps=sweeps, protocol=protocol, others={})

    def override(self, axes: Mapping[str, tuple[Any, ...]]) -> Suite:
        """Return the suite with these axes in every sweep. `global_batch` and `batch_per_rank` replace each other."""
        gone = set(BATCHES) - set(axes) if set(BATCHES) & set(axes) else set()
        kept = [{name: values for name, values in each.axes.items() if name not in gone} for each in self.sweeps]
        return replace(self, sweeps=tuple(Sweep({**each, **axes}) for each in kept))


def _check_axis(name: str) -> None:
    if name not in AXES:
        raise unknown("axis", name, AXES)


def parse_axis(name: str, text: str) -> tuple[Any, ...]:
    """Return the values of one axis from text: `parse_axis("bucket_mib", "1,4,default")` is `(1.0, 4.0, None)`.

    Values joined by a plus are a list, one value of the axis. `world_size` may be `auto`. Raises UsageError.
    """
    _check_axis(name)
    if name == "world_size" and text == "auto":
        return ("auto",)
    return parse_field(AXES[name], text)


def parse_axes(given: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Return {axis: values} from texts such as AXIS=V1,V2. Raises UsageError."""
    axes: dict[str, tuple[Any, ...]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text!r}: give AXIS=VALUE, as in --set world_size=2")
        if name in axes:
            raise UsageError(f"axis {name!r} is given twice; give all its values at once: --set {name}=A,B")
        axes[name] = parse_axis(name, values)
    return axes


def with_global_batch(values: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """Return {axis: value} with `global_batch` in place of BATCH_PER_RANK, if that is given. Raises UsageError."""
    fields = dict(values)
    per_rank = fields.pop(BATCH_PER_RANK, None)
    if per_rank is not None:
        if "global_batch" in fields:
            raise UsageError("batch_per_rank and global_batch are both given; give one of them")
        if type(per_rank) is not int or per_rank < 1:
            raise UsageError(f"batch_per_rank is {per_rank!r}; it must be a whole number of 1 or more")
        fields["global_batch"] = per_rank * world_size
    return fields


def shipped() -> dict[str, Path]:
    """Return the suites that parabench ships: {name: file}."""
    return {path.stem: path for path in sorted(shipped_folder("suites").glob("*.py")) if path.stem != "__init__"}


def load_suite(name: str) -> Suite:
    """Return the suite with this name, or from the file at this path. Raises UsageError if it cannot be read."""
    known = shipped()
    path = known.get(name) or Path(name)
    if not os.path.isfile(path):
        raise unknown("suite", name, known, ", or a path to a suite file")
    try:
        return _suite(path, runpy.run_path(str(path)))
    except UsageError as error:
        raise UsageError(f"suite {path}: {error}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"suite {path} cannot be read: {type(error).__name__}: {error}") from error


def _suite(path: Path, content: Mapping[str, Any]) -> Suite:
    each = {machine: (_sweeps(content, machine), _protocol(content, machine, "PROTOCOL")) for machine in MACHINES}
    question = content.get("__doc__")
    if not is_text(question) or not str(question).strip():
        raise UsageError("it has no docstring; begin it with the question that it answers")
    sweeps, protocol = each.pop(CPU)
    return Suite(
        name=path.stem,
        path=path,
        question=str(question).strip(),
        sweeps=sweeps,
        protocol=protocol,
        others=each,
        compute=_sweeps(content, CPU, "COMPUTE") if "COMPUTE" in content else (),
        compute_protocol=_protocol(content, CPU, "COMPUTE_PROTOCOL"),
        collectives=content.get("COLLECTIVES", {}),
    )


def _sweeps(content: Mapping[str, Any], machine: str, name: str = "CASES") -> tuple[Sweep, ...]:
    cases = _given(content, name, machine)
    sweeps = (cases,) if isinstance(cases, Sweep) else tuple(cases) if isinstance(cases, Iterable) else ()
    if not sweeps or not all(isinstance(each, Sweep) for each in sweeps):
        raise UsageError(
            f"it declares no {name}; give {name} = [sweep(strategy=..., ...), ...], or such a list for each of "
            f"{', '.join(MACHINES)}"
        )
    return sweeps


def _protocol(content: Mapping[str, Any], machine: str, name: str) -> Protocol:
    protocol = _given(content, name, machine, Protocol())
    if not isinstance(protocol, Protocol):
        raise UsageError(f"{name} must be a Protocol(warmup=..., steps=..., launches=...)")
    return protocol


def _given(content: Mapping[str, Any], name: str, machine: str, default: Any = None) -> Any:
    """Return the value of a variable of the suite file, which may have separate values for each of MACHINES."""
    given = content.get(name, {})
    if not isinstance(given, Mapping):
        return given
    unknown = [each for each in given if each not in MACHINES]
    if unknown:
        raise UsageError(f"{name} has {unknown[0]!r}; give it for {', '.join(MACHINES)}")
    return given.get(machine, default)
