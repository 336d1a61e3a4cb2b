"""Start or resume a session in a results database, and lock its folder for one run at a time."""

from __future__ import annotations

import fcntl
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Generic

from parabench.errors import UsageError
from parabench.files import check_own_folder
from parabench.machine.machine import Machine, environment
from parabench.plan.plan import AnyProtocol, C, P, Plan
from parabench.plan.protocol import Protocol
from parabench.session.request import Planned, Request
from parabench.store.record import TRACES, WATCHED, Finding
from parabench.store.store import STORE_NAME, PlannedSession, Store
from parabench.workloads import WORKLOADS
from parabench.workloads.verify import Reference

REPORT_NAME = "report.html"


class FolderInUse(UsageError):
    """Another run holds the output folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState(Generic[C, P]):
    """A new or resumed session in the database, with the pairs (case id, repetition) of its finished launches."""

    session_id: int
    plan: Plan[C, P]
    done: set[tuple[str, int]] = field(default_factory=set)
    references: Mapping[str, Reference] = field(default_factory=dict)


@contextmanager
def store_in(folder: Path, *, resumes: bool = False) -> Iterator[Store]:
    """Open the database of `folder` and lock the folder, because two runs at once would disturb each other.

    Both are created if they do not exist, unless the run `resumes` a session. Raises UsageError.
    """
    if resumes:
        check_resumable(folder)
    check_own_folder()
    check_writable(folder)
    with ExitStack() as stack:
        try:
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(
                f"output folder {str(folder)!r} is in use by another run; wait for it, or give another --out"
            ) from None
        except OSError as error:
            raise UsageError(
                f"output folder {str(folder)!r} cannot be locked, and two runs at once would disturb one another: "
                f"{error.strerror}; give another --out"
            ) from error
        yield stack.enter_context(Store.open_or_create(folder / STORE_NAME))


def left_of(request: Request) -> Sequence[Request]:
    """Return the sessions to run. With --resume, the first one is the last in the database. Raises UsageError."""
    parts = request.parts()
    if len(parts) == 1 or not request.resume:
        return parts
    with Store.open_to_read(check_resumable(request.out)) as store:
        last = store.last_session()
    kinds = [part.kind for part in parts]
    there = last.plan.get("kind", "training") if last is not None else ""
    if there not in kinds:
        return parts
    first, *others = parts[kinds.index(there) :]
    return (first, *(replace(part, resume=False) for part in others))


def check_resumable(folder: Path, what: str = "session") -> Path:
    """Return the path of the database in `folder`. Raises UsageError if there is none."""
    path = folder / STORE_NAME
    if not os.path.isfile(path):
        raise UsageError(f"{path} does not exist, so it holds no {what} to resume; run without --resume")
    return path


def check_writable(folder: Path, what: str = "output folder", option: str = "--out") -> None:
    """Create `folder` and write a file there. Raises UsageError, with the option, if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise UsageError(f"{what} {str(folder)!r} cannot be written: {why}; give another {option}") from error


def check_traces(folder: Path, protocol: AnyProtocol) -> None:
    """Raise UsageError if launches write traces and `folder`/traces cannot be written."""
    if isinstance(protocol, Protocol) and protocol.alone().traced:
        check_writable(folder / TRACES, "folder for traces")


def begin_session(
    store: Store,
    request: Request,
    planned: Planned[C, P],
    machine: Machine,
    *,
    interleaved: dict[str, str] | None = None,
    nodes: Sequence[Mapping[str, Any]] = (),
    about: Mapping[str, Any] | None = None,
) -> SessionState[C, P]:
    """Store a new session with its plan, environment and warnings.

    Args:
        interleaved: as for `Store.begin_session`.
        nodes: the environment of each node, if there are several. Node 0 is this machine.
        about: the environment of this machine, if it is already known.
    """
    here = environment(machine) if about is None else dict(about)
    if nodes:
        here["nodes"] = [{**nodes[0], **here}, *nodes[1:]]
        here["cluster"] = {"nodes": machine.nodes, "ranks_per_node": machine.ranks_per_node}
    session_id = store.begin_session(
        label=request.label,
        suite=planned.suite,
        argv=request.argv,
        seed=planned.plan.seed,
        environment=here,
        question=planned.question,
        plan=planned.plan.to_dict(),
        interleaved=interleaved,
    )
    findings = list(planned.findings)
    if machine.gpus_reason is not None:
        unknown = "Device memory and health"
        advice = "Nothing is missing on a CPU; with NVIDIA devices, install their driver and a CUDA build of torch."
        if machine.gpus:
            unknown = "Health, energy and clocks of the devices"
            advice = (
                "Times and torch's memory peaks are complete. For NVIDIA devices, make NVML available (in containers "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility); other devices are not read."
            )
        findings.insert(0, Finding("no_device_memory", f"{unknown} are unknown: {machine.gpus_reason}.", advice))
    for finding in findings:
        store.add_finding(session_id, finding)
    return SessionState(session_id=session_id, plan=planned.plan)


