"""`claimlog capacity`: how many more instances of each flavor fit, on which nodes, and what runs out first. Nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from msgspec import to_builtins
from msgspec.structs import replace

from projections.wording import size_text
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import RESOURCES
from schemas.topics import REQUESTS
from streams.cli.capacity.flavors import asked_for, from_file, looks_back_less
from streams.cli.changing import CHANGING, Changing, as_of
from streams.cli.flags import LIVE, Live, LogFlag, MomentFlag
from streams.cli.given.asking import KIND, Kind, file_or_stdin
from streams.cli.printed import units
from streams.cli.printed.amounts import TITLES
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import say
from streams.cli.printed.progress import Progress
from streams.cli.printed.stdout import own_code
from streams.cli.problems import UsageProblem
from streams.cli.reading.answers import results_by
from streams.cli.reading.open_log import opened
from streams.cli.reading.records import Range, lost_before
from streams.cli.reading.state_at import moment_of, state_at
from streams.cli.watching import watchable
from streams.placement.checks import unfit
from streams.scheduling.capacity import TRIALS_MAX, Capacity, capacity, total
from streams.scheduling.filters import labels
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy, digest
from streams.scheduling.what_if import CannotChange, change

OWNER = "capacity"
FlavorsFile = Annotated[
    str, file_or_stdin("Flavors: TOML, or what `openstack flavor list --long -f json` prints; or a request as JSON; - is stdin.")
]


@watchable
def capacity_verb(
    flavors: FlavorsFile = "",
    /,
    *,
    asking: Kind = KIND,
    changing: Changing = CHANGING,
    at: MomentFlag = "now",
    log: LogFlag = None,
    show: Live = LIVE,
) -> int:
    """How many more of each flavor fit, each flavor by itself, by zone and by node, and what runs out first.

    Flavors are those of a file, the one that the flags give, or else all that were asked for on this log, with the cells and devices that
    requests had beside them; --flavor picks one of them by its name. A node takes the least of what is free by what one instance needs of
    each resource, and what limits and groups leave; -o wide and -o json say how many on which node. With --ratio, --drain, --add and so on:
    if that were so. Instances of one flavor leave less for the next, so numbers of several flavors do not add up.

    A node counts in the column of each zone that it is in, by its own setting or by availability_zone of its aggregates, and once in fits;
    one without any counts in that of the policy's default_availability_zone.
    """
    with opened(log) as source:
        moment = moment_of(at)
        partitions = 0 if flavors or asking.has_sizes else source.topics().get(REQUESTS, 0)
        until = Range(None, moment).naming(source, (REQUESTS,) if partitions else ())
        ends = {number: until.ends(source, REQUESTS, number) for number in range(partitions)}
        requests = _requests(asking, flavors, partial(asked_for, source, ends))
        lacking = lost_before(source, REQUESTS) if any(looks_back_less(source, number, end) for number, end in ends.items()) else ""
        state = state_at(source, moment, views=False)
        chosen = changing.policy(source, None if changing.by else results_by(source, moment, state.as_of_ms))
        ledgers = list(state.ledgers.values())
        try:
            change(ledgers, as_of(source, ledgers, changing.changes()))
        except CannotChange as problem:
            raise UsageProblem(str(problem)) from None
    fleet, policy, cut = Fleet(ledgers), chosen.policy, chosen.cut(state.cut)
    for number, end in ends.items():
        cut = cut.naming(REQUESTS, number, end)
    asking.check_nodes({room.node.node_id for room in fleet.rooms()})
    zoned = [labels.zones(room.node, policy.options.default_availability_zone) for room in fleet.rooms()]
    zones = sorted(frozenset[str]().union(*zoned))
    are_named = any(labels.zones_named(room.node) for room in fleet.rooms())
    with Progress("capacity", len(requests) * len(zoned), of="nodes") as progress, own_code():
        items = [_item(name, request, _counted(fleet, request, policy, progress.add), zones) for name, request in requests.items()]
    summary = {
        "changes": changing.told(),
        "policy_digest": digest(policy),
        "policy_source": chosen.source,
        "nodes_known": len(fleet.rooms()),
    }
    show.write(Report(columns=_columns(zones if are_named else ()), items=items, cut=cut, summary=summary))
    if show.for_people:
        if changing.told():
            say(f"if {', '.join(changing.told())}")
        if several := sum(len(each) > 1 for each in zoned):
            say(f"{units.counted(several, 'node')} in several zones: counted in the column of each, and once in fits")
    if lacking:
        say(f"flavors are those of the requests at hand: {lacking}")
    for item in items:
        if item["unusable"]:
            say(f"{item['flavor']}: no node will ever do: {item['unusable']}")
        if item["at_least"]:
            say(f"{item['flavor']}: {TRIALS_MAX} or more on a node: no more than that are tried out there")
    return 0


def _requests(asking: Kind, file: str, asked: Callable[[], Mapping[str, PlacementRequested]]) -> dict[str, PlacementRequested]:
    """By the flavor's name a request for instances of each kind, with all else that the flags or a file say. Raises UsageProblem."""
    if asking.has_sizes:
        if file:
            raise UsageProblem("give a file of flavors or the sizes of one as flags, not both")
        return {asking.flavor or "-": asking.request(OWNER)}
    found: Mapping[str, Flavor | PlacementRequested] | PlacementRequested = from_file(file) if file else asked()
    if isinstance(found, PlacementRequested):
        asking.only()
        if found.action != "create":
            raise UsageProblem(f"{file}: a request to {found.action} brings no new instance; `claimlog what-if` says where it would go")
        return {found.flavor.name or "-": found}
    if asking.flavor and asking.flavor not in found:
        raise UsageProblem(f"flavor {asking.flavor!r} is not known; known: {', '.join(found) or 'none'}")
    found = {asking.flavor: found[asking.flavor]} if asking.flavor else found
    if not found:
        raise UsageProblem("no flavor is known: none was asked for on this log; give --vcpus, --memory, --disk, or a file of flavors")
    return {name: _one_of(kind, asking) for name, kind in found.items()}


