"""Nodes as people name them: by their names or by patterns, and what to say of one that nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from cyclopts import Parameter

from schemas.few import few
from streams.cli.problems import UsageProblem

NAMED_MAX = 10


NodeNames = Annotated[str, Parameter(help="Only these; patterns such as 'c0*' are welcome.", show_default=False)]


def matching(known: Sequence[str], names: Sequence[str]) -> list[str]:
    """Of `known` nodes those that `names` (or patterns) name, sorted; all without names. Raises UsageProblem for one that names none."""
    if not names:
        return list(known)
    chosen: set[str] = set()
    for name in names:
        found = [node_id for node_id in known if node_id == name] or [node_id for node_id in known if fnmatchcase(node_id, name)]
        if not found:
            raise UsageProblem(unknown_node(name, known))
        chosen.update(found)
    return sorted(chosen)


def unknown_node(name: str, known: Sequence[str]) -> str:
    """What to say of a node that the ledger does not know."""
    if not known:
        return f"node {name!r} is not known: no node has been reported yet"
    return f"node {name!r} is not known; known: {few(known, NAMED_MAX)}"
