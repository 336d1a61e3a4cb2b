"""Remove the paths of this machine and secrets from texts, because people send results databases to others.

Paths are reduced to their last name, or to the part that follows site-packages. Values that may be secret are replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from urllib.parse import unquote

HIDDEN = "..."

# Options for the places of results, which do not affect a measurement; each takes a value.
PLACES = {
    "--basetemp", "--benchmark-json", "--benchmark-storage", "--html", "--json", "--junit", "--junit-xml", "--junitxml",
    "--log-file", "--markdown", "--out", "--parabench-out", "--rootdir", "--series",
}  # fmt: skip
# The options of pytest whose values are recorded. Other options can belong to any plugin.
OF_PYTEST = ("--parabench-", "--benchmark-")
SHORT_OF_PYTEST = {"-k", "-m", "-n"}

# Names of variables with secret values; shorter values could be a part of any text.
SECRET = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|JWT|(?:KEY|TOKEN)S?$|(?:^|_)(?:KEY|TOKEN|AUTH)_"
    r"|_(?:AUTH|DSN|PASS|PAT|PWD)$",
    re.IGNORECASE,
)
LEAST_CHARACTERS = 6

# Paths of the kernel.
_SYSTEM = ("/dev/", "/proc/", "/sys/")
# A path in quotation marks, as in a traceback, and an absolute path of two or more names without.
_QUOTED = re.compile(r"""(?P<quote>["'])(?P<path>(?:file://)?[~]?/[^"'\n]*)(?P=quote)""")
_BARE = re.compile(r"""(?<![\w.\-/~"'])(?:file://)?~?(?:/[^\s/"'<>|:,;()\[\]]+){2,}/?""")
_USER = re.compile(r"(?<=://)[^/\s@]+@")
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/(.+)")
# The parent folder of this package.
_OURS = f"{Path(__file__).parents[1]}/"


def public_text(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a text, such as a traceback, without the paths of this machine and without secrets."""
    secrets = {value for name, value in environ.items() if SECRET.search(name)}
    for value in environ.values():
        if user := re.search(r"://([^/\s@]*)@", value):
            parts = [user[1], *user[1].split(":")[1:]]
            secrets |= {*parts, *map(unquote, parts)}
    for value in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        if len(value) >= LEAST_CHARACTERS:
            text = text.replace(value, HIDDEN)
    text = _USER.sub(f"{HIDDEN}@", text)
    text = _QUOTED.sub(lambda found: f"{found['quote']}{_public_path(found['path'])}{found['quote']}", text)
    return _BARE.sub(lambda found: _public_path(found[0]), text)


def _public_path(path: str) -> str:
    plain = path.removeprefix("file://")
    if plain.startswith(_SYSTEM):
        return path
    if plain.startswith(f"{_OURS}parabench/"):
        return plain.removeprefix(_OURS)
    inside = _PACKAGES.fullmatch(plain)
    return inside[1] if inside else PurePath(plain).name or plain


def public_argv(argv: Sequence[str]) -> list[str]:
    """Return the words of a command line that affect a measurement, without secrets.

    Paths outside the working directory are reduced to their last name.
    """
    pytest, kept = argv[:1] == ["pytest"], []
    words = iter(argv)
    for word in words:
        option, equals, _ = word.partition("=")
        if option in PLACES:
            if not equals:
                next(words, None)
        elif pytest and option.startswith("-") and not (option.startswith(OF_PYTEST) or option in SHORT_OF_PYTEST):
            kept.append(f"{option}={HIDDEN}" if equals else option)
        else:
            # The part after the scheme of a URL is not a path of this machine.
            plain = _USER.sub(f"{HIDDEN}@", word).replace("file://", "")
            parts = re.split(r"(://[^=,\s'\"]*|[=:,\s'\"]+)", plain)
            kept.append("".join(PurePath(part).name or part if _is_outside(part) else part for part in parts))
    return kept


def _is_outside(path: str) -> bool:
    return path.startswith(("/", "~")) or ".." in PurePath(path).parts
