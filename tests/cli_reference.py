"""The generated half of docs/cli.md: every command with its arguments and flags, between markers; the rest of the page is by hand.

python -m tests.cli_reference      # writes the page anew after a verb or a flag changed
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any, NamedTuple

from cyclopts import App

from streams.cli.main import VERBS, assembled

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
COMMON = ("--log", "--at", "--since", "--until", "--output", "--column", "--sort", "--headers")
"""Flags that mean the same everywhere: explained once, at the top of the page."""
_BLOCK = re.compile(r"<!-- generated: (?P<name>[\w -]+) -->\n.*?<!-- end -->\n", re.DOTALL)


class Command(NamedTuple):
    """One command: `node show` and its parser."""

    name: str
    app: App


def commands() -> Iterator[Command]:
    """Every command in the order of the overview; of a verb with verbs of its own, those."""
    app = assembled(VERBS)
    for verb in VERBS:
        sub = app[verb.name]
        children = [name for name in sub if not name.startswith("-")]
        if children:
            if sub.default_command is not None:
                yield Command(verb.name, sub)
            yield from (Command(f"{verb.name} {name}", sub[name]) for name in children)
        else:
            yield Command(verb.name, sub)


def flags(command: Command) -> list[str]:
    """Every name of every argument and flag that `--help` shows."""
    return [name for argument in _arguments(command) for name in argument.names]


def block(command: Command) -> str:
    """What is generated for one command."""
    arguments = _arguments(command)
    positional = [argument for argument in arguments if not argument.names[0].startswith("-")]
    usage = " ".join([f"claimlog {command.name}", *(_shape(argument) for argument in positional)])
    lines = [f"<!-- generated: {command.name} -->", f"`{usage}`", "", *_says(command), ""]
    own = [argument for argument in arguments if argument.names[0] not in COMMON]
    if own:
        lines += ["| argument | meaning | default |", "|---|---|---|", *(_row(argument) for argument in own), ""]
    common = [_name(argument) for argument in arguments if argument.names[0] in COMMON]
    lines += [f"Common flags: {', '.join(f'`{name}`' for name in common)}", ""] if common else []
    return "\n".join([*lines, "<!-- end -->", ""])


def page(text: str) -> str:
    """The page with every generated block anew; a command that is not there yet is added at its end."""
    known = {command.name: command for command in commands()}
    there = {found["name"] for found in _BLOCK.finditer(text)}
    for name, command in known.items():
        if name not in there:
            text += f"\n## {name}\n\n{block(command)}"
    return _BLOCK.sub(lambda found: block(known[found["name"]]) if found["name"] in known else "", text)


def _arguments(command: Command) -> list[Any]:
    return [a for a in command.app.assemble_argument_collection(parse_docstring=True) if a.show and a.names and a.names[0] != "*"]


def _says(command: Command) -> list[str]:
    """What the command's own docstring says, without its arguments, which stand in the table."""
    return cleandoc(command.app.help or "").split("\n\nArgs:")[0].splitlines()


def _shape(argument: Any) -> str:
    name = argument.names[0]
    many = "..." if isinstance(argument.field_info.default, tuple) or "tuple" in str(argument.hint) else ""
    return f"{name}{many}" if argument.required else f"[{name}{many}]"


def _name(argument: Any) -> str:
    return ", ".join(argument.names)


def _row(argument: Any) -> str:
    default = argument.field_info.default
    shown = "required" if argument.required else "" if default in {None, "", (), False, argument.field_info.empty} else str(default)
    choices = ", ".join(f"`{choice}`" for choice in argument.get_choices() or ())
    meaning = f"{argument.parameter.help or ''}{f' One of {choices}.' if choices else ''}".strip().replace("|", "\\|").replace("\n", " ")
    return f"| `{_name(argument)}` | {meaning} | {f'`{shown}`' if shown and shown != 'required' else shown} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
