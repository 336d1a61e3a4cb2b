"""Every code of a warning is documented, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import parabench
from every_warning import DOCUMENTED
from parabench.store import record
from parabench.workloads import verify

ROOT = Path(parabench.__file__).parent


def codes_of(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the code of each Finding and Rule: its first argument, or `code`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in {"Finding", "Rule"}:
            yield next((one.value for one in node.keywords if one.arg == "code"), None) or node.args[0]


def named(code: ast.expr) -> set[str]:
    """Return the possible values of an expression; formatted parts may be anything."""
    if isinstance(code, ast.Constant):
        return {code.value}
    if isinstance(code, ast.Name) and code.id.isupper():
        return {next(getattr(module, code.id) for module in (record, verify) if hasattr(module, code.id))}
    if isinstance(code, ast.IfExp):
        return named(code.body) | named(code.orelse)
    if isinstance(code, ast.JoinedStr):
        parts = [re.escape(str(one.value)) if isinstance(one, ast.Constant) else r"\w+" for one in code.values]
        found = {name for name in DOCUMENTED if re.fullmatch("".join(parts), name)}
        assert found, ast.unparse(code)
        return found
    return set()


def used() -> dict[str, str]:
    """Return every code in the source with its file."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        for code in codes_of(ast.parse(path.read_text(encoding="utf-8"))):
            found |= dict.fromkeys(named(code), str(path.relative_to(ROOT)))
    return found


def test_codes_in_the_source_are_those_in_the_docs():
    found = used()
    assert len(found) > 30
    assert {code: path for code, path in found.items() if code not in DOCUMENTED} == {}
    assert set(DOCUMENTED) - set(found) == set()
    assert list(DOCUMENTED) == sorted(DOCUMENTED)
