"""Every command of parabench that README, docs and `--help` show is one that the command line understands."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from command_line import command_of, parabench
from parabench.cli import COMMANDS, main
from parabench.commands.output import Command
from paths import DOCS, ROOT


def commands() -> Iterator[tuple[str, list[str]]]:
    """The page and the arguments of each command, in a block of shell or within a line; none of a synopsis."""
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        text = page.read_text().replace("\\\n", " ")
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        shown = [line for language, block in blocks if language in ("", "sh") for line in block.splitlines()]
        shown += re.findall(r"`(parabench [a-z]+ -[^`]+|parabench [a-z]+ [^`]+ -[^`]+)`", text)
        for line in shown:
            command = re.split(r" #|; echo| \|| &$", line.removeprefix("$ "))[0]
            if command.startswith("parabench ") and not {"[", "..."} & {*re.findall(r"\[|\.\.\.", command)}:
                yield page.name, shlex.split(command)[1:]


def understood(arguments: list[str]) -> str:
    """Parse a command with click without running it; return click's error message."""
    found = command_of(arguments[0])
    if found is None:
        return "no such command"
    try:
        found.make_context(arguments[0], arguments[1:], **main.context_settings)
    except click.ClickException as error:
        return error.format_message()
    return ""


def test_every_command_of_the_documents_is_understood() -> None:
    shown = [*commands()]
    assert len(shown) > 40
    assert [(page, arguments, why) for page, arguments in shown if (why := understood(arguments))] == []


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_help_ends_with_examples_that_are_understood(command: str) -> None:
    found = command_of(command) if command else main
    assert isinstance(found, Command), f"parabench {command} needs examples: cls=Command, examples={{...}}"
    shown = list(found.examples.values())
    assert 2 <= len(shown) <= 4
    said = parabench(*command.split(), "--help").stdout
    assert [line.strip() for line in said.partition("\nExamples:\n")[2].splitlines()[1::2]] == shown
    for line in shown:
        arguments = shlex.split(line.partition("parabench ")[2])
        assert not command or arguments[0] == command
        assert understood(arguments) == "", line
        assert len(line) <= 100
