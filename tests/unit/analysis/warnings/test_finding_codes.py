"""Every finding's code is declared once, and documented."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import parabench
from parabench.analysis.warnings.codes import CODES
from parabench.store import record
from parabench.workloads import verify
from paths import DOCS

ROOT = Path(parabench.__file__).parent
DOCUMENTED = (DOCS / "reference/warnings.md").read_text(encoding="utf-8")


def codes_of(tree: ast.AST) -> Iterator[ast.expr]:
    """What stands for a code: the first argument of a Finding or Problem, or its `code`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in {"Finding", "Problem"}:
            yield next((one.value for one in node.keywords if one.arg == "code"), None) or node.args[0]


def named(code: ast.expr) -> set[str]:
    """The codes that an expression can be; a part that is filled in may be anything. None of what is read back."""
    if isinstance(code, ast.Constant):
        return {code.value}
    if isinstance(code, ast.Name) and code.id.isupper():
        return {next(getattr(module, code.id) for module in (record, verify) if hasattr(module, code.id))}
    if isinstance(code, ast.IfExp):
        return named(code.body) | named(code.orelse)
    if isinstance(code, ast.JoinedStr):
        parts = [re.escape(str(one.value)) if isinstance(one, ast.Constant) else r"\w+" for one in code.values]
        found = {name for name in CODES if re.fullmatch("".join(parts), name)}
        assert found, ast.unparse(code)
        return found
    return set()


def used() -> dict[str, str]:
    """Every code in the source, with a file that makes it."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        for code in codes_of(ast.parse(path.read_text(encoding="utf-8"))):
            found |= dict.fromkeys(named(code), str(path.relative_to(ROOT)))
    return found


def test_every_code_in_the_source_is_declared_and_no_other():
    found = used()
    assert len(found) > 30
    assert {code: path for code, path in found.items() if code not in CODES} == {}
    assert set(CODES) - set(found) == set()


def test_every_code_is_documented_as_it_is_declared():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", DOCUMENTED, re.MULTILINE)
    assert dict(rows) == CODES
    assert [code for code, _ in rows] == sorted(CODES)
