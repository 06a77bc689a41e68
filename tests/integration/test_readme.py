"""The README's console blocks, run line by line in an empty folder: what a newcomer pastes works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from tests.kafka_broker import bootstrap

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DONE = {"0", "3", "4"}
"""Done, findings, cannot be placed: an answer. Anything else would be an error."""


def test_every_command_in_the_console_blocks_of_the_readme_answers(tmp_path: Path) -> None:
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    assert len(commands) > 12
    assert all(line.startswith("$ ") for block in blocks for line in block.splitlines())
    script = ["set -m", "claimlog demo >/dev/null 2>&1"]
    for command in commands:
        # A process in the background needs a moment to make its log.
        follow = "for _ in $(seq 100); do [ -e fleet.sqlite ] && break; sleep 0.1; done; sleep 1" if command.endswith("&") else ":"
        script.append(f'{command}\ncode=$?; {follow}; echo "$code "{shlex.quote(command)} >&3')

    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "BROKER": bootstrap(), "LEDGER": f"readme-{uuid4().hex[:10]}"}
    ended = subprocess.run(
        ["bash", "-c", "exec 3>codes\n" + "\n".join(script)],
        cwd=tmp_path,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
    )

    said = [line.partition(" ") for line in (tmp_path / "codes").read_text().splitlines()]
    assert [command for _, _, command in said] == commands
    assert not [f"{command}: {code}" for code, _, command in said if code not in DONE], ended.stdout


def test_the_two_commands_stand_first() -> None:
    first = re.search(r"```\n(.*?)```", README, re.DOTALL)

    assert first is not None
    assert [line.split("#")[0].strip() for line in first[1].splitlines()] == ["make demo", "make test"]
