"""A policy: which filters are asked in which order, which weighers score with which multipliers, and how many alternates a claim has.

Its canonical text stands in the log once for each scheduler start; every decision names the text by its digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec
from msgspec import Struct

from streams.scheduling.options import MULTIPLIERS, OPTIONS, Options

# Bounds the hops of one claim: alternates are in the partition of the first choice, and cost nothing until a conflict.
ALTERNATES_MAX = 2
# All who pack want the same few nodes, which have room for one or two more: behind what others have in flight more of them are needed.
PACKING_ALTERNATES_MAX = 5
DIGEST_BYTES = 16

FILTERS_DEFAULT = (
    "RetryFilter",
    "ComputeFilter",
    "AvailabilityZoneFilter",
    "TraitsFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
    "DifferentHostFilter",
    "SameHostFilter",
    "CoreFilter",
    "RamFilter",
    "DiskFilter",
    "NUMATopologyFilter",
    "PciPassthroughFilter",
)
"""Nova's default filters in its order, between what it asks Placement for: zones and traits before them, amounts after them.

Labels before amounts: whoever reads the counts then learns what the right nodes lack. The hints' filters cost nothing without
hints, nor do those of cells and devices where none are asked for.
"""


class Multiplied(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A weigher and its multiplier (None: Nova's default for it, 1 for others); a negative one prefers little of it (packing)."""

    weigher: str
    multiplier: float | None = None

    @property
    def factor(self) -> float:
        """The multiplier that counts."""
        return MULTIPLIERS.get(self.weigher, ("", 1.0))[1] if self.multiplier is None else self.multiplier


AMOUNTS = (Multiplied(weigher="RAMWeigher"), Multiplied(weigher="CPUWeigher"), Multiplied(weigher="DiskWeigher"))
SOFT_MULTIPLIER = 4.0
SOFT_GROUPS = (
    Multiplied(weigher="ServerGroupSoftAffinityWeigher", multiplier=SOFT_MULTIPLIER),
    Multiplied(weigher="ServerGroupSoftAntiAffinityWeigher", multiplier=SOFT_MULTIPLIER),
)
"""Above what the three amounts can say together: with Nova's 1 each, a policy that spreads leaves a node that members have half filled, and
one that packs prefers such a node for those that want to be apart. They are left out where an instance is in no such group."""


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How nodes are chosen. `loading.policy` checks one that comes from outside."""

    filters: tuple[str, ...] = FILTERS_DEFAULT
    weighers: tuple[Multiplied, ...] = (*AMOUNTS, *SOFT_GROUPS)
    alternates_max: int = ALTERNATES_MAX
    options: Options = OPTIONS

    @property
    def pairs(self) -> tuple[tuple[str, float], ...]:
        """Weighers and multipliers."""
        return tuple((each.weigher, each.factor) for each in self.weighers)


DEFAULT = Policy()
SPREAD = DEFAULT
PACK = Policy(
    weighers=(*(Multiplied(weigher=each.weigher, multiplier=-each.factor) for each in AMOUNTS), *SOFT_GROUPS),
    alternates_max=PACKING_ALTERNATES_MAX,
)
"""Fill nodes up before taking new ones."""
NOVA = Policy(weighers=tuple(Multiplied(weigher=name) for name in MULTIPLIERS))
"""All of Nova's weighers with its default multipliers."""
POLICIES: Mapping[str, Policy] = {"spread": SPREAD, "pack": PACK, "nova": NOVA} | {
    name: Policy(weighers=(Multiplied(weigher=weigher),), alternates_max=alternates_max)
    for name, weigher, alternates_max in (
        ("absolute-spread", "SpreadWeigher", ALTERNATES_MAX),
        ("absolute-pack", "PackWeigher", PACKING_ALTERNATES_MAX),
        ("best-fit", "BestFitWeigher", PACKING_ALTERNATES_MAX),
        ("bin-pack", "BinPackWeigher", PACKING_ALTERNATES_MAX),
    )
}
"""Policies by name. The last four score a node by itself alone, so that no other node's change moves its score."""


def text(policy: Policy) -> str:
    """The canonical text: JSON with every field, in declared order."""
    return msgspec.json.encode(policy).decode()


def digest(policy: Policy) -> str:
    """What decisions call the policy by."""
    return digest_of(text(policy))


def digest_of(written: str) -> str:
    """The digest of a policy's text as it was written, maybe by a version with fewer options than today's."""
    return blake2b(written.encode(), digest_size=DIGEST_BYTES).hexdigest()
