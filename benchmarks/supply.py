"""Check the licenses of the packages that parabench needs to run.

    python -m benchmarks.supply licences
    python -m benchmarks.supply requirements

The packages are the installed dependencies of `pyproject.toml`, with their own dependencies; development tools are not
among them. `licences` prints the license of each from its metadata; the exit code is 1 if one is not in LICENCES.
`requirements` prints their versions for pip-audit (`make audit`).
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = "parabench"
# Compatible with the license of parabench; MPL-2.0 applies to its own files only. Exceptions widen the permissions of a
# license. The last lines are texts of older packages that have no SPDX expression.
LICENCES = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0",
    "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib", "Zlib-acknowledgement", "LLVM-exception", "GCC-exception-3.1",
    "Apache 2.0", "Apache License 2.0", "Apache Software License", "BSD", "BSD License", "BSD 2-Clause License",
    "BSD 3-Clause License", "ISC License (ISCL)", "MIT License", "Mozilla Public License 2.0 (MPL 2.0)",
    "Python Software Foundation License",
}  # fmt: skip
# torch built for CUDA needs NVIDIA's libraries. Their license allows use and redistribution, and no changes. parabench
# does not link to them.
ALSO_ALLOWED = ("nvidia-", "cuda-")


def needed() -> list[Distribution]:
    """Return the installed packages that parabench needs to run, sorted by name."""
    found: dict[str, Distribution] = {}
    left = [(PROJECT, frozenset[str]())]
    seen = set()
    while left:
        name, extras = left.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is needed and not installed; make install") from None
        left += [
            (canonicalize_name(need.name), frozenset(need.extras))
            for need in map(Requirement, found[name].requires or [])
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""})
        ]
    del found[PROJECT]
    return [found[name] for name in sorted(found)]


def licence(package: Distribution) -> str:
    """Return the license of a package: an SPDX expression if possible, else the words of its metadata."""
    fields = package.metadata
    if expressions := fields.get_all("License-Expression"):
        return expressions[0]
    words = [each.rpartition(" :: ")[2] for each in fields.get_all("Classifier") or [] if each.startswith("License ::")]
    words = [each for each in words if each != "OSI Approved"] or fields.get_all("License") or []
    return " AND ".join(each.strip().partition("\n")[0] for each in words)  # the first line of a text is its name


def allowed(package: Distribution) -> bool:
    """Return whether every license of a package is in LICENCES; one suffices of a choice (OR)."""
    choices = licence(package).replace("(", "").replace(")", "").split(" OR ")
    nvidia = canonicalize_name(package.name).startswith(ALSO_ALLOWED)
    return nvidia or any(LICENCES.issuperset(re.split(" (?:AND|WITH) ", each)) for each in choices)


def licences() -> int:
    refused = 0
    for package in needed():
        refused += not allowed(package)
        mark = "" if allowed(package) else "NOT ALLOWED  "
        print(f"{mark}{package.name} {package.version}: {licence(package) or 'unknown'}")
    print(f"licences: {f'{refused} not allowed' if refused else 'all allowed'}")
    return bool(refused)


if __name__ == "__main__":
    if sys.argv[1] == "licences":
        sys.exit(licences())
    for package in needed():
        print(f"{package.name}=={Version(package.version).public}")  # PyPI has no builds such as +cpu
