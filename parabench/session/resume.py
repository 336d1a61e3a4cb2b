"""A session in a store, new or resumed, and the folder that it lies in: one run at a time holds it."""

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
from parabench.plan.suite import load_suite
from parabench.session.request import Planned, Request, TrainingRequest
from parabench.session.runner import launches_left
from parabench.store.record import TRACES, WATCHED, Finding
from parabench.store.store import STORE_NAME, PlannedSession, Store
from parabench.workloads.verify import Reference

REPORT_NAME = "report.html"


class FolderInUse(UsageError):
    """Another run holds the output folder."""


# Of an ab.
SIDES = {"a", "b"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState(Generic[C, P]):
    """A session in the store, new or resumed, and what it already has."""

    session_id: int
    plan: Plan[C, P]
    done: set[tuple[str, int]] = field(default_factory=set)
    references: Mapping[str, Reference] = field(default_factory=dict)


@contextmanager
def store_in(folder: Path, *, resumes: bool = False) -> Iterator[Store]:
    """The store of `folder`, held for this run, for two at once would disturb one another's times and store. Both are
    made where they are not there, unless it `resumes` what they hold. Raises UsageError."""
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
    """The sessions that are still to be run: where they are resumed, from the one that is the store's last. Where all
    are finished nothing is planned anew, so no options are needed: the stored plan is followed. Raises UsageError."""
    parts = request.parts()
    if len(parts) == 1 or not request.resume:
        return parts
    with Store.open_to_read(check_resumable(request.out)) as store:
        last = store.last_session()
        done = store.launches_done(last.id) if last is not None else set()
    kinds = [part.kind for part in parts]
    there = last.plan.get("kind", "training") if last is not None else ""
    if last is None or there not in kinds:
        return parts
    first, *others = parts[kinds.index(there) :]
    if isinstance(first, TrainingRequest) and not others and not first.given() and not last.interleaved:
        same = first.suite is not None and load_suite(first.suite).name == last.suite
        if same and not launches_left(Plan.from_dict(last.plan), done):
            return (replace(first, suite=None),)
    return (first, *(replace(part, resume=False) for part in others))


def check_resumable(folder: Path, what: str = "session") -> Path:
    """The store of `folder`. Raises UsageError where there is none whose `what` could be resumed."""
    path = folder / STORE_NAME
    if not os.path.isfile(path):
        raise UsageError(f"{path} does not exist, so it holds no {what} to resume; run without --resume")
    return path


def check_writable(folder: Path, what: str = "output folder", option: str = "--out") -> None:
    """Make `folder` and prove that a file can be written there, else UsageError that names the option."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise UsageError(f"{what} {str(folder)!r} cannot be written: {why}; give another {option}") from error


def check_traces(folder: Path, protocol: AnyProtocol) -> None:
    """Raise UsageError when launches are to leave traces in `folder`/traces and could not."""
    if isinstance(protocol, Protocol) and protocol.traced:
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
    """Record a new session; `interleaved` as `Store.begin_session` takes it, `nodes` are the environments of all where
    it is on several; node 0's is completed with this machine's, which is `about` where several processes tell of it."""
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
    unread = [] if machine.gpus_reason is None else [_unread_devices(machine)]
    for finding in (*unread, *planned.findings):
        store.add_finding(session_id, finding)
    return SessionState(session_id=session_id, plan=planned.plan)


def _unread_devices(machine: Machine) -> Finding:
    if machine.gpus:
        return Finding(
            "no_device_memory",
            f"Health, energy and clocks of the devices are unknown: {machine.gpus_reason}.",
            "Times and torch's memory peaks are complete. For NVIDIA devices, make NVML available (in containers "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility); other devices are not read.",
        )
    return Finding(
        "no_device_memory",
        f"Device memory and health are unknown: {machine.gpus_reason}.",
        "Nothing is missing on a CPU; with NVIDIA devices, install their driver and a CUDA build of torch.",
    )


def resume(
    store: Store, plan: Plan[Any, Any] | None, kind: str = "training", *, label: str | None = None
) -> SessionState[Any, Any]:
    """Return the database's last session, which must be of that kind.

    Raises:
        UsageError: If there is none, if no command launches it, or if it has another `plan` or `label` than given.
    """
    last = store.last_session()
    if last is None:
        raise UsageError(f"{store.path} holds no session to resume; run without --resume")
    if last.interleaved:
        go_on = ab_command(store.path, settings_of(ab_sides(store, last)))
        raise UsageError(f"the last session in {store.path} is one side of an ab; continue both with {go_on!r}")
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
    """Raise UsageError when a session is resumed by another label than it has."""
    if label is not None and label != row.label:
        there = "no label" if row.label is None else f"the label {row.label!r}"
        raise UsageError(
            f"the last session in {store.path} has {there}, and label {label!r} cannot change a session that is "
            "resumed as it was planned; drop --label, or start a new session without --resume"
        )


def check_nodes_of(plan: Plan[Any, Any], machine: Machine) -> None:
    """Raise UsageError where a plan that is resumed needs more or larger nodes than this command was given."""
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
    """A session as it was left. Raises UsageError, with the command to use `instead`, when `plan` is another one."""
    stored = Plan.from_dict(row.plan)
    if plan is not None and not plan.asks_as(stored):
        raise UsageError(
            f"the last session in {store.path} was planned otherwise; resume it with "
            f"{instead!r}, or start a new one without --resume"
        )
    references = {
        case_id: Reference(values.get("loss", {}), values.get("grad_norm", {}))
        for case_id, values in store.reference_values(row.id).items()
    }
    done = store.launches_done(row.id)
    return SessionState(session_id=row.id, plan=stored, done=done, references=references)


def resume_command(store: Path, kind: str = "training", *options: str) -> str:
    """The command that continues the last session of `store`, of that kind, however it was begun; with `options`."""
    command = "collectives" if kind == "collectives" else "run"
    return shlex.join(["parabench", command, "--resume", *options, "--out", str(store.parent)])


def _as_begun(store: Store, row: PlannedSession) -> str:
    """The command that continues a session; of a suite that takes several, with those that follow."""
    kind = row.plan.get("kind", "training")
    if kind == "compute" or (kind == "collectives" and row.argv[1:2] == ["run"]):
        return shlex.join([*row.argv, "--resume", "--out", str(store.path.parent)])
    return resume_command(store.path, kind)


def ab_sides(store: Store, row: PlannedSession) -> dict[str, PlannedSession]:
    """Both sides of the ab of which `row` is one. Raises UsageError where it was stopped before both had begun."""
    sides = store.sides(row.interleaved["run"])
    if set(sides) != SIDES:
        raise UsageError(
            f"the last ab in {store.path} was stopped before both its sides had begun, so there is nothing to "
            "continue; start anew without --resume"
        )
    return sides


def settings_of(sides: Mapping[str, PlannedSession]) -> list[str]:
    """What the sides of an ab were, a and b. Not in all words: the store has no path but its last name, and `...` for a
    value that may be a secret."""
    return [sides[name].interleaved.get("setting", "...") for name in sorted(sides)]


def ab_command(store: Path, settings: Sequence[str], *options: str) -> str:
    """The command that continues the last ab of `store`, of sides with these settings; with `options`."""
    both = chain.from_iterable(zip(("--a", "--b"), settings, strict=True))
    return shlex.join(["parabench", "ab", "--resume", *both, *options, "--out", str(store.parent)])
