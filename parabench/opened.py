"""A session in a store, new or resumed, and the folder that it lies in: one run at a time holds it."""

from __future__ import annotations

import fcntl
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from parabench.case import Protocol
from parabench.errors import UsageError
from parabench.machine import Machine, environment
from parabench.plan import C, P, Plan
from parabench.record import TRACES, Finding
from parabench.store import Store
from parabench.verify import Reference

STORE_NAME, REPORT_NAME = "results.db", "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Generic[C, P]):
    """A session in the store, new or resumed, and what it already has."""

    session_id: int
    plan: Plan[C, P]
    done: set[tuple[str, int]] = field(default_factory=set)
    references: Mapping[str, Reference] = field(default_factory=dict)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold `folder` for this run: two at once would disturb one another's times and store. Raises UsageError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"output folder {str(folder)!r} is in use by another run; wait for it, or give another --out"
            ) from None
        yield
    finally:
        os.close(handle)


@contextmanager
def store_in(folder: Path) -> Iterator[Store]:
    """The store of `folder`, both made where they are not there, held for this run. Raises UsageError."""
    check_writable(folder)
    with alone_in(folder), Store.open_or_create(folder / STORE_NAME) as store:
        yield store


def check_writable(folder: Path, what: str = "output folder", option: str = "--out") -> None:
    """Make `folder` and prove that a file can be written there, else UsageError that names the option."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise UsageError(
            f"{what} {str(folder)!r} cannot be written: it is a file; move it away, or give another {option}"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{what} {str(folder)!r} cannot be written: {error.strerror or error}; give another {option}"
        ) from error


def check_traces(folder: Path, protocol: Protocol) -> None:
    """Raise UsageError when launches are to leave traces in `folder`/traces and could not."""
    if protocol.traced:
        check_writable(folder / TRACES, "folder for traces")


def begin_session(
    store: Store, plan: Plan[C, P], machine: Machine, *, label: str | None, suite: str, question: str, argv: list[str]
) -> Opened[C, P]:
    """Record a new session."""
    session_id = store.begin_session(
        label=label,
        suite=suite,
        argv=argv,
        seed=plan.seed,
        environment=environment(machine),
        question=question,
        plan=plan.to_dict(),
    )
    if machine.gpus_reason is not None:
        store.add_finding(
            session_id,
            Finding(
                "no_device_memory",
                f"Device memory and health are unknown: {machine.gpus_reason}.",
                "Nothing is missing on a CPU; with NVIDIA devices, install their driver and a CUDA build of torch.",
            ),
        )
    return Opened(session_id=session_id, plan=plan)


def resume(store: Store, plan: Plan[Any, Any] | None, kind: str = "training") -> Opened[Any, Any]:
    """The store's last session, which must be of that kind.

    Raises UsageError when there is none, or when `plan` is another one.
    """
    last = store.last_session()
    if last is None:
        raise UsageError(f"{store.path} holds no session to resume; run without --resume")
    there = last.plan.get("kind", "training")
    if there != kind:
        raise UsageError(
            f"the last session in {store.path} measured {there}, not {kind}; resume it with "
            f"{resume_command(store.path, there)!r}, or start a new one without --resume"
        )
    stored = Plan.from_dict(last.plan)
    if plan is not None and plan != stored:
        raise UsageError(
            f"the last session in {store.path} was planned otherwise; resume it with "
            f"{resume_command(store.path, kind)!r}, or start a new one without --resume"
        )
    references = {
        case_id: Reference(values.get("loss", {}), values.get("grad_norm", {}))
        for case_id, values in store.reference_values(last.id).items()
    }
    return Opened(
        session_id=last.id,
        plan=stored,
        done=store.launches_done(last.id),
        references=references,
    )


def resume_command(store: Path, kind: str = "training") -> str:
    """The command that continues the last session of `store`, of that kind, however it was begun."""
    command = "collectives" if kind == "collectives" else "run"
    return shlex.join(["parabench", command, "--resume", "--out", str(store.parent)])
