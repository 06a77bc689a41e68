"""`claimlog completion`: the script of each shell, and what real ones make of theirs."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streams.cli.main import VERBS, run

COMPLETED = {
    ("no",): {"node", "nodes"},
    ("node", "dis"): {"disable"},
    ("nodes", "--so"): {"--sort"},
    ("nodes", "-o", ""): {"table", "wide", "json", "jsonl", "value"},
    ("claims", "release", "r1/0/s-1.1", "--reas"): {"--reason"},
    ("claims", "list", "--state", "un"): {"unconfirmed"},
    ("help", "leak"): {"leaks"},
    ("fleet", "apply", ""): set(),
}

INTO_ZSH = {
    "in its fpath": "fpath=($PWD $fpath); autoload -Uz compinit; compinit -D -u",
    "sourced": "autoload -Uz compinit; compinit -D -u; . ./_claimlog",
}


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_knows_every_verb(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)

    assert [verb.name for verb in VERBS if verb.name not in text] == []


def test_bash_completes_verbs_flags_and_their_choices_and_else_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [script("bash", capsys)]
    for words in COMPLETED:
        quoted = " ".join(f"'{word}'" for word in words)
        lines += [f'COMP_WORDS=(claimlog {quoted}); COMP_CWORD={len(words)}; COMPREPLY=(); _claimlog; echo "${{COMPREPLY[*]}}"']
    file = tmp_path / "complete.bash"
    file.write_text("\n".join([*lines, "complete -p claimlog", ""]))

    done = subprocess.run(["bash", "--noprofile", "--norc", str(file)], capture_output=True, text=True, check=True, timeout=60)

    *found, registered = done.stdout.splitlines()
    assert dict(zip(COMPLETED, (set(line.split()) for line in found), strict=True)) == COMPLETED
    assert registered == "complete -o default -F _claimlog claimlog"
    assert done.stderr == ""


def test_fish_completes_verbs_flags_and_their_choices_and_else_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("fish")
    (tmp_path / "ratios.toml").touch()
    lines = [script("fish", capsys)]
    for line in ("claimlog node dis", "claimlog nodes --so", "claimlog nodes -o ", "claimlog fleet apply rat"):
        lines += [f"echo (complete -C '{line}' | cut -f 1 | sort)"]

    done = subprocess.run(["fish", "--no-config", "-c", "\n".join(lines)], capture_output=True, text=True, cwd=tmp_path, timeout=60)

    assert done.stdout.splitlines() == ["disable", "--sort", "json jsonl table value wide", "ratios.toml"]
    assert done.stderr == ""


@pytest.mark.parametrize("way", ["in its fpath", "sourced"])
def test_zsh_completes_verbs_flags_and_their_choices_and_else_files(way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("zsh")
    (tmp_path / "ratios.toml").touch()
    (tmp_path / "_claimlog").write_text(script("zsh", capsys))

    with typing_into_zsh(tmp_path, INTO_ZSH[way]) as typed:
        assert typed("claimlog node dis\t", "disable ") == "claimlog node disable "
        assert typed("claimlog nodes --so\t", "sort ") == "claimlog nodes --sort "
        assert typed("claimlog claims list --state un\t", "confirmed ") == "claimlog claims list --state unconfirmed "
        assert typed("claimlog fleet apply rat\t", ".toml ") == "claimlog fleet apply ratios.toml "


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt install {shell}")


class Typing:
    """Keys sent to a terminal, and what its line shows."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        # Not by select(), which takes no descriptor above 1023: a run of all tests may have so many open.
        self._poll = select.poll()
        self._poll.register(terminal, select.POLLIN)

    def __call__(self, keys: str, ends_with: str) -> str:
        """The line as it is drawn once it ends in this; what it was after half a minute, where it never does. It is cleared behind it."""
        os.write(self._terminal, keys.encode())
        shown, until = "", time.monotonic() + 30
        while time.monotonic() < until and not shown.endswith(ends_with):
            if self._poll.poll(200):
                shown += re.sub("\x1b\\[[0-9;?]*[a-zA-Z]|[\r\n\x07]", "", os.read(self._terminal, 1 << 16).decode())
        os.write(self._terminal, b"\x15")  # Ctrl-U.
        return shown.rpartition("$ ")[2].lstrip()


@contextmanager
def typing_into_zsh(folder: Path, first: str) -> Iterator[Typing]:
    """An interactive zsh that has read these commands."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe("zsh", ["zsh", "-f", "-i"], os.environ | {"TERM": "dumb"})
    typed = Typing(terminal)
    try:
        typed(f"unsetopt zle prompt_cr prompt_sp; stty columns 200; {first}; PS1='$ '; setopt zle; echo re''ady\n", "ready$ ")
        yield typed
    finally:
        os.close(terminal)
        os.waitpid(process, 0)
