"""What a request itself says about nodes: which it ignores, forces, wants, has tried, and leaves."""

from __future__ import annotations

from collections.abc import Sequence

from projections.room import Room
from schemas.few import few
from streams.scheduling.ask import Ask, Check, per_node
from streams.scheduling.facts import host_of
from streams.scheduling.options import Options

HELD_NODES = "held-nodes"
"""The name by which evidence knows a choice among the nodes that the request held already (see `scheduling.holding`)."""


def unusable(ask: Ask, _: Options) -> Check | None:
    """No node, where extra specs and image properties contradict each other (Nova refuses them at its API)."""
    text = ask.unusable
    return per_node(lambda _room: text) if text else None


def ignored(ask: Ask, _: Options) -> Check | None:
    """Nova's ignore_hosts, by node."""
    if not ask.request.ignored_nodes:
        return None
    names = frozenset(ask.request.ignored_nodes)
    return Check(lambda rooms: [r for r in rooms if r.node_id not in names], lambda _: "the request ignores it")


def ignored_hosts(ask: Ask, _: Options) -> Check | None:
    """Nova's ignore_hosts where a compute service has several nodes: by the service's host, in any case of letters."""
    if not ask.request.ignored_hosts:
        return None
    names = frozenset(name.lower() for name in ask.request.ignored_hosts)
    return per_node(lambda room: f"the request ignores host {host_of(room)}" if host_of(room).lower() in names else None)


def forced_hosts(ask: Ask, _: Options) -> Check | None:
    """Nova's force_hosts, in any case of letters."""
    if not ask.request.forced_hosts:
        return None
    names = frozenset(name.lower() for name in ask.request.forced_hosts)
    text = listed(ask.request.forced_hosts, "forced to host")
    return per_node(lambda room: None if host_of(room).lower() in names else text)


def forced(ask: Ask, _: Options) -> Check | None:
    """Nova's force_nodes: only these, and no filter but the last is asked."""
    return _only(ask.request.forced_nodes, "forced to")


def requested(ask: Ask, _: Options) -> Check | None:
    """Nova's requested_destination: only these, and they are filtered like any other."""
    return _only(ask.request.requested_nodes, "requested on")


def requested_hosts(ask: Ask, _: Options) -> Check | None:
    """Nova's requested_destination with a host and no node: its nodes only, filtered like any other."""
    if not ask.request.requested_hosts:
        return None
    names, text = frozenset(ask.request.requested_hosts), listed(ask.request.requested_hosts, "requested on host")
    return per_node(lambda room: None if host_of(room) in names else text)


def held(ask: Ask, _: Options) -> Check | None:
    """Where the request holds the instance already, as whoever answered it before left it."""
    return _only(tuple(sorted(ask.held_nodes)), "held already, by an earlier claim of this request, on") if ask.held_nodes else None


def tried(ask: Ask, _: Options) -> Check | None:
    """Nova's RetryFilter: not where it was tried before."""
    nodes, hosts = frozenset(ask.request.retry_nodes), frozenset(ask.request.retry_hosts)
    if not nodes and not hosts:
        return None
    return per_node(lambda room: "it was tried there before" if room.node_id in nodes or (hosts and host_of(room) in hosts) else None)


def moved(ask: Ask, _: Options) -> Check | None:
    """A migration or evacuation leaves its node; a resize stays on it (on the one that is named, else where the instance is)."""
    source, action, instance_id = ask.request.source_node, ask.request.action, ask.instance_id
    if action == "resize":
        left, stays = ask.left_nodes, f"a resize stays on {source}"

        def why(room: Room) -> str | None:
            if source and room.node_id != source:
                return stays
            if room.node_id in left:
                return "the instance to resize has moved away: another node shows it"
            return None if instance_id in room.instances else "the instance to resize is not there"

        return per_node(why)
    if action in {"migrate", "evacuate"} and source:
        return Check(lambda rooms: [r for r in rooms if r.node_id != source], lambda _: "the instance leaves it")
    return None


def _only(node_ids: tuple[str, ...], verb: str) -> Check | None:
    if not node_ids:
        return None
    names, text = frozenset(node_ids), listed(node_ids, verb)
    return Check(lambda rooms: [r for r in rooms if r.node_id in names], lambda _: text)


def listed(names: Sequence[str], verb: str) -> str:
    """What is said of so many names, the first of them in full: the request has them all."""
    return f"{verb} {few(names)}"
