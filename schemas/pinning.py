"""What a flavor's extra specs and an image's properties want of CPUs and NUMA cells, as a claim carries it.

Source of the rules and of the names: Nova 34, `virt/hardware.py` (numa_get_constraints) and `scheduler/utils.py` (pinning policies become
dedicated CPUs). What Nova refuses at its API raises WantsError here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from schemas.guests import Flavor, Image, NumaWant
from schemas.units import AMOUNT_MAX

CPU_POLICIES = ("shared", "dedicated", "mixed")
THREAD_POLICIES = ("prefer", "isolate", "require")
EMULATOR_POLICIES = ("share", "isolate")
HYPERTHREADING = "HW_CPU_HYPERTHREADING"
CPUS_MAX = 4096
"""Most CPUs that KVM gives one guest; a guest's own CPUs are listed one by one, and a text must not make lists without end."""

COUNTED = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB")
"""Placement's classes of what nodes count."""
AMOUNT_KEY = re.compile(r"resources[a-zA-Z0-9_-]{0,64}:")
"""How an extra spec begins that asks for an amount, for the instance or for one of its groups."""
_RESOURCE = r"resources(?:[1-9][0-9]*)?:"
YES = frozenset({"1", "t", "true", "on", "y", "yes"})
"""The words that Nova takes for yes, in small letters."""
NO = frozenset({"0", "f", "false", "off", "n", "no"})
"""And for no."""
_IMAGE_KEYS = ("hw_cpu_", "hw_numa_", "hw_mem_page_size", f"trait:{HYPERTHREADING}")
_FLAVOR_KEYS = ("hw:cpu_", "hw:numa_", "hw:mem_page_size", "hw:emulator_threads_policy", "resources", "trait")
_SIZE = re.compile(r"(\d*\.?\d+)(?:([KMGTPE])i?)?(B|b|bit)")
_FACTOR = {None: 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}


Texts = tuple[tuple[str, str], ...]


class WantsError(ValueError):
    """Extra specs and image properties that contradict each other or cannot be read: the message names the key and what was expected."""


class Wants(NamedTuple):
    """Shared and dedicated CPUs (the emulator's threads included), and the guest's cells; none without a topology of its own.

    `memory_mib` and `disk_gib` count before the flavor's own; None where extra specs say nothing of them.
    """

    vcpus: int
    pcpus: int
    numa: tuple[NumaWant, ...] = ()
    memory_mib: int | None = None
    disk_gib: int | None = None


def wants(flavor: Flavor, image: Image) -> Wants:
    """The CPUs and cells that one instance wants. Raises WantsError."""
    if not _says(flavor.extra_specs, _FLAVOR_KEYS) and not _says(image.properties, _IMAGE_KEYS):
        return Wants(flavor.vcpus, flavor.pcpus)
    found = _worked_out(flavor.vcpus, flavor.pcpus, flavor.memory_mib, tuple(flavor.extra_specs.items()), tuple(image.properties.items()))
    if isinstance(found, str):
        raise WantsError(found)
    return found


@lru_cache(maxsize=1024)
def _worked_out(vcpus: int, pcpus: int, memory_mib: int, extra_specs: Texts, properties: Texts) -> Wants | str:
    """What such a flavor and image want, or what is wrong with them; a cloud has few of them, and asks for them again and again."""
    flavor = Flavor(vcpus=vcpus, pcpus=pcpus, memory_mib=memory_mib, extra_specs=dict(extra_specs))
    try:
        return _wants(flavor, Image(properties=dict(properties)))
    except WantsError as error:
        return str(error)


def _wants(flavor: Flavor, image: Image) -> Wants:
    policy, threads = _policies(flavor, image)
    emulator = one_of("hw:emulator_threads_policy", flavor.extra_specs.get("hw:emulator_threads_policy", ""), EMULATOR_POLICIES)
    dedicated = _dedicated(flavor, image, policy, threads, emulator)
    cpus = flavor.vcpus + flavor.pcpus
    exclusive = policy in {"dedicated", "mixed"}
    isolated = int(exclusive and emulator == "isolate")
    counted = Wants(cpus - len(dedicated), len(dedicated) + isolated) if exclusive else Wants(_shared(flavor), flavor.pcpus)
    counted = counted._replace(memory_mib=_instead(flavor, "MEMORY_MB"), disk_gib=_instead(flavor, "DISK_GB"))
    nodes, page = _nodes(flavor, image), _page_size(flavor, image)
    if not nodes and not page and not exclusive:
        return counted
    shared: dict[str, Any] = {"cpu_policy": policy or "shared", "thread_policy": threads, "emulator_threads": emulator, **page}
    cells = []
    for number, (members, memory_mib) in enumerate(_cells(flavor, image, nodes or 1, len(_cpus(flavor)))):
        pins = members & dedicated
        whole = policy == "dedicated"
        cells.append(
            NumaWant(
                cell_id=number,
                cpus=tuple(sorted(members if whole else members - pins)),
                pinned_cpus=() if whole else tuple(sorted(pins)),
                memory_mib=memory_mib,
                **shared,
            )
        )
    return counted._replace(numa=tuple(cells))


