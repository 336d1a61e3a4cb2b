"""Retired phrases do not return to the texts that users read."""

import ast
import re
from collections.abc import Iterator

from paths import ROOT

# {a retired phrase: its replacement}
PHRASES = {
    "doubts?": "warning", "ended well": "succeeded", "held down": "throttled", "is no (file|folder)": "is not a",
    "launches a (side|case)": "per side", "mend": "fix", "nobody can say": "cannot be tested", "not believed": "",
    "speaks? against": "", "st(oo|an)ds? still": "waits, is blocked", "t(old|ell) apart": "distinguishable",
    "would have been found": "minimum detectable slowdown",
}  # fmt: skip


def sentences(module: str) -> Iterator[str]:
    """Return the texts of a module that are not docstrings."""
    tree = ast.parse(module)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_texts_have_no_retired_phrase() -> None:
    texts = {path: "\n".join(sentences(path.read_text())) for path in (ROOT / "parabench").rglob("*.py")}
    for pattern in ("tests/golden/*.txt", "reports/*.html", "reports/script/**/*.js"):
        for path in ROOT.glob(pattern):
            lines = path.read_text().splitlines()
            texts[path] = "\n".join(line for line in lines if not line.lstrip().startswith(("//", "{#")))
    assert len(texts) > 300
    found = [
        f"{path.relative_to(ROOT)}: {phrase} (write {instead or 'something else'})"
        for path, text in texts.items()
        for phrase, instead in PHRASES.items()
        if re.search(rf"\b({phrase})\b", text, re.IGNORECASE)
    ]
    assert found == []
