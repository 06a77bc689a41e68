"""`claimlog completion`: what a shell reads to complete verbs, their flags and the values that are known beforehand."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Whose script.")], /) -> int:
    """A script for a shell, on stdout, that completes verbs, flags and their choices; it reads no log.

    Where each shell looks for it: bash in ~/.local/share/bash-completion/completions/claimlog, zsh in _claimlog in a folder of its fpath,
    fish in ~/.config/fish/completions/claimlog.fish.
    """
    from streams.cli.main import VERBS, assembled

    script = assembled(VERBS).generate_completion(prog_name="claimlog", shell=shell)
    print(script.replace("complete -F ", "complete -o default -F "))  # Where bash is told nothing, names of files: `fleet apply`, `place`.
    return 0
