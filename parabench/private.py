"""What a record does not hold: where things lie on this machine, and what this process was given to keep secret.

People send stores and reports to others. Of a path its last name is kept, of one in site-packages what follows; of a
value that may be a secret nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from urllib.parse import unquote

HIDDEN = "..."

# Options that say where results go and nothing of what is measured; each takes a value.
PLACES = {
    "--basetemp", "--benchmark-json", "--benchmark-storage", "--html", "--json", "--junit", "--junit-xml", "--junitxml",
    "--log-file", "--markdown", "--out", "--parabench-out", "--rootdir", "--series", "--template",
}  # fmt: skip
# Of pytest's options those whose values are recorded: the others are of any plugin.
OF_PYTEST = ("--parabench-", "--benchmark-")
SHORT_OF_PYTEST = {"-k", "-m", "-n"}

# Variables whose name says that the value is secret, and how long a value is that is no word of any text.
SECRET = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|JWT|(?:KEY|TOKEN)S?$|(?:^|_)(?:KEY|TOKEN|AUTH)_"
    r"|_(?:AUTH|DSN|PASS|PAT|PWD)$",
    re.IGNORECASE,
)
LEAST_CHARACTERS = 6

# What is the kernel's own, not a user's.
_SYSTEM = ("/dev/", "/proc/", "/sys/")
# An absolute path of two names or more, where one may begin; of a traceback's file all up to the quotation mark.
_QUOTED = re.compile(r"""(?P<quote>["'])(?P<path>(?:file://)?[~]?/[^"'\n]*)(?P=quote)""")
_BARE = re.compile(r"""(?<![\w.\-/~"'])(?:file://)?~?(?:/[^\s/"'<>|:,;()\[\]]+){2,}/?""")
_USER = re.compile(r"(?<=://)[^/\s@]+@")
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/(.+)")
# Where this package lies, which need not be there.
_OURS = f"{Path(__file__).parents[1]}/"


def public_text(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """An error's or a traceback's text without paths and secrets."""
    shown = _USER.sub(f"{HIDDEN}@", without_secrets(text, environ))
    shown = _QUOTED.sub(lambda found: f"{found['quote']}{_public_path(found['path'])}{found['quote']}", shown)
    return _BARE.sub(lambda found: _public_path(found[0]), shown)


def without_secrets(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text with `...` for every value of a variable that may be secret."""
    for value in _secrets(environ):
        text = text.replace(value, HIDDEN)
    return text


def public_argv(argv: Sequence[str]) -> list[str]:
    """The words of a command line that say what is measured; of a path that leads away from here its last name."""
    return [_public_word(word) for word in _told(argv)]


def _told(argv: Sequence[str]) -> Iterator[str]:
    pytest = argv[:1] == ["pytest"]
    words = iter(argv)
    for word in words:
        option, equals, _ = word.partition("=")
        if option in PLACES:
            if not equals:
                next(words, None)
        elif pytest and option.startswith("-") and not (option.startswith(OF_PYTEST) or option in SHORT_OF_PYTEST):
            yield f"{option}={HIDDEN}" if equals else option
        else:
            yield word


def _public_word(word: str) -> str:
    # What follows the scheme of an address is no path of this machine.
    parts = re.split(r"(://[^=,\s'\"]*|[=:,\s'\"]+)", _USER.sub(f"{HIDDEN}@", word).replace("file://", ""))
    return "".join(_last(part) if _leads_away(part) else part for part in parts)


def _leads_away(part: str) -> bool:
    return part.startswith(("/", "~")) or ".." in PurePath(part).parts


def _last(path: str) -> str:
    return PurePath(path).name or path


def _public_path(path: str) -> str:
    plain = path.removeprefix("file://")
    if plain.startswith(_SYSTEM):
        return path
    if plain.startswith(f"{_OURS}parabench/"):
        return plain.removeprefix(_OURS)
    inside = _PACKAGES.fullmatch(plain)
    return inside[1] if inside else _last(plain)


def _secrets(environ: Mapping[str, str]) -> Iterable[str]:
    """Values that may be secret, the longest first: one may be a part of another."""
    found = {value for name, value in environ.items() if SECRET.search(name)}
    for value in environ.values():
        user = re.search(r"://([^/\s@]*)@", value)
        if user:
            parts = [user[1], *user[1].split(":")[1:]]
            found |= {*parts, *map(unquote, parts)}
    return sorted((value for value in found if len(value) >= LEAST_CHARACTERS), key=len, reverse=True)
