"""docs/cli.md: every command, argument and flag is there as the program has it, and every command with a real call."""

from __future__ import annotations

import re

import pytest

from streams.cli.main import VERBS
from tests.cli_reference import COMMON, PAGE, Command, block, commands, flags, page

TEXT = PAGE.read_text(encoding="utf-8")
EVERY = list(commands())


def section(command: Command) -> str:
    """What the page says under the command's heading."""
    found = re.search(rf"^## {re.escape(command.name)}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


@pytest.mark.parametrize("command", EVERY, ids=lambda command: str(command.name))
def test_every_command_stands_there_with_its_flags_as_the_program_has_them(command: Command) -> None:
    assert block(command) in section(command), "python -m tests.cli_reference writes docs/cli.md anew"
    assert all(f"`{name}`" in TEXT or name in section(command) for name in flags(command))


@pytest.mark.parametrize("command", EVERY, ids=lambda command: str(command.name))
def test_every_command_is_shown_with_a_real_call(command: Command) -> None:
    assert f"$ claimlog {command.name}" in section(command)


def test_the_page_has_no_command_that_the_program_lost() -> None:
    assert page(TEXT) == TEXT
    assert {command.name.split()[0] for command in EVERY} == {verb.name for verb in VERBS}


def test_every_command_has_one_section_and_they_stand_in_the_order_of_the_overview() -> None:
    sections = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)

    assert sections[1:] == [command.name for command in EVERY]


def test_the_flags_that_all_share_are_explained_once() -> None:
    common = TEXT[: TEXT.index("\n## demo")]

    assert [name for name in COMMON if name not in common.replace("--no-headers", "--headers")] == []


def test_the_page_names_no_machine() -> None:
    assert re.findall(r"/(?:root|home|tmp|work)/\S*", TEXT) == []


def test_the_translation_names_only_commands_that_there_are() -> None:
    named = set(re.findall(r"`claimlog ([a-z-]+(?: [a-z]+)?)", (PAGE.parent / "translation.md").read_text(encoding="utf-8")))
    known = {command.name for command in EVERY}

    assert len(named) > 10
    assert {name for name in named if name not in known and name.split()[0] not in known} == set()
