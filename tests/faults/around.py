"""Run sessions in unusual environments: separate namespaces, limits, another user.

Mounts, interfaces and host names are changed in the session's namespaces, never on the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random

from tests.faults.trial import CannotTry, Trial, Verdict

USAGE = 2

# Each trial has another user without a name and without other processes. It may read every file, because others may not
# read Python's folder.
ANOTHER = "setpriv --reuid $U --regid $U --clear-groups --inh-caps +dac_read_search --ambient-caps +dac_read_search"
FIRST_USER, USERS = 1 << 20, 1 << 20


@dataclass(frozen=True, slots=True)
class Around:
    """The environment of a session.

    `shell` runs first, as root, in new `namespaces`, with the trial's folder as $F and a user's number as $U. Then the
    words of `user` start the session. Variables of `environment` that are None are unset. The session must succeed,
    unless `refused` has the message with which it ends before anything is launched, or launches `may` have another
    status than ok.
    """

    shell: str = ""
    namespaces: str = "--mount"
    user: str = ""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    may: tuple[str, ...] = ()

    def command(self, trial: Trial, words: Sequence[str]) -> list[str]:
        """What runs `words` there."""
        unset = "".join(f"unset {name}\n" for name, value in self.environment.items() if value is None)
        user = FIRST_USER + zlib.crc32(str(trial.folder).encode()) % USERS
        script = f'set -e\nF={trial.folder}\nU={user}\n{self.shell}\n{unset}exec {self.user} "$@"'
        return ["unshare", *self.namespaces.split(), "sh", "-c", script, "sh", *words]


@cache
def check_namespaces() -> None:
    """Raise CannotTry if this user cannot make namespaces."""
    missing = [each for each in ("unshare", "setpriv", "ip") if shutil.which(each) is None]
    if missing or os.geteuid() != 0:
        raise CannotTry(f"it needs root{' and '.join(['', *missing])}")
    if subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, check=False).returncode:
        raise CannotTry("namespaces cannot be made here")


def tried(trial: Trial, around: Around, *options: str) -> None:
    """A session there, and then a resumed one where all is well again."""
    check_namespaces()
    given = {name: value for name, value in around.environment.items() if value is not None}
    driver = trial.start(command=around.command(trial, trial.command(*options)), environment=given)
    code = trial.ended(driver)
    if not around.refused:
        rows = trial.check_complete(driver, code)
        trial.check_statuses(rows, around.may, most=len(rows) if around.may else 0)
        return
    trial.check_orphans()
    trial.check_files()
    trial.check_exit(driver, code, USAGE)
    trial.check_says(driver, *around.refused)
    rows = trial.check_kept(driver)
    trial.check_statuses(rows, around.may, most=len(rows) if around.may else 0)
    trial.check_statuses(trial.resume(), around.may, most=len(rows) if around.may else 0)


def shm(size: str, *, full: bool = False) -> str:
    """A memory file system of that size, as a container has it."""
    fill = "cat /dev/zero > /dev/shm/full 2> /dev/null || true" if full else ""
    return f"mount -t tmpfs -o size={size} tmpfs /dev/shm\n{fill}"


LOOPBACK_UP = "ip link set lo up"

# Only the trial's folder, or the results in it, can be written.
ONLY_FOLDER = "mount --bind $F $F\nmount -o remount,bind,ro /\ncd $F"
ONLY_RESULTS = "mkdir -p $F/results\nmount --bind $F/results $F/results\nmount -o remount,bind,ro /\ncd $F"
SHM_READ_ONLY = "mount -o remount,bind,ro /dev/shm"

HOST = {
    "/dev/shm of 64 MB": Around(shm("64m")),
    "/dev/shm of 1 MB": Around(shm("1m")),
    "/dev/shm full": Around(
        shm("1m", full=True), refused=("/dev/shm cannot be used: No space left on device", "--shm-size")
    ),
    "/dev/shm read-only": Around(
        SHM_READ_ONLY, refused=("/dev/shm cannot be used: Read-only file system", "--shm-size")
    ),
    "64 descriptors": Around("ulimit -n 64"),
    # Ranks that get no thread: gloo may abort as it makes a group, or hang there.
    "20 processes": Around(
        "chown -R $U:$U $F", user=f"prlimit --nproc=20 {ANOTHER}", may=("crashed", "failed", "hung")
    ),
    "7 processes": Around(
        "chown -R $U:$U $F",
        user=f"prlimit --nproc=7 {ANOTHER}",
        refused=("the fork server, which starts the ranks, has ended", "--resume"),
        may=("crashed", "failed", "hung"),
    ),
    "/ read-only": Around(ONLY_FOLDER),
    "only the results can be written": Around(
        f"{ONLY_RESULTS}\n{SHM_READ_ONLY}", refused=("no temporary folder can be written", "TMPDIR")
    ),
    "all but /dev/shm and the results read-only": Around(ONLY_RESULTS),
    "TMPDIR is not there": Around(environment={"TMPDIR": "/not/there"}),
    "HOME unset": Around(environment={"HOME": None}),
    "a user without a name": Around("chown -R $U:$U $F", user=ANOTHER, environment={"HOME": None}),
    "umask 077": Around("umask 077"),
    "umask 0777": Around("chown -R $U:$U $F\numask 0777", user=ANOTHER, refused=("cannot be used: Permission denied",)),
    "no /proc": Around("mount -t tmpfs tmpfs /proc", refused=("/proc/", "mount -t proc")),
    "loopback only": Around(LOOPBACK_UP, "--mount --net"),
    "loopback down": Around("", "--mount --net", refused=("loopback", LOOPBACK_UP)),
    "no IPv6": Around(f"{LOOPBACK_UP}\nsysctl -q -w net.ipv6.conf.all.disable_ipv6=1", "--mount --net"),
    "a host name that does not resolve": Around(f"hostname no-such-host\n{LOOPBACK_UP}", "--mount --net --uts"),
    # Ranks of one machine take loopback, whatever it says.
    "GLOO_SOCKET_IFNAME of no interface": Around(environment={"GLOO_SOCKET_IFNAME": "nothere0"}),
    "no resolver": Around("mount --bind /dev/null /etc/resolv.conf"),
    "standard input closed": Around("exec 0<&-"),
    "working folder deleted": Around(
        "mkdir $F/gone\ncd $F/gone\nrmdir $F/gone", refused=("the working directory was removed",)
    ),
}


def surroundings(lot: Random) -> Verdict:
    """Run a session in one of these environments, chosen at random."""
    name = lot.choice(list(HOST))
    with Trial() as trial:
        tried(trial, HOST[name])
    trial.verdict.words[:] = [f"{name}: {each}" for each in trial.verdict.words]
    return trial.verdict


FAMILIES = {"surroundings": surroundings}
