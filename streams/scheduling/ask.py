"""What is asked for one instance: the claim it would make, and what else filters and tie-breaks read."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec import Struct

from projections.room import Room
from schemas.aliases import devices
from schemas.claims import ClaimItem, GroupMember
from schemas.pinning import Wants, WantsError, uncounted, wants
from schemas.requests import NumaWant, PciWant, PlacementRequested
from schemas.resources import RESOURCES, Limits, Resources
from schemas.units import AMOUNT_MAX
from streams.scheduling.implied import implied
from streams.scheduling.options import OPTIONS, Options

# Seeds stand in records, whose numbers go up to 2^50.
SEED_BITS = 50
SIZES_MAX = 4096
"""So many different sizes of instances are kept: a cloud has few of them, and asks for them again and again."""


class Ask(Struct, gc=False):
    """One instance of a request. `item` is its claim without id and nodes; `group_nodes` are the nodes with members of its group.

    `held_nodes`, if there are any, are the only ones asked about (see `holding`); `begun_nodes` hold claims of this request for any of its
    instances, which count once there. `left_nodes` hold claims of an instance to be resized
    which others have shown since: it has moved away from there. `company` are the claims of the request's other instances
    where all have to go to one node that is not known yet: each node is asked with them laid over it. `unusable` is why no node will do:
    extra specs or properties that contradict each other, or an instance to be moved that is not where it should be.
    """

    request: PlacementRequested
    index: int
    item: ClaimItem
    seed: int
    attempt: int = 1
    group_nodes: frozenset[str] = frozenset()
    unusable: str = ""
    held_nodes: frozenset[str] = frozenset()
    begun_nodes: frozenset[str] = frozenset()
    left_nodes: frozenset[str] = frozenset()
    company: tuple[ClaimItem, ...] = ()

    def only_on(self, held_nodes: frozenset[str]) -> Ask:
        """The same ask of these nodes alone."""
        return msgspec.structs.replace(self, held_nodes=held_nodes)

    def begun_on(self, begun_nodes: frozenset[str]) -> Ask:
        """The same ask of a request that has claims on these nodes."""
        return msgspec.structs.replace(self, begun_nodes=begun_nodes) if begun_nodes else self

    def unless(self, unusable: str) -> Ask:
        """The same ask, which no node will do for if there is a reason: schedulers look for that before they read of what is asked for."""
        return msgspec.structs.replace(self, unusable=unusable) if unusable else self

    @property
    def instance_id(self) -> str:
        """Whom it is asked for."""
        return self.item.instance_id


class Check(NamedTuple):
    """One filter made ready for one ask: `keep` gives those of the rooms that pass, in their order; `reason` is what an operator reads.

    `keep` takes the whole list because a call for each node would cost more than the test itself. `limits` are those that it tested the
    node for, where the ledger does not know them by itself: the claim carries them, so that no other scheduler oversteps them.
    """

    keep: Callable[[list[Room]], list[Room]]
    reason: Callable[[Room], str]
    limits: Callable[[Room], Limits] | None = None

    def rejects(self, room: Room) -> bool:
        """Whether this one node is rejected."""
        return not self.keep([room])


def per_node(why: Callable[[Room], str | None], limits: Callable[[Room], Limits] | None = None) -> Check:
    """The check of a filter that says of each node why not: None passes. For tests that are no matter of microseconds."""
    return Check(lambda rooms: [room for room in rooms if why(room) is None], lambda room: why(room) or "", limits)


def ask_of(
    request: PlacementRequested,
    index: int,
    *,
    seed: int,
    attempt: int = 1,
    group_epoch: int = 1,
    group_nodes: frozenset[str] = frozenset(),
    options: Options = OPTIONS,
) -> Ask:
    """The ask for instance number `index` of `request`. `group_epoch` is the epoch of its affinity group's home (rule 10).

    Cells that the request names count before those of its flavor and image; devices add up, by the aliases of `options`.
    """
    size = _size(_sizing(request), options.pci_alias)
    group = request.group
    member = None
    if group is not None:
        member = GroupMember(
            group_id=group.group_id,
            policy=group.policy,
            max_per_node=group.max_per_node,
            epoch=group_epoch if group.policy == "affinity" else 0,
        )
    item = ClaimItem(
        claim_id="",
        instance_id=request.instance(index),
        nodes=(),
        resources=size.resources,
        resize=request.action == "resize",
        forced=request.forced,
        limits=request.limits,
        group=member,
        numa=size.numa,
        pci=size.pci,
        project_id=request.project_id,
        flavor=request.flavor.name,
    )
    return Ask(request, index, item, seed, attempt, group_nodes, size.unusable)


class Size(NamedTuple):
    """What one instance takes of its node, and why it cannot be made out."""

    resources: Resources
    numa: tuple[NumaWant, ...]
    pci: tuple[PciWant, ...]
    unusable: str


class _Sizing(bytes):
    """What of a request decides the size of its instances, as content, and the request that it was read of: equal ones are one size."""

    request: PlacementRequested


_encode = msgspec.msgpack.Encoder().encode


def _sizing(request: PlacementRequested) -> _Sizing:
    sizing = _Sizing(_encode((request.flavor, request.image, request.numa, request.pci, request.boot_from_volume)))
    sizing.request = request
    return sizing


@lru_cache(maxsize=SIZES_MAX)
def _size(sizing: _Sizing, aliases: tuple[str, ...]) -> Size:
    """The size of an instance of such a request."""
    request = sizing.request
    numa, pci, unusable = request.numa, request.pci, ""
    cpus: Wants | None = None
    try:
        if not numa:
            cpus = wants(request.flavor, request.image)
            numa = cpus.numa
        pci += devices(request.flavor, request.image, aliases)
    except WantsError as error:
        unusable = str(error)
    resources = request.resources if cpus is None else request.sized(cpus)
    unusable = unusable or uncounted(request.flavor) or implied(request.flavor, request.image).problem
    return Size(resources, numa, pci, unusable or _too_much(resources))


def _too_much(resources: Resources) -> str:
    """Why no record can claim so much (root and ephemeral disk add up, in MiB); empty if one can."""
    too_much = [name for name in RESOURCES if getattr(resources, name) > AMOUNT_MAX]
    return f"{too_much[0]}: expected at most {AMOUNT_MAX}, got {getattr(resources, too_much[0])}" if too_much else ""


def seed_of(owner: str, request_id: str, index: int, attempt: int) -> int:
    """The seed of one decision: other schedulers and other requests spread differently over equal nodes."""
    digest = blake2b(f"{owner}/{request_id}/{index}/{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - SEED_BITS)
