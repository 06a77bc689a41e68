"""Beside or apart from named instances, and near an address (Nova's SameHostFilter, DifferentHostFilter, SimpleCIDRAffinityFilter)."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from projections.room import Room
from streams.scheduling.ask import Ask, Check, per_node
from streams.scheduling.options import Options


def different_host(ask: Ask, _: Options) -> Check | None:
    """Not where any of the hinted instances is."""
    others = ask.request.hints.different_host
    if not others:
        return None
    return Check(
        lambda rooms: [r for r in rooms if not any(other in r.instances for other in others)],
        lambda room: f"{_here(room, others)} is there, a different node is wanted",
    )


def same_host(ask: Ask, _: Options) -> Check | None:
    """Where at least one of the hinted instances is; an empty name hints at none."""
    others = tuple(filter(None, ask.request.hints.same_host))
    if not others:
        return None
    return Check(
        lambda rooms: [r for r in rooms if any(other in r.instances for other in others)],
        lambda _: f"none of {', '.join(others[:3])} is there",
    )


def near_address(ask: Ask, _: Options) -> Check | None:
    """Nova's SimpleCIDRAffinityFilter: hosts in the network of the hint `build_near_host_ip` with the prefix length `cidr` (/24)."""
    hints = ask.request.hints
    if not hints.build_near_host_ip:
        return None
    text = (hints.build_near_host_ip + (hints.cidr or "/24")).rstrip()
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return per_node(lambda _room: f"hint build_near_host_ip and cidr: {text} is no network")

    def why(room: Room) -> str | None:
        address = room.node.hypervisor.host_ip if room.node.hypervisor is not None else ""
        try:
            near = ip_address(address) in network
        except ValueError:
            return f"its address {address or '(none reported)'} cannot be compared with {network}"
        return None if near else f"its address {address} is not in {network}"

    return per_node(why)


def _here(room: Room, others: tuple[str, ...]) -> str:
    return ", ".join(other for other in others if other in room.instances)