def _one_of(kind: Flavor | PlacementRequested, asking: Kind) -> PlacementRequested:
    """A request for one instance of a kind, where the flags let it go. Raises UsageProblem."""
    if isinstance(kind, Flavor):
        return asking.request(OWNER, sizes=kind)
    there = asking.request(OWNER, sizes=kind.flavor)
    volume = kind.boot_from_volume or there.boot_from_volume
    return replace(there, count=1, instance_ids=(), image=kind.image, numa=kind.numa, pci=kind.pci, boot_from_volume=volume)


def _counted(fleet: Fleet, request: PlacementRequested, policy: Policy, looked_at: Callable[[int], object]) -> Capacity:
    """How many fit of a request's kind: none where a scheduler refuses it whatever nodes there are."""
    return capacity(fleet, request, policy, unfit(request, policy, OWNER, 0, fleet), looked_at)


def _item(name: str, request: PlacementRequested, found: Capacity, zones: Sequence[str]) -> dict[str, Any]:
    """One flavor: its sizes, how many fit, by zone and by node, and what bounds how many nodes."""
    bounds = Counter(node.bound for node in found.nodes if node.bound)
    resources = request.resources
    best = found.nodes[0] if found.nodes else None
    return {
        "flavor": name,
        "size": size_text(request),
        "extra_specs": request.flavor.extra_specs,
        "image_properties": request.image.properties,
        **{name: getattr(resources, name) for name in RESOURCES},
        "fits": found.fits,
        "at_least": found.at_least,
        "unlimited": any(node.fits is None for node in found.nodes),
        "nodes": len(found.nodes),
        "nodes_known": found.nodes_known,
        "most": None if best is None else {"node_id": best.node_id, "fits": best.fits, "at_least": best.at_least},
        "zones": {zone: total([node for node in found.nodes if zone in node.zones], together=found.together) for zone in zones},
        "zones_at_least": sorted({zone for node in found.nodes if node.at_least for zone in node.zones}),
        "bounds": dict(bounds.most_common()),
        "rejected": found.rejected,
        "tried": found.tried,
        "numa": to_builtins(found.numa),
        "pci": to_builtins(found.pci),
        "unusable": found.unusable,
        "where": [to_builtins(node) for node in found.nodes],
    }


def _columns(zones: Sequence[str]) -> list[Column]:
    return [
        Column(name="flavor"),
        Column(name="size"),
        Column(name="fits", right=True, told=lambda item: _number(item["fits"], more=item["at_least"]), alarm=_is_none),
        *(Column(name=f"zones.{zone}", title=zone or "-", right=True, told=partial(_in_zone, zone)) for zone in zones),
        Column(name="nodes", right=True),
        Column(name="most", title="most on one", shown=_most),
        Column(name="bounds", title="runs out first (on nodes)", shown=_bounds),
        Column(name="rejected", title="kept away by (nodes)", shown=_bounds),
        Column(name="extra_specs", title="extra specs", wide=True),
        Column(name="image_properties", title="image properties", wide=True),
        Column(name="where", shown=_where, wide=True),
    ]


def _is_none(item: Mapping[str, Any]) -> bool:
    return bool(item["fits"] == 0)


def _number(number: int | None, *, more: bool = False) -> str:
    return "no limit" if number is None else f"{units.count(number)} or more" if more else units.count(number)


def _in_zone(zone: str, item: Mapping[str, Any]) -> str:
    return _number(item["zones"][zone], more=zone in item["zones_at_least"])


def _most(most: Mapping[str, Any] | None) -> str:
    return "-" if most is None else f"{_number(most['fits'], more=most['at_least'])} ({most['node_id']})"


def _bounds(bounds: Mapping[str, int]) -> str:
    return ", ".join(f"{TITLES.get(name, name)} {units.count(number)}" for name, number in bounds.items()) or "-"


def _where(where: list[Mapping[str, Any]]) -> str:
    return ", ".join(f"{each['node_id']}={_number(each['fits'], more=each['at_least'])}" for each in where) or "-"