def uncounted(flavor: Flavor) -> str:
    """What extra specs ask for by amount that is counted on no node (`resources:VGPU`), and what to do; empty if there is nothing."""
    for key, text in flavor.extra_specs.items():
        group = AMOUNT_KEY.match(key)
        if group is not None and key[group.end() :] not in COUNTED and (whole(text) or 0) > 0:
            return f"{key}: only {', '.join(COUNTED)} are counted on nodes; leave it out, or name such nodes by a trait"
    return ""


def counted(flavor: Flavor, image: Image) -> Wants:
    """`wants`, or the flavor's own CPUs where those cannot be made out: nothing is ever placed by them (see `wants`)."""
    try:
        return wants(flavor, image)
    except WantsError:
        return Wants(flavor.vcpus, flavor.pcpus)


def cpus_of(text: str, key: str) -> frozenset[int]:
    """CPU numbers such as `1-4,^3,6`. Raises WantsError, which names `key`."""
    found: set[int] = set()
    rejected: set[int] = set()
    for rule in filter(None, (part.strip() for part in text.split(","))):
        target = rejected if rule.startswith("^") else found
        first, separator, last = (part.strip() for part in rule.removeprefix("^").partition("-"))
        if not first.isdecimal() or (separator and not (last.isdecimal() and int(first) <= int(last))):
            raise WantsError(f"{key}: expected CPU numbers such as 0-3,^2, got {text!r}")
        if int(last or first) >= CPUS_MAX:
            raise WantsError(f"{key}: expected CPU numbers below {CPUS_MAX}, got {text!r}")
        target.update(range(int(first), int(last or first) + 1))
    return frozenset(found - rejected)


def _says(texts: Mapping[str, str], prefixes: tuple[str, ...]) -> bool:
    return bool(texts) and any(key.startswith(prefixes) for key in texts)


def whole(text: str) -> int | None:
    """A whole number as Nova reads one: blanks around it, a sign and leading zeros do not matter. None for anything else."""
    try:
        return int(text)
    except ValueError:
        return None


def _pair(key: str, flavor: Flavor, image: Image) -> tuple[str, str]:
    return flavor.extra_specs.get(f"hw:{key}", ""), image.properties.get(f"hw_{key}", "")


def one_of(key: str, text: str, known: Collection[str]) -> str:
    """The text itself, if it is one of the words that are known, or empty. Raises WantsError, which names `key`."""
    if text and text not in known:
        raise WantsError(f"{key}: expected {', '.join(known)}, got {text!r}")
    return text


def agreed(key: str, extra_specs: Mapping[str, str], properties: Mapping[str, str], known: Collection[str]) -> str:
    """What a flavor's extra spec or the image's property of that name says, or both alike: one of the words that are known, or empty.

    Raises WantsError.
    """
    by_flavor, by_image = extra_specs.get(key, ""), properties.get(key.replace(":", "_"), "")
    if by_flavor and by_image and by_flavor != by_image:
        raise WantsError(f"{key}: the image has {by_image!r}, its flavor {by_flavor!r}")
    return one_of(key, by_flavor or by_image, known)


def _policies(flavor: Flavor, image: Image) -> tuple[str, str]:
    """CPU policy and thread policy: the flavor's, where it leaves it open the image's; resources and traits may say the same."""
    by_flavor, by_image = (one_of("hw:cpu_policy", text, CPU_POLICIES) for text in _pair("cpu_policy", flavor, image))
    forbidden = {"mixed": {"dedicated"}, "shared": {"dedicated", "mixed"}}.get(by_flavor, set())
    if by_image in forbidden:
        raise WantsError(f"hw_cpu_policy: the image has {by_image!r}, which its flavor's {by_flavor!r} does not allow")
    policy = by_flavor or by_image
    by_flavor, by_image = (one_of("hw:cpu_thread_policy", text, THREAD_POLICIES) for text in _pair("cpu_thread_policy", flavor, image))
    if by_flavor not in {"", "prefer"} and by_image not in {"", by_flavor}:
        raise WantsError(f"hw_cpu_thread_policy: the image has {by_image!r}, its flavor {by_flavor!r}")
    threads = (by_flavor if by_flavor not in {"", "prefer"} else "") or by_flavor or by_image
    vcpus, pcpus = (_resources(flavor.extra_specs, name) for name in ("VCPU", "PCPU"))
    if (vcpus and pcpus) or (policy and (vcpus or pcpus)):
        raise WantsError("resources:VCPU, resources:PCPU and hw:cpu_policy: expected one of them")
    if pcpus:
        isolated = flavor.extra_specs.get("hw:emulator_threads_policy") == "isolate"
        if pcpus != flavor.vcpus + flavor.pcpus + isolated:
            raise WantsError(f"resources:PCPU: expected {flavor.vcpus + flavor.pcpus + isolated}, all the flavor's CPUs, got {pcpus}")
    trait = _hyperthreading(flavor, image)
    if trait and threads:
        raise WantsError(f"trait:{HYPERTHREADING} and hw:cpu_thread_policy: expected one of them")
    return policy or ("dedicated" if pcpus else "shared" if vcpus else ""), threads or trait


