"""What `capacity` counts: flavors from a file in one of two forms, a request in a file, or what was asked for on a log.

    [flavors.small]                 # TOML: whole numbers, or amounts such as "4GiB"
    vcpus = 2
    memory = "4GiB"
    disk = "40GiB"
    extra_specs = { "hw:cpu_policy" = "dedicated" }

or the list that `openstack flavor list --long -f json` prints: Name, VCPUs, RAM (MiB), Disk and Ephemeral (GiB), Swap (MiB), Properties.
A request has what instances may take beside their flavor: cells, devices, a root on a volume, an image that wants cells of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import Any

import msgspec

from projections.reading import between
from projections.wording import size_text
from schemas.aliases import ALIAS_KEY, numa_policy
from schemas.codec import decode_keyed
from schemas.pinning import WantsError, wants
from schemas.requests import Flavor, Image, PlacementRequested
from schemas.topics import REQUESTS
from streams.cli.given.asking import from_text
from streams.cli.given.documents import file_text, read_json, read_toml
from streams.cli.given.units_in import amount_gib, amount_mib
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.records import lost_before
from streams.cli.reading.there import check_there
from streams.log.base import Log
from streams.log.reading import READ_RECORDS
from streams.scheduling.implied import implied

LOOKED_BACK = 20_000
"""So many of the last records of each partition of requests are looked at for flavors."""
OWN_KEYS = ("vcpus", "pcpus", "memory", "disk", "ephemeral", "swap", "extra_specs")
_LIST = re.compile(r"\s*\[\s*[{\]]")
_PAIR = re.compile(r"([^\s=,]+)='([^']*)'")
OPENSTACK = {"vcpus": "VCPUs", "memory": "RAM", "disk": "Disk", "ephemeral": "Ephemeral", "swap": "Swap"}


def from_file(path: str) -> dict[str, Flavor] | PlacementRequested:
    """The flavors of a file by name, in its order, or the request in it; `-` is stdin. Raises UsageProblem."""
    name = "stdin" if path == "-" else path
    text = file_text(path, name, or_stdin=True)
    if text.lstrip().startswith("{"):
        return from_text(text, name, None)
    found = _from_openstack(text, name) if _LIST.match(text) else _from_toml(text, name)
    if not found:
        raise UsageProblem(f"{name}: expected flavors, it has none")
    return found


def asked_for(log: Log, ends: Mapping[int, int]) -> dict[str, PlacementRequested]:
    """What the last requests on a log asked for, up to `ends` by partition, one instance of each kind, the most asked for first.

    A kind is all that one instance takes: flavor, cells, devices, a root on a volume; where it was to go does not count. It is called by
    its flavor's name, one without by its size; kinds that share a name are numbered. Raises as `check_there`, and AnswerIncomplete where
    no request is at hand and some have left.
    """
    check_there(log, REQUESTS)
    counts: Counter[bytes] = Counter()
    for number, end in ends.items():
        first = max(log.start(REQUESTS, number), end - LOOKED_BACK)
        for record in between(log, REQUESTS, number, first, end, READ_RECORDS):
            event = decode_keyed(REQUESTS, record.key, record.value)
            if isinstance(event, PlacementRequested):
                counts[msgspec.json.encode(_kind(event))] += event.count
    if not counts and (lost := lost_before(log, REQUESTS)):
        raise AnswerIncomplete(f"no request is at hand: {lost}; or give --vcpus, --memory, --disk, or a file of flavors")
    named: dict[str, PlacementRequested] = {}
    for text in sorted(counts, key=lambda text: (-counts[text], text)):
        kind = msgspec.json.decode(text, type=PlacementRequested)
        name = kind.flavor.name or size_text(kind)
        named.setdefault(name if name not in named else _another(name, named), kind)
    return named


def looks_back_less(log: Log, number: int, end: int) -> bool:
    """Whether requests that `asked_for` would look at in a partition have left the log."""
    start = log.start(REQUESTS, number)
    return start > 0 and end - start < LOOKED_BACK


def _kind(request: PlacementRequested) -> PlacementRequested:
    """What one instance of a request takes, and nothing else. An image counts only if it changes that."""
    return PlacementRequested(
        request_id="-",
        flavor=request.flavor,
        image=request.image if _takes(request.flavor, request.image) != _takes(request.flavor, Image()) else Image(),
        numa=request.numa,
        pci=request.pci,
        boot_from_volume=request.boot_from_volume,
    )


def _takes(flavor: Flavor, image: Image) -> object:
    """What an instance takes beside its amounts, or why it can be nowhere: cells, how near its devices are to those, what nobody counts."""
    try:
        near = numa_policy(flavor, image) if flavor.extra_specs.get(ALIAS_KEY) else ""
        return wants(flavor, image), near, implied(flavor, image).problem
    except WantsError as error:
        return str(error)


def _another(name: str, known: Mapping[str, object]) -> str:
    return next(text for number in count(2) if (text := f"{name} ({number})") not in known)


def _from_toml(text: str, name: str) -> dict[str, Flavor]:
    data = read_toml(text, name)
    tables = data.get("flavors", {})
    if set(data) - {"flavors"} or not isinstance(tables, dict):
        raise UsageProblem(f"{name}: expected tables such as [flavors.small], and nothing else")
    return {flavor: _flavor(flavor, table, f"{name}: flavors.{flavor}") for flavor, table in tables.items()}


def _from_openstack(text: str, name: str) -> dict[str, Flavor]:
    rows = read_json(text, name, list[dict[str, Any]])
    found: dict[str, Flavor] = {}
    for at, row in enumerate(rows):
        flavor = row.get("Name")
        if not isinstance(flavor, str) or not flavor:
            raise UsageProblem(f"{name}: item {at}: expected a Name, as `openstack flavor list --long -f json` has it")
        place = f"{name}: item {at} ({flavor})"
        if flavor in found:
            raise UsageProblem(f"{place}: another item has that name; expected each flavor once")
        table = {key: row[theirs] for key, theirs in OPENSTACK.items() if row.get(theirs)}
        table["extra_specs"] = _properties(row, place)
        found[flavor] = _flavor(flavor, table, place)
    return found


def _properties(row: Mapping[str, Any], place: str) -> dict[str, str]:
    """A flavor's extra specs: an object, or the text `key='value', …` of older clients. Raises UsageProblem."""
    if "Properties" not in row:
        told = "expected its Properties, or nobody knows its extra specs; `openstack flavor list --long -f json` has them"
        raise UsageProblem(f"{place}: {told}")
    said = row["Properties"] or {}
    if isinstance(said, str):
        pairs = _PAIR.findall(said)
        if ", ".join(f"{key}='{value}'" for key, value in pairs) == said:
            return dict(pairs)
    if not isinstance(said, dict):
        raise UsageProblem(f"{place}: expected Properties as an object, or as key='value', …; got {str(said)[:80]!r}")
    return {key: str(value) for key, value in said.items()}


