"""What `parabench compare --json` writes, held against its schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "compare.schema.json").read_text())


EVIL = "<script>alert(1)</script> | `code` \x1b[31m\x00 @all #1 [x](http://a.b)\nnext & ]]> --> \u2028"


def check(found):
    """What `found` writes, read back and held against the schema."""
    written = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    jsonschema.Draft202012Validator(SCHEMA).validate(written)
    return written
