"""What parabench brings with it: the licences of the packages that it needs to run, and their known vulnerabilities.

    python -m benchmarks.supply licences
    python -m benchmarks.supply vulnerabilities PIP_AUDIT

The packages are those that are installed here of `pyproject.toml`'s dependencies, of what these need themselves, and so
on; what only a developer needs is not among them. `licences` prints each with its licence as its metadata tells it, and
ends with 1 where one is not in LICENCES. `vulnerabilities` gives their versions to pip-audit (its program), which asks
PyPI; it ends with 1 where one is known, and says which packages PyPI would tell nothing of.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = "parabench"
# Whoever may use parabench under its own licence may use it with these too.
LICENCES = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CNRI-Python",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "MPL-2.0",  # of its own files alone: nothing of parabench is among them
    "PSF-2.0",
    "Unlicense",
    "Zlib",
    "Zlib-acknowledgement",
}
# An exception widens what a licence allows.
EXCEPTIONS = {"LLVM-exception", "GCC-exception-3.1"}
# Of packages that are older than licence expressions: what their classifier or their field of free text means.
WORDS = {
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
# Packages that are allowed under another licence.
ARGUED = {
    # What torch's CUDA build runs on. NVIDIA lets anybody use and pass on these libraries, and nobody change them;
    # nothing of parabench is linked to them, and without a GPU none is installed.
    "nvidia-": "NVIDIA's CUDA libraries, which torch brings where it is built for CUDA",
    "cuda-": "NVIDIA's CUDA libraries, which torch brings where it is built for CUDA",
}


def needed() -> list[Distribution]:
    """The installed packages that parabench needs to run, by name."""
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
        left += _needs(found[name], extras)
    del found[PROJECT]
    return [found[name] for name in sorted(found)]


def _needs(of: Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for text in of.requires or []:
        need = Requirement(text)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield canonicalize_name(need.name), frozenset(need.extras)


def licence(of: Distribution) -> str:
    """The licence of a package as an SPDX expression where its metadata has one or words that mean one; else those
    words, or nothing."""
    told = of.metadata.get_all("License-Expression") or []
    if told:
        return told[0]
    classifiers = [each for each in of.metadata.get_all("Classifier") or [] if each.startswith("License ::")]
    words = [each.rpartition(" :: ")[2] for each in classifiers]
    words = [each for each in words if each != "OSI Approved"] or (of.metadata.get_all("License") or [])
    # A whole text of a licence has its name in the first line.
    return " AND ".join(WORDS.get(each, each) for each in (each.strip().partition("\n")[0] for each in words))


def allowed(expression: str) -> bool:
    """Return whether every license of an expression is in LICENCES; of a choice (OR at the top level) one suffices."""
    try:
        found = canonicalize_license_expression(expression)
    except InvalidLicenseExpression:
        return False
    choices = [found] if "(" in found else found.split(" OR ")
    return any(all(_known(name) for name in re.split(r" (?:AND|OR) ", re.sub("[()]", "", each))) for each in choices)


def _known(name: str) -> bool:
    licence, _, exception = name.partition(" WITH ")
    return licence in LICENCES and (not exception or exception in EXCEPTIONS)


def argued(name: str) -> str:
    """Why a package is allowed whatever its licence; empty where it is not."""
    return next((why for prefix, why in ARGUED.items() if canonicalize_name(name).startswith(prefix)), "")


def licences() -> int:
    refused = 0
    for of in needed():
        told = licence(of)
        why = "" if allowed(told) else argued(of.name)
        good = allowed(told) or bool(why)
        refused += not good
        said = f"{why} ({told or 'unknown'})" if why else told or "unknown"
        print(f"{'' if good else 'NOT ALLOWED  '}{of.name} {of.version}: {said}")
    print(f"licences: {f'{refused} not allowed' if refused else 'all allowed'}")
    return 1 if refused else 0


def vulnerabilities(program: str) -> int:
    packages = needed()
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "requirements.txt"
        # A build such as +cpu is the version's; PyPI knows no builds.
        wanted.write_text("".join(f"{of.name}=={Version(of.version).public}\n" for of in packages))
        words = [program, "-r", str(wanted), "--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
        done = subprocess.run(words, capture_output=True, text=True)
    try:
        told = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        print(f"vulnerabilities: NOT CHECKED: pip-audit gave no answer: {last}")
        return 0
    return report(told)


def report(told: list[dict[str, object]]) -> int:
    """Say what pip-audit told of each package; the exit code."""
    skipped = [str(each["name"]) for each in told if "skip_reason" in each]
    known = [each for each in told if each.get("vulns")]
    for each in known:
        ids = ", ".join(str(one["id"]) for one in each["vulns"])  # type: ignore[attr-defined]
        print(f"VULNERABLE  {each['name']} {each['version']}: {ids}")
    if len(skipped) == len(told):
        print(f"vulnerabilities: NOT CHECKED: PyPI told nothing of any of {len(told)} packages")
    else:
        checked = f"{len(told) - len(skipped)} of {len(told)} packages checked"
        without = f"; NOT CHECKED: {', '.join(skipped)}" if skipped else ""
        print(f"vulnerabilities: {sum(map(bool, known))} packages with known ones, {checked}{without}")
    return 1 if known else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("licences")
    parts.add_parser("vulnerabilities").add_argument("program", help="pip-audit's.")
    given = parser.parse_args()
    sys.exit(licences() if given.part == "licences" else vulnerabilities(given.program))


if __name__ == "__main__":
    main()
