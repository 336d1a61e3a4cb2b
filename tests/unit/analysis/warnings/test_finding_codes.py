"""Every code of a warning is documented. `warnings.txt` in tests/golden has a warning of each documented code."""

import re
from pathlib import Path

import parabench
from every_warning import DOCUMENTED


def test_codes_in_the_source_are_in_the_docs():
    found = {}
    for path in Path(parabench.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= dict.fromkeys(re.findall(r'\b(?:Finding|Rule)\(\s*(?:code=)?"(\w+)"', text), path.name)
    assert len(found) > 30
    assert {code: path for code, path in found.items() if code not in DOCUMENTED} == {}
    assert list(DOCUMENTED) == sorted(DOCUMENTED)
