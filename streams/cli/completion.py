"""`claimlog completion`: what a shell reads to complete verbs, their flags and the values that are known beforehand."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

# Read by `source` or found as `_claimlog` in a folder of fpath. Where it is told nothing zsh completes names of files; a word that is one
# match is put in at once, where zsh's messages on what is expected would only list it.
_IN_ZSH = """
_claimlog() {
  local insert=$compstate[insert]
  _cyclopts_claimlog "$@" || _files
  (( compstate[nmatches] )) && compstate[insert]=$insert
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _claimlog "$@"
else
  compdef _claimlog claimlog
fi
"""


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Whose script.")], /) -> int:
    """A script for a shell, on stdout, that completes verbs, flags and their choices; it reads no log.

    Where each shell looks for it: bash in ~/.local/share/bash-completion/completions/claimlog, zsh in _claimlog in a folder of its fpath
    (or sourced behind compinit), fish in ~/.config/fish/completions/claimlog.fish.
    """
    from streams.cli.main import VERBS, assembled

    script = assembled(VERBS).generate_completion(prog_name="claimlog", shell=shell)
    if shell == "zsh":
        script = script.rstrip() + "\n" + _IN_ZSH
    print(script.replace("complete -F ", "complete -o default -F "), end="")  # Bash, too, completes names of files: `fleet apply`, `place`.
    return 0
