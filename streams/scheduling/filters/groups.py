"""Server groups: members on one node, or apart (Nova's ServerGroupAffinityFilter and ServerGroupAntiAffinityFilter).

Anti-affinity is held by the ledger for all schedulers together. Affinity is held through the group's home (rule 10), where all its members
go: the log agrees on one, and the ledger lets nobody in where it was closed. Soft policies only weigh.
"""

from __future__ import annotations

from projections.room import Room
from streams.scheduling.ask import Ask, Check
from streams.scheduling.options import Options


def affinity(ask: Ask, _: Options) -> Check | None:
    """Where the group is at home, or members are if it has no home yet, and where no home of this epoch was closed."""
    group = ask.item.group
    if group is None or group.policy != "affinity":
        return None
    group_id, epoch, homes = group.group_id, group.epoch, ask.group_nodes

    def closed(room: Room) -> bool:
        return epoch <= room.node.homes_closed.get(group_id, 0)

    def why(room: Room) -> str:
        if closed(room):
            return f"closed as a home of group {group_id}"
        return f"group {group_id} is on {', '.join(sorted(homes)[:3])}"

    if not homes:
        return Check(lambda rooms: [r for r in rooms if not closed(r)], why)
    return Check(lambda rooms: [r for r in rooms if r.node_id in homes and not closed(r)], why)


def forced_home(ask: Ask, options: Options) -> Check | None:
    """`affinity` for a forced request, which the policy's filters are not asked about: force does not split a group."""
    return affinity(ask, options) if ask.item.forced else None


def anti_affinity(ask: Ask, _: Options) -> Check | None:
    """Where fewer members are than one node may have, and where the instance itself is: it may stay there (Nova's rule)."""
    group = ask.item.group
    if group is None or group.policy != "anti-affinity":
        return None
    group_id, most, own = group.group_id, group.max_per_node, ask.instance_id
    return Check(
        lambda rooms: [r for r in rooms if len(r.members(group_id)) < most or own in r.instances],
        lambda room: f"{len(room.members(group_id))} of at most {most} of group {group_id} are there",
    )
