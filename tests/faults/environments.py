"""Run sessions in unusual environments: separate namespaces, limits, another user.

Mounts, interfaces and host names are changed in the session's namespaces, never on the machine.
"""

import os
import shutil
import subprocess
import zlib
from collections.abc import Mapping
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
class Environment:
    """The environment of a session.

    `shell` runs first, as root, in new `namespaces`, with the trial's folder as $F and a user's number as $U. Then the
    words of `user` start the session. Variables of `environment` that are None are unset. The session must succeed,
    unless `refused` has the message of its refusal before the first launch, or launches `may` have another status.
    """

    shell: str = ""
    namespaces: str = "--mount"
    user: str = ""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    may: tuple[str, ...] = ()

    def command(self, trial: Trial) -> list[str]:
        """Return the command that runs the trial's session in this environment."""
        unset = "".join(f"unset {name}\n" for name, value in self.environment.items() if value is None)
        user = FIRST_USER + zlib.crc32(str(trial.folder).encode()) % USERS
        script = f'set -e\nF={trial.folder}\nU={user}\n{self.shell}\n{unset}exec {self.user} "$@"'
        return ["unshare", *self.namespaces.split(), "sh", "-c", script, "sh", *trial.command()]


@cache
def check_namespaces() -> None:
    """Raise CannotTry if this user cannot make namespaces."""
    missing = [each for each in ("unshare", "setpriv", "ip") if shutil.which(each) is None]
    if missing or os.geteuid() != 0:
        raise CannotTry(f"it needs root{' and '.join(['', *missing])}")
    if subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, check=False).returncode:
        raise CannotTry("namespaces cannot be made here")


def shm(size: str, more: str = "") -> str:
    """Return the command that mounts a memory file system of a size, as containers have it."""
    return f"mount -t tmpfs -o size={size} tmpfs /dev/shm\n{more}"


LOOPBACK_UP = "ip link set lo up"

# Only the trial's folder, or the results in it, can be written.
ONLY_FOLDER = "mount --bind $F $F\nmount -o remount,bind,ro /\ncd $F"
ONLY_RESULTS = "mkdir -p $F/results\nmount --bind $F/results $F/results\nmount -o remount,bind,ro /\ncd $F"
OWN_FOLDER = "chown -R $U:$U $F"

ENVIRONMENTS = {
    "/dev/shm of 64 MB": Environment(shm("64m")),
    "/dev/shm of 1 MB": Environment(shm("1m")),
    "/dev/shm full": Environment(
        shm("1m", "cat /dev/zero > /dev/shm/full 2> /dev/null || true"),
        refused=("/dev/shm cannot be used: No space left on device", "--shm-size"),
    ),
    "64 descriptors": Environment("ulimit -n 64"),
    # Ranks that get no thread: gloo may abort as it makes a group, or hang there.
    "20 processes": Environment(OWN_FOLDER, user=f"prlimit --nproc=20 {ANOTHER}", may=("crashed", "failed", "hung")),
    "/ read-only": Environment(ONLY_FOLDER),
    "all but /dev/shm and the results read-only": Environment(ONLY_RESULTS),
    "TMPDIR does not exist": Environment(environment={"TMPDIR": "/not/there"}),
    "HOME unset": Environment(environment={"HOME": None}),
    "a user without a name": Environment(OWN_FOLDER, user=ANOTHER, environment={"HOME": None}),
    "umask 077": Environment("umask 077"),
    "no /proc": Environment("mount -t tmpfs tmpfs /proc", refused=("/proc/", "mount -t proc")),
    "loopback only": Environment(LOOPBACK_UP, "--mount --net"),
    "loopback down": Environment("", "--mount --net", refused=("loopback", LOOPBACK_UP)),
    "no IPv6": Environment(f"{LOOPBACK_UP}\nsysctl -q -w net.ipv6.conf.all.disable_ipv6=1", "--mount --net"),
    "a host name that does not resolve": Environment(f"hostname no-such-host\n{LOOPBACK_UP}", "--mount --net --uts"),
    "no resolver": Environment("mount --bind /dev/null /etc/resolv.conf"),
}


def surroundings(random: Random) -> Verdict:
    """Run a session in a random environment. If it is refused, resume it in the usual environment."""
    check_namespaces()
    name = random.choice(list(ENVIRONMENTS))
    chosen = ENVIRONMENTS[name]
    with Trial(name) as trial:
        given = {key: value for key, value in chosen.environment.items() if value is not None}
        driver = trial.start(command=chosen.command(trial), environment=given)
        code = trial.ended(driver)
        if chosen.refused:
            trial.check_left_behind()
            trial.check_exit(driver, code, USAGE)
            trial.check_output(driver, *chosen.refused)
            trial.check_statuses(trial.check_kept(driver))
            trial.check_statuses(trial.resume())
        else:
            rows = trial.check_complete(driver, code)
            trial.check_statuses(rows, chosen.may, most=len(rows) if chosen.may else 0)
    return trial.verdict


FAMILIES = {"surroundings": surroundings}
