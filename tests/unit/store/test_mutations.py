"""Each kind of fault of a store, and of the other files that commands read, a few times: an answer, or one line.

`python -m tests.faults.reading` tries ten thousand.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.faults import files, outputs, reading, stores
from tests.faults.mutations import MUTATIONS, mutate
from tests.faults.naughty import CALL


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    files.make(folder)
    return folder


@pytest.mark.parametrize("kind", MUTATIONS)
def test_a_store_is_answered_from_or_refused_in_a_line(made, tmp_path, kind):
    assert list(stores.of_store((kind,), made, tmp_path, Random(f"1 {kind}"))) == []


@pytest.mark.parametrize("family", files.FAMILIES)
def test_another_file_is_read_or_refused_in_a_line(made, family):
    for number in range(3):
        assert reading.tried(family, 1, number, made) == []


def test_a_mutation_is_made_again_by_its_seed(made, tmp_path):
    sound = stores.base(made, "planned")
    for kind in MUTATIONS:
        copies = [tmp_path / "one.db", tmp_path / "two.db"]
        for copy in copies:
            copy.write_bytes(sound.read_bytes())
        said = [mutate(copy, Random(kind), kind) for copy in copies]
        assert said[0] == said[1]
        # Values that are swapped may be alike: launches that began in the same millisecond.
        same = sound.read_bytes() == copies[0].read_bytes()
        assert not same or "0 rows" in said[0] or kind.startswith("swap"), said[0]


def test_what_is_hostile_is_seen():
    """The judges of outputs see what they are for."""
    for judge, text in (
        (outputs.of_terminal, "a\x1b[2J"), (outputs.of_terminal, "a\u202eb"), (outputs.of_terminal, "a\x9b1m"),
        (outputs.of_refusal, "Traceback\n  File"), (outputs.of_json, '{"a": NaN}'), (outputs.of_json, "{"),
        (outputs.of_junit, "<a>\x01</a>"), (outputs.of_junit, "<a>]]></b>"),
        (outputs.of_markdown, "thanks @octocat"), (outputs.of_markdown, "<b>a</b>"), (outputs.of_markdown, "see #12"),
        (outputs.of_markdown, "https://example.invalid"), (outputs.of_markdown, "| a | b |\n| c | d | e |"),
        (outputs.of_markdown, "```\nno end"), (outputs.of_page, "<img src=x>"),
        (outputs.of_page, f"<p onclick={CALL}>"), (outputs.of_page, f"<script>{CALL}</script>"),
        (outputs.of_page, "<a href='javascript:x'>x</a>"),
    ):  # fmt: skip
        arguments = (text, "") if judge is outputs.of_refusal else (text,)
        assert list(judge(*arguments)), text