def _shared(flavor: Flavor) -> int:
    """Shared CPUs as Placement counts them: `resources:VCPU` counts before the flavor's own number."""
    asked = _instead(flavor, "VCPU")
    return flavor.vcpus if asked is None else asked


def _instead(flavor: Flavor, name: str) -> int | None:
    """What `resources:NAME` asks for instead of the flavor's own amount, as Nova asks Placement; None if it is not there."""
    asked = _asked(flavor.extra_specs, name)
    return sum(asked) if asked else None


def _resources(extra_specs: Mapping[str, str], name: str) -> int:
    """The sum that `resources:NAME` and its numbered groups ask for."""
    return sum(_asked(extra_specs, name))


def _asked(extra_specs: Mapping[str, str], name: str) -> list[int]:
    """The amounts of `resources:NAME` and its numbered groups; what is no amount is somebody else's error."""
    texts = [text for key, text in extra_specs.items() if re.fullmatch(_RESOURCE + name, key)]
    amounts = [amount for text in texts if (amount := whole(text)) is not None and amount >= 0]
    if sum(amounts) > AMOUNT_MAX:
        raise WantsError(f"resources:{name}: expected at most {AMOUNT_MAX}, got {', '.join(texts)}")
    return amounts


def _hyperthreading(flavor: Flavor, image: Image) -> str:
    """The thread policy that the trait stands for; a flavor may require and forbid it, an image only require it."""
    said = [text for key, text in flavor.extra_specs.items() if re.fullmatch(rf"trait(?:[1-9][0-9]*)?:{HYPERTHREADING}", key)]
    if not said and image.properties.get(f"trait:{HYPERTHREADING}") == "required":
        return "require"
    return {"forbidden": "isolate", "required": "require"}.get(said[0], "") if said else ""


def _dedicated(flavor: Flavor, image: Image, policy: str, threads: str, emulator: str) -> frozenset[int]:
    """The guest CPUs that get a host CPU of their own each."""
    mask = _masked("hw:cpu_dedicated_mask", flavor.extra_specs.get("hw:cpu_dedicated_mask", ""), flavor)
    if mask is not None and not (mask and mask < _cpus(flavor)):
        raise WantsError("hw:cpu_dedicated_mask: expected some of the flavor's CPUs and not all")
    realtime = None
    if flavor.extra_specs.get("hw:cpu_realtime", "").strip().lower() in YES:
        by_flavor, by_image = _pair("cpu_realtime_mask", flavor, image)
        cpus = _cpus(flavor)
        realtime = _masked("hw:cpu_realtime_mask", by_image or by_flavor, flavor) or (frozenset() if by_image or by_flavor else cpus)
        if not realtime or not realtime <= cpus or (realtime == cpus and not emulator):
            raise WantsError("hw:cpu_realtime_mask: expected some of the flavor's CPUs, and not all without hw:emulator_threads_policy")
    if policy in {"", "shared"}:
        bad = {"hw:cpu_thread_policy": threads, "hw:emulator_threads_policy=isolate": emulator == "isolate"}
        bad |= {"hw:cpu_dedicated_mask": mask, "hw:cpu_realtime": realtime}
        for key, is_set in bad.items():
            if is_set:
                raise WantsError(f"{key}: expected with hw:cpu_policy dedicated or mixed, got {policy or 'no policy'}")
        return frozenset()
    if policy == "dedicated":
        if mask:
            raise WantsError("hw:cpu_dedicated_mask: expected with hw:cpu_policy mixed, got dedicated")
        return _cpus(flavor)
    if (mask is None) == (realtime is None):
        raise WantsError("hw:cpu_policy mixed: expected one of hw:cpu_dedicated_mask and hw:cpu_realtime_mask")
    return mask or realtime or frozenset()


