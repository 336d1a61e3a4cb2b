"""Modules joined to one script: what each imports runs before it, and what cannot be joined is said."""

from __future__ import annotations

import pytest

from parabench.errors import UsageError
from parabench.report.page import bundle


def joined(**modules):
    texts = {f"{name}.js": text for name, text in modules.items()}

    def read(path):
        if path not in texts:
            raise FileNotFoundError(path)
        return texts[path]

    return bundle(read)


def test_what_a_module_imports_stands_before_it_and_once():
    script = joined(
        start='import { a } from "./one.js";\nimport {\n  b,\n} from "./two.js";\na(b);',
        one="export const a = (n) => n;\nconst own = 1;",
        two='import { a } from "./one.js";\nexport const b = a(1);',
    )
    parts = [script.index(f'modules["{name}.js"] = ') for name in ("one", "two", "start")]
    assert parts == sorted(parts)
    assert script.count('modules["one.js"] = ') == 1
    assert 'const { a } = modules["one.js"];\nconst { b } = modules["two.js"];\na(b);' in script
    assert "const own = 1;\nreturn { a };" in script
    assert "import" not in script
    assert "export" not in script


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({"start": 'import { a } from "./no.js";'}, r"start\.js imports no\.js, which does not exist"),
        ({"start": 'import { a as b } from "./a.js";', "a": "export const a = 1;"}, "is of a kind"),
        ({"start": 'import a from "./a.js";'}, "start.js: 'import a from \"./a.js\";' is of a kind"),
        ({"start": 'import { a } from "lodash";'}, "is of a kind"),
        ({"start": '  import { a } from "./a.js";'}, "at the beginning of a line"),
        ({"start": 'const a = await import("./a.js");'}, "is of a kind"),
        ({"start": "export let a = 1;"}, "is of a kind"),
        ({"start": "const a = 1;\nexport { a };"}, "is of a kind"),
        ({"start": "export default 1;"}, "is of a kind"),
        (
            {
                "start": 'import { a } from "./a.js";',
                "a": 'import { b } from "./b.js";\nexport const a = 1;',
                "b": 'import { a } from "./a.js";\nexport const b = 1;',
            },
            r"b\.js imports a\.js, which imports it; move what both need to a third module",
        ),
    ],
)
def test_what_cannot_be_joined_is_one_line(modules, said):
    with pytest.raises(UsageError, match=said):
        joined(**modules)