def _flavor(name: str, table: object, place: str) -> Flavor:
    if not isinstance(table, Mapping):
        raise UsageProblem(f"{place}: expected a table with some of {', '.join(OWN_KEYS)}")
    if unknown := sorted(set(table) - set(OWN_KEYS)):
        raise UsageProblem(f"{place}: {unknown[0]!r} is not known; known: {', '.join(OWN_KEYS)}")
    said = {
        "name": name,
        "vcpus": table.get("vcpus", 0),
        "pcpus": table.get("pcpus", 0),
        "memory_mib": amount_mib(str(table.get("memory", 0)), f"{place}.memory"),
        "root_gib": amount_gib(str(table.get("disk", 0)), f"{place}.disk"),
        "ephemeral_gib": amount_gib(str(table.get("ephemeral", 0)), f"{place}.ephemeral"),
        "swap_mib": amount_mib(str(table.get("swap", 0)), f"{place}.swap"),
        "extra_specs": table.get("extra_specs", {}),
    }
    try:
        flavor = msgspec.convert(said, Flavor)
    except msgspec.ValidationError as problem:
        raise UsageProblem(f"{place}: {problem}") from None
    if flavor == Flavor(name=name):
        raise UsageProblem(f"{place}: it asks for nothing; expected some of {', '.join(OWN_KEYS)}")
    return flavor
