"""What is asked for, as people write it: flags for one kind of instance, or a whole request as JSON; alike in every verb that takes one."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from cyclopts import Parameter
from msgspec import to_builtins

from schemas.requests import Flavor, Hints, PlacementRequested, ServerGroup
from streams.cli.given.documents import file_text, read_json
from streams.cli.given.node_names import unknown_node
from streams.cli.given.units_in import amount_gib, amount_mib, duration_ms, not_empty, whole
from streams.cli.given.words import is_name
from streams.cli.problems import UsageProblem

GroupPolicy = Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]


Given = Annotated[str, Parameter(show_default=False, converter=not_empty)]
Size = Annotated[str | None, Parameter(show_default=False)]
"""An amount. One of 0 is an answer, and none at all (`--memory "$UNSET"`) is a mistake; neither is as if the flag were left out."""
HINTS = ("same_host", "different_host", "build_near_host_ip", "cidr", "query")
"""The hints that a filter of ours reads."""
CLOSE = 0.8
"""Names that are so much alike are one misspelt: a hint that nobody reads would be lost without a word."""
SIZES = ("vcpus", "pcpus", "memory", "disk", "ephemeral", "swap")
Many = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


def _no_flag(_type: type[str], file: str) -> None:
    """A mistyped flag is not the file; `-`, a number and what stands behind `--` are none. Raises ValueError."""
    if file.startswith("-") and file != "-" and not file[1].isdecimal() and not is_name(file):
        raise ValueError(f"there is no flag {file}")


def file_or_stdin(says: str, name: str | None = None) -> Parameter:
    """An argument that is a file, or `-` for stdin."""
    return Parameter(name=name, allow_leading_hyphen=True, validator=_no_flag, help=says, show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of instance, and where it may go."""

    vcpus: Annotated[int | None, Parameter(converter=whole, show_default=False, help="vCPUs of one instance.")] = None
    pcpus: Annotated[int | None, Parameter(converter=whole, show_default=False, help="Dedicated CPUs of one instance.")] = None
    memory: Annotated[Size, Parameter(help="Memory of one instance: 4GiB, 512MiB or 512 (MiB).")] = None
    disk: Annotated[Size, Parameter(help="Root disk of one instance: 40GiB or 40 (GiB).")] = None
    ephemeral: Annotated[Size, Parameter(help="Ephemeral disk: 10GiB or 10 (GiB).")] = None
    swap: Annotated[Size, Parameter(help="Swap: 512MiB or 512 (MiB).")] = None
    flavor: Annotated[Given, Parameter(help="The flavor's name, for people and filters; its sizes are the flags above.")] = ""
    zone: Annotated[Given, Parameter(help="Availability zone.")] = ""
    group: Annotated[Given, Parameter(help="Server group.")] = ""
    policy: Annotated[
        GroupPolicy, Parameter(help="Policy of --group; soft ones are weighed by schedulers of spread, pack and nova, not absolute ones.")
    ] = "anti-affinity"
    hint: Annotated[
        Many,
        Parameter(help="same_host=INSTANCE, different_host=INSTANCE, or KEY=VALUE for code of your own; repeatable."),
    ] = ()
    trait: Annotated[Many, Parameter(help="A trait the node must have; !TRAIT must not. Repeatable.")] = ()
    force: Annotated[Many, Parameter(help="Only this node, whatever its ratios; repeatable.")] = ()
    on: Annotated[Many, Parameter(help="Only among these nodes, filtered like any other; repeatable.")] = ()
    avoid: Annotated[Many, Parameter(help="Not on this node; repeatable.")] = ()
    volume: Annotated[bool, Parameter(help="The root disk is a volume and takes no disk of the node.", negative=())] = False

    @property
    def has_sizes(self) -> bool:
        """Whether some size of an instance was given, be it 0."""
        return any(getattr(self, name) is not None for name in SIZES)

    def sizes(self) -> Flavor:
        """The flavor of these flags; what was not given is 0. Raises UsageProblem."""
        return Flavor(
            name=self.flavor,
            vcpus=_at_least_0(self.vcpus or 0, "--vcpus"),
            pcpus=_at_least_0(self.pcpus or 0, "--pcpus"),
            memory_mib=amount_mib("0" if self.memory is None else self.memory, "--memory"),
            root_gib=amount_gib("0" if self.disk is None else self.disk, "--disk"),
            ephemeral_gib=amount_gib("0" if self.ephemeral is None else self.ephemeral, "--ephemeral"),
            swap_mib=amount_mib("0" if self.swap is None else self.swap, "--swap"),
        )

    def only(self, *allowed: str) -> None:
        """Refuse flags of an instance beside a request that says all of it already, but for these. Raises UsageProblem."""
        for name in type(self).__dataclass_fields__:
            if name not in allowed and getattr(self, name) != getattr(type(self)(), name):
                goes = f"of the flags of an instance only --{allowed[0]} goes with it" if allowed else "no flag of an instance goes with it"
                raise UsageProblem(f"--{name}: the request is given already; {goes}")

    def check_nodes(self, known: Collection[str]) -> None:
        """Refuse a node named by a flag that the fleet asked about does not have: to avoid one that is not there says nothing.

        Raises UsageProblem. A request that is published may name what comes later.
        """
        for name in (*self.force, *self.on, *self.avoid):
            if name not in known:
                raise UsageProblem(unknown_node(name, sorted(known)))

    def request(self, request_id: str, sizes: Flavor | None = None) -> PlacementRequested:
        """The request of these flags, with another flavor if one is given, whatever it asks for. Raises UsageProblem."""
        flavor = self.sizes() if sizes is None else sizes
        if sizes is None and flavor == Flavor(name=flavor.name):
            given = "every size is 0; " if self.has_sizes else ""
            raise UsageProblem(f"nothing is asked for: {given}give --vcpus, --memory or --disk, or a JSON file")
        if self.policy != Kind.policy and not self.group:
            raise UsageProblem(f"--policy {self.policy}: a policy is that of a server group; name it with --group")
        said = self._of_several() | ({"group": ServerGroup(group_id=self.group, policy=self.policy)} if self.group else {})
        return _checked(
            request_id=request_id,
            flavor=flavor,
            availability_zone=self.zone,
            hints=_hints(self.hint),
            traits_required=tuple(name for name in self.trait if not name.startswith("!")),
            traits_forbidden=tuple(name.removeprefix("!") for name in self.trait if name.startswith("!")),
            forced_nodes=self.force,
            requested_nodes=self.on,
            ignored_nodes=self.avoid,
            boot_from_volume=self.volume,
            **said,
        )

    def _of_several(self) -> dict[str, Any]:
        """What a request says beside its kind of instance. Raises UsageProblem."""
        return {}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Asking(Kind):
    """Instances of one kind, as many as are to be placed together."""

    count: Annotated[int | None, Parameter(converter=whole, show_default=False, help="How many instances, all or none; default 1.")] = None
    instance: Annotated[Many, Parameter(help="The instances' ids, one a flag; derived from the request's id if left out.")] = ()
    ttl: Annotated[Size, Parameter(allow_leading_hyphen=True, help="How long its claims wait for their instances; default: 10m.")] = None

    def _of_several(self) -> dict[str, Any]:
        ttl_ms = None if self.ttl is None else duration_ms(self.ttl)
        if ttl_ms == 0:
            raise UsageProblem(f"--ttl {self.ttl}: its claims would be gone before an instance could start; expected a time such as 10m")
        for each in self.instance:
            if UUID_IN_CAPITALS.fullmatch(each):
                raise UsageProblem(f"--instance {each}: hosts say uuids in small letters; write it so: {each.lower()}")
        said = {"count": 1 if self.count is None else self.count, "instance_ids": self.instance}
        return said if ttl_ms is None else {**said, "ttl_ms": ttl_ms}


