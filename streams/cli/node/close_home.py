"""`claimlog node close-home`: the operator's word that an affinity group does not live on a node any more, though members are there."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

from cyclopts import Parameter

from schemas.partitioner import partition_of
from streams.cli.exits import Exit
from streams.cli.flags import LogFlag
from streams.cli.printed.printable import printable, say
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import opened
from streams.cli.reading.state import State
from streams.cli.reading.state_at import ledger_partitions, state_at
from streams.cli.writing import appended_to, check_writable, new_stamp
from streams.operator import close_home as close_home_message

GroupName = Annotated[str, Parameter(name="--group", help="The affinity group, by its id.")]


def close_home(node: Annotated[str, Parameter(help="The node, by its hostname.")], /, *, group: GroupName, log: LogFlag = None) -> int:
    """Close a dead node as the home of an affinity group, members or not: its next members get another home.

    Needed only while members are held there; schedulers leave an empty home by themselves. A node that is neither disabled nor silent may
    be chosen again: disable it first.
    """
    with opened(log) as source:
        check_writable(source)
        partitions = ledger_partitions(source)
        concerned = {partition_of(name.encode(), partitions) for name in (node, group)}
        state = state_at(source, views=False, pending=False, only=concerned)
        epoch = _epoch(state, node, group)
        position, _ = appended_to(state, source, close_home_message(node, group, epoch, new_stamp()))
        row = state.node(node)
    if row is None or row.homes_closed.get(group, 0) < epoch:
        say(f"{position}: written, but the home is open after it; ask again")
        return Exit.ERROR
    left = len(row.members(group))
    stay = f"; {left} member{' is' if left == 1 else 's are'} left there" if left else ""
    print(printable(f"{node}: home of {group} closed (epoch {epoch}){stay}"))
    if row.status == "enabled" and row.silent_since_ms is None:
        again = f"claimlog node disable {quote(node)} --reason WORDS, and close it again if it does"
        say(f"{node} still takes instances, so it may become the group's home once more: {again}")
    say(str(position))
    return 0


def _epoch(state: State, node: str, group: str) -> int:
    """The epoch of the group's open home, which must be this node. Raises UsageProblem."""
    home = state.ledgers[partition_of(group.encode(), state.partitions)].homes(group)
    if home is None:
        raise UsageProblem(f"group {group} has no home: no member of it was ever placed, or its policy is another than affinity")
    if home.node_id != node:
        raise UsageProblem(f"group {group} is at home on {home.node_id}, not on {node}")
    row = state.node(node)
    if row is not None and row.homes_closed.get(group, 0) >= home.epoch:
        raise UsageProblem(f"the home of group {group} on {node} is closed already; its next member gets another")
    return home.epoch
