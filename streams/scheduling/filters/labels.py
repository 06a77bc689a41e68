"""What operators and hosts call a node: its availability zones and traits."""

from __future__ import annotations

from projections.node import Node
from projections.room import Room
from schemas.requests import PlacementRequested
from schemas.results import NodeResources
from streams.scheduling.ask import Ask, Check
from streams.scheduling.implied import TRAIT_KEY, implied
from streams.scheduling.options import Options


def zones(node: Node, default: str) -> frozenset[str]:
    """A node's zones: those that somebody named, or the default."""
    return zones_named(node) or frozenset({default})


def zones_named(node: Node | NodeResources) -> frozenset[str]:
    """A node's zones: the operator's field, and `availability_zone` of its aggregates (comma-separated, as in Nova)."""
    named = {node.zone} if node.zone else set[str]()
    for aggregate in node.aggregates:
        named |= {zone.strip() for zone in aggregate.metadata.get("availability_zone", "").split(",") if zone.strip()}
    return frozenset(named)


def availability_zone(ask: Ask, options: Options) -> Check | None:
    """Nova's AvailabilityZoneFilter."""
    wanted, default = ask.request.availability_zone, options.default_availability_zone
    if not wanted:
        return None
    return Check(
        lambda rooms: [r for r in rooms if r.node.zone == wanted or wanted in zones(r.node, default)],
        lambda room: f"availability zone {wanted} needed, it is in {', '.join(sorted(zones(room.node, default)))}",
    )


def traits(ask: Ask, _: Options) -> Check | None:
    """Placement's required and forbidden traits, of the hypervisor and of the operator; asked by the request, its flavor or its image."""
    required, forbidden = required_traits(ask.request), forbidden_traits(ask.request)
    if not required and not forbidden:
        return None

    def why(room: Room) -> str:
        has = traits_of(room.node)
        lacks = [f"lacks {name}" for name in sorted(required - has)]
        return "; ".join(lacks + [f"has {name}, which is forbidden" for name in sorted(forbidden & has)])

    return Check(lambda rooms: [r for r in rooms if required <= (has := traits_of(r.node)) and not forbidden & has], why)


def required_traits(request: PlacementRequested) -> frozenset[str]:
    """The traits that a request requires: its own, and `trait:X` = `required` of its flavor's extra specs and its image's properties.

    `trait1:X` and `trait_GROUP:X` of extra specs are among them, and what else in both stands for a trait (`scheduling.implied`).
    """
    return _asked(request, "required") | implied(request.flavor, request.image).traits | frozenset(request.traits_required)


def forbidden_traits(request: PlacementRequested) -> frozenset[str]:
    """The traits that a request forbids: its own, and `trait:X` = `forbidden` of its flavor's extra specs and its image's properties."""
    return _asked(request, "forbidden") | frozenset(request.traits_forbidden)


def _asked(request: PlacementRequested, word: str) -> frozenset[str]:
    extra_specs, properties = request.flavor.extra_specs, request.image.properties
    if not extra_specs and not properties:
        return frozenset()
    named = [found for key, text in extra_specs.items() if text == word and (found := TRAIT_KEY.fullmatch(key)) is not None]
    pictured = [key for key, text in properties.items() if text == word and key.startswith("trait:")]
    return frozenset([found[1] for found in named] + [key.removeprefix("trait:") for key in pictured])


def traits_of(node: Node) -> frozenset[str]:
    """A node's traits, of the hypervisor and of the operator."""
    return frozenset(node.traits + (node.hypervisor.traits if node.hypervisor is not None else ()))