UUID_IN_CAPITALS = re.compile(r"(?=.*[A-F])[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
KIND = Kind()
"""No kind of instance given."""
ASKING = Asking()
"""Nothing asked for."""


def from_json(file: str, request_id: str | None) -> PlacementRequested:
    """The request in a file. `request_id` (and `type`) may be left out there. Raises UsageProblem."""
    name = "stdin" if file == "-" else file
    return from_text(file_text(file, name, or_stdin=True), name, request_id)


def from_text(text: str, name: str, request_id: str | None) -> PlacementRequested:
    """The request in a text; `name` is what messages call it. Raises UsageProblem."""
    data: object = read_json(text, name, object)
    if not isinstance(data, dict):
        raise UsageProblem(f"{name}: expected one JSON object, a placement-requested")
    said = {"type": "placement-requested", "request_id": str(uuid4()), **data} | ({"request_id": request_id} if request_id else {})
    try:
        return msgspec.convert(said, PlacementRequested)
    except msgspec.ValidationError as problem:
        raise UsageProblem(f"{name}: {problem}; see `claimlog schemas show placement-requested`") from None


def _checked(**said: Any) -> PlacementRequested:
    """The request, with every bound of its schema. Raises UsageProblem."""
    try:
        made = PlacementRequested(**said)
        return msgspec.convert(to_builtins(made), PlacementRequested)
    except (msgspec.ValidationError, ValueError) as problem:
        raise UsageProblem(f"this cannot be asked for: {problem}") from None


def _at_least_0(number: int, flag: str) -> int:
    if number < 0:
        raise UsageProblem(f"{flag} {number}: expected 0 or more")
    return number


def _hints(given: tuple[str, ...]) -> Hints:
    """Scheduler hints by Nova's names; any other one is for code of one's own. Raises UsageProblem."""
    said: dict[str, Any] = {"other": {}}
    single: set[str] = set()
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key or not value:
            raise UsageProblem(f"--hint {text!r}: expected KEY=VALUE, such as different_host=INSTANCE")
        if key == "group":
            raise UsageProblem(f"--hint {text!r}: a server group is named by --group, and its policy by --policy")
        if key not in HINTS and (close := get_close_matches(key, HINTS, n=1, cutoff=CLOSE)):
            raise UsageProblem(f"--hint {text!r}: did you mean {close[0]}? No filter reads {key}; known: {', '.join(HINTS)}")
        if key in {"same_host", "different_host"}:
            said[key] = (*said.get(key, ()), value)
        elif key in single:
            raise UsageProblem(f"--hint {text!r}: {key} is given twice, and has one value; only same_host and different_host add up")
        elif key in {"build_near_host_ip", "cidr", "query"}:
            said[key] = value
        else:
            said["other"][key] = value
        single.add(key)
    return Hints(**said)
