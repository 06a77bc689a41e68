"""`claimlog completion`: the script of each shell, and what a real bash makes of its own."""

from __future__ import annotations

import subprocess
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