def resume(
    store: Store, plan: Plan[Any, Any] | None, kind: str = "training", *, label: str | None = None
) -> SessionState[Any, Any]:
    """Return the state of the last session in the database, which must have this kind.

    Raises UsageError if there is none, if no command can resume it, or if its plan or label is not the given one.
    """
    last = store.last_session()
    if last is None:
        raise UsageError(f"{store.path} holds no session to resume; run without --resume")
    if last.interleaved:
        go_on = ab_command(store.path, settings_of(ab_sides(store, last)))
        raise UsageError(f"the last session in {store.path} is one variant of an ab; continue both with {go_on!r}")
    there = last.plan.get("kind", "training")
    if there != kind:
        raise UsageError(
            f"the last session in {store.path} measured {there}, not {kind}; resume it with "
            f"{_as_begun(store, last)!r}, or start a new one without --resume"
        )
    if store.has_finding(last.id, WATCHED):
        raise UsageError(
            f"the last session in {store.path} is of a training loop that was watched, which no command launches; run "
            f"{last.suite} again, or start a new session without --resume"
        )
    check_label_of(store, last, label)
    return load_state(store, last, plan, _as_begun(store, last))


def check_label_of(store: Store, row: PlannedSession, label: str | None) -> None:
    """Raise UsageError if a session is resumed with a label that it does not have."""
    if label is not None and label != row.label:
        there = "no label" if row.label is None else f"the label {row.label!r}"
        raise UsageError(
            f"the last session in {store.path} has {there}, and label {label!r} cannot change a session that is "
            "resumed as it was planned; drop --label, or start a new session without --resume"
        )


def check_nodes_of(plan: Plan[Any, Any], machine: Machine) -> None:
    """Raise UsageError if a resumed plan needs more nodes, or more ranks per node, than the command has."""
    nodes = max((case.nodes for case in plan.cases), default=1)
    ranks = max((-(-case.world_size // case.nodes) for case in plan.cases if case.nodes == nodes), default=1)
    given = machine.ranks_per_node or 0
    if nodes > 1 and (nodes > machine.nodes or ranks > given):
        here = f"--nnodes {machine.nodes} --nproc-per-node {given}" if given else "one machine"
        raise UsageError(
            f"the session ran on {nodes} nodes of {ranks} ranks, and cannot be resumed on {here}; give --nnodes "
            f"{nodes} --nproc-per-node {ranks} and --rdzv-endpoint, on every node"
        )


def load_state(store: Store, row: PlannedSession, plan: Plan[Any, Any] | None, instead: str) -> SessionState[Any, Any]:
    """Return the stored state of a session. Raises UsageError, with the command `instead`, if `plan` differs."""
    stored = Plan.from_dict(row.plan)
    if plan is not None and not plan.has_same_request(stored):
        raise UsageError(
            f"the last session in {store.path} has another plan; resume it with "
            f"{instead!r}, or start a new one without --resume"
        )
    references = {
        case_id: Reference(values.get("loss", {}), values.get("grad_norm", {}))
        for case_id, values in store.reference_values(row.id).items()
    }
    done = store.launches_done(row.id)
    return SessionState(session_id=row.id, plan=stored, done=done, references=references)


def resume_command(store: Path, kind: str = "training", *options: str) -> str:
    """Return the command that resumes the last session in the database file `store`, a session of this kind."""
    return shlex.join(["parabench", WORKLOADS[kind].command, "--resume", *options, "--out", str(store.parent)])


def _as_begun(store: Store, row: PlannedSession) -> str:
    """Return the command that resumes a session, and runs the later sessions of its suite."""
    kind = row.plan.get("kind", "training")
    if kind != "training" and row.argv[1:2] == ["run"]:
        return shlex.join([*with_resume(row.argv), "--out", str(store.path.parent)])
    return resume_command(store.path, kind)


def with_resume(argv: Sequence[str]) -> list[str]:
    """Return the arguments of a command with `--resume`."""
    return [*argv, *["--resume"] * ("--resume" not in argv)]


def ab_sides(store: Store, row: PlannedSession) -> dict[str, PlannedSession]:
    """Return the sessions of both variants of an `ab`, by "a" and "b". Raises UsageError if one has not started."""
    sides = store.sides(row.interleaved["run"])
    if set(sides) != {"a", "b"}:
        raise UsageError(
            f"the last ab in {store.path} was stopped before both variants had started; start a new one without "
            "--resume"
        )
    return sides


def settings_of(sides: Mapping[str, PlannedSession]) -> list[str]:
    """Return the settings of variants a and b. Paths are shortened to their last part, and secrets are `...`."""
    return [sides[name].interleaved.get("setting", "...") for name in sorted(sides)]


def ab_command(store: Path, settings: Sequence[str], *options: str) -> str:
    """Return the command that resumes the last `ab` in the database file `store`, with these settings."""
    both = chain.from_iterable(zip(("--baseline", "--candidate"), settings, strict=True))
    return shlex.join(["parabench", "ab", "--resume", *both, *options, "--out", str(store.parent)])