def _cpus(flavor: Flavor) -> frozenset[int]:
    """The guest's CPUs. Raises WantsError where they are too many for a topology."""
    count = flavor.vcpus + flavor.pcpus
    if count > CPUS_MAX:
        raise WantsError(f"vcpus: expected at most {CPUS_MAX} for a guest with CPUs or cells of its own, got {count}")
    return frozenset(range(count))


def _masked(key: str, text: str, flavor: Flavor) -> frozenset[int] | None:
    if not text:
        return None
    return cpus_of(f"0-{len(_cpus(flavor)) - 1},{text}" if text.strip().startswith("^") else text, key)


def _nodes(flavor: Flavor, image: Image) -> int:
    """How many cells are asked for; 0 if that is left open."""
    by_flavor, by_image = _pair("numa_nodes", flavor, image)
    if by_flavor and by_image:
        raise WantsError("hw_numa_nodes: the flavor says how many cells there are, the image must not")
    text = by_flavor or by_image
    if text and ((number := whole(text)) is None or not 1 <= number <= CPUS_MAX or str(number) != text):
        raise WantsError(f"hw:numa_nodes: expected a number from 1 to {CPUS_MAX}, got {text!r}")
    return int(text or 0)


def _page_size(flavor: Flavor, image: Image) -> dict[str, Any]:
    """The page size as a field of NumaWant; an image may only choose where its flavor leaves a choice."""
    by_flavor, by_image = _pair("mem_page_size", flavor, image)
    if by_image and by_flavor not in {"any", "large"}:
        raise WantsError(f"hw_mem_page_size: the image has {by_image!r}, which its flavor's {by_flavor or 'silence'} does not allow")
    text = by_image or by_flavor
    if text in {"", "any", "large", "small"}:
        return {"page_size": text} if text else {}
    size = _SIZE.fullmatch(text)
    if size is None and not text.isdecimal():
        raise WantsError(f"hw:mem_page_size: expected small, large, any, KiB or a size such as 2MB, got {text!r}")
    kib = int(text) if size is None else float(size[1]) * _FACTOR[size[2]] / (1 if size[3] == "B" else 8) / 1024
    if size is None and not kib:
        return {}
    if not 1 <= kib <= AMOUNT_MAX:
        raise WantsError(f"hw:mem_page_size: expected 1 to {AMOUNT_MAX} KiB, got {text!r}")
    return {"page_size_kib": int(kib)}


def _cells(flavor: Flavor, image: Image, nodes: int, cpus: int) -> Iterable[tuple[frozenset[int], int]]:
    """Each cell's CPUs and memory in MiB: as listed, else in equal parts."""
    cpu_texts, memory_texts = _listed("numa_cpus", flavor, image), _listed("numa_mem", flavor, image)
    if not cpu_texts and not memory_texts:
        if cpus % nodes or flavor.memory_mib % nodes:
            raise WantsError(f"hw:numa_nodes: {cpus} CPUs and {flavor.memory_mib} MiB are not divisible into {nodes} equal cells")
        each = cpus // nodes
        return [(frozenset(range(number * each, (number + 1) * each)), flavor.memory_mib // nodes) for number in range(nodes)]
    if len(cpu_texts) != nodes or len(memory_texts) != nodes:
        raise WantsError(f"hw:numa_cpus and hw:numa_mem: expected both for all {nodes} cells")
    members = [cpus_of(text, f"hw:numa_cpus.{number}") for number, text in enumerate(cpu_texts)]
    if sorted(cpu for each in members for cpu in each) != list(range(cpus)):
        raise WantsError(f"hw:numa_cpus: expected each of the CPUs 0 to {cpus - 1} once")
    amounts_mib = [amount for text in memory_texts if (amount := whole(text)) is not None and amount >= 0]
    if len(amounts_mib) != nodes or sum(amounts_mib) != flavor.memory_mib:
        raise WantsError(f"hw:numa_mem: expected amounts that add up to {flavor.memory_mib} MiB, got {', '.join(memory_texts)}")
    return list(zip(members, amounts_mib, strict=True))


def _listed(key: str, flavor: Flavor, image: Image) -> list[str]:
    """The texts of `key.0`, `key.1` … of the flavor or of the image, not of both."""
    found = []
    for texts, prefix in ((flavor.extra_specs, f"hw:{key}."), (image.properties, f"hw_{key}.")):
        listed: list[str] = []
        while (text := texts.get(f"{prefix}{len(listed)}")) is not None:
            listed.append(text)
        found.append(listed)
    if found[0] and found[1]:
        raise WantsError(f"hw_{key}: the flavor lists its cells, the image must not")
    return found[0] or found[1]
