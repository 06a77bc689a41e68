"""What PCI devices a flavor's extra specs want, by the operator's aliases, as a claim carries it.

Source of the rules and of the names: Nova 34, `pci/request.py`. What Nova refuses at its API raises WantsError here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from schemas.guests import Flavor, Image, PciWant
from schemas.pinning import NO, YES, WantsError, agreed, one_of
from schemas.units import AMOUNT_MAX

ALIAS_KEY = "pci_passthrough:alias"
NUMA_POLICY_KEY = "hw:pci_numa_affinity_policy"
MIGRATABLE = "live_migratable"
NUMA_POLICIES = ("required", "legacy", "preferred", "socket")


def devices(flavor: Flavor, image: Image, aliases: Sequence[str] = ()) -> tuple[PciWant, ...]:
    """The devices that `pci_passthrough:alias` wants (`name:count,…`). Raises WantsError.

    `aliases` are JSON texts in the form of Nova's `[pci] alias`.
    """
    asked = flavor.extra_specs.get(ALIAS_KEY, "")
    if not asked:
        return ()
    return _named(asked, numa_policy(flavor, image), tuple(aliases))


def numa_policy(flavor: Flavor, image: Image) -> str:
    """How near to its cells an instance's devices must be; empty if that is left to their aliases. Raises WantsError."""
    return agreed(NUMA_POLICY_KEY, flavor.extra_specs, image.properties, NUMA_POLICIES)


@lru_cache(maxsize=1024)
def _named(asked: str, policy: str, aliases: tuple[str, ...]) -> tuple[PciWant, ...]:
    """The devices of one text; like cells, few texts come again and again."""
    known = _known(aliases)
    found = []
    for each in asked.split(","):
        name, separator, count = (part.strip() for part in each.partition(":"))
        if not separator or not count.isdecimal() or int(count) > AMOUNT_MAX:
            raise WantsError(f"{ALIAS_KEY}: expected name:count, got {each.strip()!r}")
        if name not in known:
            raise WantsError(f"{ALIAS_KEY}: alias {name!r} is not known; known: {', '.join(sorted(known)) or 'none (see pci_alias)'}")
        numa_policy, specs = known[name]
        found.append(
            PciWant(
                alias=name,
                count=int(count),
                specs=tuple(specs),
                numa_policy=msgspec.convert(policy or numa_policy, PciWant.__annotations__["numa_policy"]),
            )
        )
    return tuple(found)


@lru_cache(maxsize=16)
def _known(texts: tuple[str, ...]) -> dict[str, tuple[str, list[dict[str, str]]]]:
    return known_aliases(texts)


def known_aliases(texts: Sequence[str]) -> dict[str, tuple[str, list[dict[str, str]]]]:
    """NUMA policy and specs by alias. A name given twice has both specs: either will do. Raises WantsError.

    Both have one NUMA policy then. Whether devices must be live-migratable may be said in any word for yes or no; devices have `true` or
    `false` (Nova's rules).
    """
    found: dict[str, tuple[str, list[dict[str, str]]]] = {}
    for text in texts:
        try:
            spec = msgspec.json.decode(text, type=dict[str, str])
            name = spec.pop("name").strip()
        except (msgspec.DecodeError, KeyError):
            raise WantsError(f'pci_alias: expected an object of texts with a name such as {{"name": "a"}}, got {text!r}') from None
        policy = one_of(f"pci_alias {name}: numa_policy", spec.pop("numa_policy", "") or "legacy", NUMA_POLICIES)
        if placements := sorted({"resource_class", "traits"}.intersection(spec)):
            raise WantsError(f"pci_alias {name}: {placements[0]}: Placement's, which no device has here; name devices by ids and tags")
        if "device_type" in spec:
            spec["dev_type"] = spec.pop("device_type")
        if MIGRATABLE in spec:
            spec[MIGRATABLE] = _truth(f"pci_alias {name}: {MIGRATABLE}", spec[MIGRATABLE])
        known = found.setdefault(name, (policy, []))
        if known[0] != policy:
            raise WantsError(f"pci_alias {name}: expected one numa_policy, got {known[0]} and {policy}")
        known[1].append(spec)
    return found


def check_kinds(texts: Sequence[str]) -> None:
    """Raises WantsError for an alias of several kinds of device, as Nova does: one want could take a function and a part of it.

    Not where policies that were in use are read again: what they decided is to be explained.
    """
    for name, (_, specs) in known_aliases(texts).items():
        kinds = {spec.get("dev_type", "none") for spec in specs}
        if len(kinds) > 1:
            raise WantsError(f"pci_alias {name}: expected one device_type, got {' and '.join(sorted(kinds))}")


def _truth(key: str, text: str) -> str:
    """`true` or `false`. Raises WantsError for a word that is neither."""
    word = text.strip().lower()
    if word not in YES | NO:
        raise WantsError(f"{key}: expected true or false, got {text!r}")
    return "true" if word in YES else "false"
