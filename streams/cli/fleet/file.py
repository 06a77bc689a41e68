"""fleet.toml: the operator's settings of many nodes in one file. Pure: text in, wanted settings and their differences out.

    [defaults]                              # every known node
    zone = "east"
    memory_mib = { ratio = 1.5, reserved = 512 }

    [nodes."c0*"]                           # patterns in the order of the file, over the defaults
    vcpus = { ratio = 16 }

    [nodes.c07]                             # a name alone comes last
    zone = "west"
    traits = ["HW_CPU_X86_AVX2"]
    pages_reserved = [{ size_kib = 2048, reserved = 128 }]

    [aggregates.ssd]                        # with an aggregate in the file, these are all there are
    nodes = ["c0*"]
    metadata = { disk = "ssd" }

What the file does not mention stays as it is on the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict, fields, replace

from projections.node import Node
from schemas.inventory import Aggregate, HugePages, OperatorFields, ResourceRule
from schemas.resources import RESOURCES
from schemas.units import AMOUNT_MAX, NAME_CHARACTERS_MAX, TEXT_CHARACTERS_MAX, Amount, Count, Name
from streams.cli.fleet.meant import RuleField, lets_something_through
from streams.cli.given.documents import read_toml
from streams.cli.printed import units
from streams.cli.problems import UsageProblem

UNLIMITED = "unlimited"
SECTIONS = ("defaults", "nodes", "aggregates")

_Table = TypeVar("_Table")
Trait = Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}\Z")]
"""As Placement names them. Nobody can ask for another, and who wrote it in small letters would never hear why its nodes are passed over."""
_NO_CONTROLS = r"^[^\x00-\x1f\x7f]*\Z"
Label = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX, pattern=_NO_CONTROLS)]
LabelName = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX, pattern=_NO_CONTROLS)]
"""What requests name, on a command line or in a flavor: a control character comes from a broken file, and would fit nothing."""
Positive = Annotated[int, Meta(ge=1, le=AMOUNT_MAX)]
PAGE_KIB_MIN = 4


class ResourceTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One resource in the file; `ratio` is a decimal such as 1.5, or "unlimited"."""

    reserved: Amount | UnsetType = UNSET
    ratio: Any = UNSET
    min_unit: Count | UnsetType = UNSET
    max_unit: Count | Literal["unlimited"] | UnsetType = UNSET
    step_size: Count | UnsetType = UNSET


class PagesTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many huge pages of one size each cell of the node keeps to itself."""

    size_kib: Positive
    reserved: Positive


class NodeTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[defaults]` or one table under `[nodes]`."""

    vcpus: ResourceTable | UnsetType = UNSET
    pcpus: ResourceTable | UnsetType = UNSET
    memory_mib: ResourceTable | UnsetType = UNSET
    disk_mib: ResourceTable | UnsetType = UNSET
    zone: Label | UnsetType = UNSET
    traits: tuple[Trait, ...] | UnsetType = UNSET
    pages_reserved: tuple[PagesTable, ...] | UnsetType = UNSET


class AggregateTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table under `[aggregates]`: its members by name or pattern, and its metadata."""

    nodes: tuple[Name, ...]
    metadata: dict[LabelName, Label] = {}


class FleetFile(Struct, frozen=True, kw_only=True):
    """A file that was read and checked; `aggregates` is None if it has none, which is not an empty set of them.

    `patterns` are those of its `nodes` that may fit several, `member_patterns` those of each aggregate, and `memberships` by the name of a
    node the aggregates that list it: a file that names every node is not gone through for each of them.
    """

    name: str
    defaults: NodeTable
    nodes: dict[str, NodeTable]
    aggregates: dict[str, AggregateTable] | None
    patterns: tuple[str, ...]
    member_patterns: dict[str, tuple[str, ...]]
    memberships: dict[str, set[str]]


class Change(Struct, frozen=True):
    """One setting of one node that the file has otherwise."""

    node_id: str
    field: str
    before: str
    after: str


def read(text: str, name: str) -> FleetFile:
    """The file `name`, whose text is `text`. Raises UsageProblem, which names the place and what was expected there."""
    data = read_toml(text, name, parse_float=Decimal)
    for section, value in data.items():
        if section not in SECTIONS:
            raise UsageProblem(f"{name}: there is no section [{section}]; there are: {', '.join(SECTIONS)}")
        if not isinstance(value, dict):
            raise UsageProblem(f"{name}: {section} must be a table, not {value!r}")
        if section != "defaults" and not all(isinstance(table, dict) for table in value.values()):
            raise UsageProblem(f"{name}: {section} must be a table of tables, such as [{section}.NAME]")
    nodes = {node: _node_table(table, f'{name}: nodes."{node}"') for node, table in data.get("nodes", {}).items()}
    aggregates = {a: _table(t, AggregateTable, f"{name}: aggregates.{a}") for a, t in data.get("aggregates", {}).items()}
    memberships: dict[str, set[str]] = {}
    for aggregate, table in aggregates.items():
        for node in table.nodes:
            memberships.setdefault(node, set()).add(aggregate)
    return FleetFile(
        name=name,
        defaults=_node_table(data.get("defaults", {}), f"{name}: defaults"),
        nodes=nodes,
        aggregates=aggregates if "aggregates" in data else None,
        patterns=tuple(filter(is_pattern, nodes)),
        member_patterns={aggregate: tuple(filter(is_pattern, table.nodes)) for aggregate, table in aggregates.items()},
        memberships=memberships,
    )


def _table(table: Mapping[str, Any], kind: type[_Table], place: str) -> _Table:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as problem:
        said = str(problem).replace("`$.", "`").replace("Object contains", "it has the")
        raise UsageProblem(f"{place}: {said}{_known(said, kind)}") from None


def _known(said: str, kind: type) -> str:
    """The fields there are where the unknown one stands; empty if something else is wrong."""
    inside = said.partition(" - at `")[2].rstrip("`")
    if "unknown field" not in said or inside not in ("", *RESOURCES):
        return ""
    return f"; there are: {', '.join(field.name for field in fields(ResourceTable if inside else kind))}"


def _node_table(table: Mapping[str, Any], place: str) -> NodeTable:
    read_table = _table(table, NodeTable, place)
    traits = () if read_table.traits is UNSET else read_table.traits
    sizes = () if read_table.pages_reserved is UNSET else [pages.size_kib for pages in read_table.pages_reserved]
    for name, values in (("traits", traits), ("pages_reserved", sizes)):
        if twice := [value for value, times in Counter[object](values).items() if times > 1]:
            raise UsageProblem(f"{place}.{name}: {twice[0]} is there twice; leave one out")
    for size_kib in sizes:
        if size_kib < PAGE_KIB_MIN or size_kib & (size_kib - 1):
            raise UsageProblem(f"{place}.pages_reserved: no host has pages of {size_kib} KiB; expected a power of two, such as 2048")
    for resource in RESOURCES:
        setting: ResourceTable | UnsetType = getattr(read_table, resource)
        if setting is UNSET:
            continue
        if setting.ratio is not UNSET:
            ratio_milli(setting.ratio, f"{place}.{resource}.ratio")
        for name in ("min_unit", "step_size"):
            if getattr(setting, name) == 0:
                raise UsageProblem(f"{place}.{resource}.{name}: expected 1 or more, got 0; 1 lets any amount be asked for")
    return read_table


LEAST = Decimal("0.001")
"""The least ratio, as they are kept in thousandths."""


def ratio_milli(ratio: object, place: str) -> int | None:
    """Thousandths of a ratio, exactly; None for no limit. Raises UsageProblem."""
    if ratio == UNLIMITED:
        return None
    if isinstance(ratio, bool) or not isinstance(ratio, int | Decimal):
        raise UsageProblem(f'{place}: expected a number such as 1.5, or "{UNLIMITED}", got {ratio!r}')
    given = Decimal(ratio)
    if not given.is_finite():
        raise UsageProblem(f'{place}: expected a number such as 1.5, or "{UNLIMITED}", got {ratio}')
    # Looked at first: what is farther out cannot be multiplied either.
    if not LEAST <= given <= Decimal(AMOUNT_MAX) / 1000:
        raise UsageProblem(f'{place}: {ratio} is out of range; expected {LEAST} to {AMOUNT_MAX // 1000}, or "{UNLIMITED}"')
    exact = given * 1000
    if exact != int(exact):
        raise UsageProblem(f"{place}: {ratio} has more than three decimals, and ratios are kept in thousandths")
    return int(exact)


def unknown_names(file: FleetFile, known: Iterable[str]) -> list[str]:
    """Names and patterns in the file that fit no known node, in the file's order."""
    there = set(known)
    named = [*file.nodes, *(name for table in (file.aggregates or {}).values() for name in table.nodes)]
    unknown = [name for name in dict.fromkeys(named) if name not in there]
    return [name for name in unknown if not (is_pattern(name) and any(fnmatchcase(node_id, name) for node_id in there))]


def is_pattern(name: str) -> bool:
    """Whether a name in the file may fit several nodes."""
    return any(part in name for part in "*?[")


def wanted(file: FleetFile, node: Node) -> OperatorFields:
    """What the file wants of a node, in full where it says anything of a field: the defaults, then patterns, then the node's own table.

    Raises UsageProblem for limits that let nothing through.
    """
    said: dict[str, Any] = {}
    for table in _tables(file, node.node_id):
        for name in ("zone", "traits", "pages_reserved"):
            if (value := getattr(table, name)) is not UNSET:
                said[name] = tuple(map(_reserved, value)) if name == "pages_reserved" else value
        for resource in RESOURCES:
            setting: ResourceTable | UnsetType = getattr(table, resource)
            if setting is not UNSET:
                rule = said[resource] = _rule(said.get(resource, node.rule(resource)), setting)
                if not lets_something_through(rule):
                    raise UsageProblem(
                        f"{file.name}: {node.node_id}: {resource}: min_unit {rule.min_unit} is above max_unit {rule.max_unit}: "
                        "whatever asks for any would fit nowhere"
                    )
    if file.aggregates is not None:
        listed = file.memberships.get(node.node_id, set())
        said["aggregates"] = tuple(
            Aggregate(name=name, metadata=dict(sorted(table.metadata.items())))
            for name, table in sorted(file.aggregates.items())
            if name in listed or any(fnmatchcase(node.node_id, pattern) for pattern in file.member_patterns[name])
        )
    return OperatorFields(**said)


def named(file: FleetFile, node_id: str) -> set[RuleField]:
    """The amounts that the file says something of for this node, as they are now or not."""
    return {
        (resource, "ratio_milli" if name == "ratio" else name)
        for table in _tables(file, node_id)
        for resource in RESOURCES
        if (setting := getattr(table, resource)) is not UNSET
        for name, value in asdict(setting).items()
        if value is not UNSET
    }


def _tables(file: FleetFile, node_id: str) -> list[NodeTable]:
    """What the file says of a node, from the general to the particular."""
    tables = [file.defaults]
    tables += [file.nodes[name] for name in file.patterns if name != node_id and fnmatchcase(node_id, name)]
    return [*tables, file.nodes[node_id]] if node_id in file.nodes else tables


def _reserved(pages: PagesTable) -> HugePages:
    """As the ledger has it, whose `total` counts where nothing is said of what is reserved."""
    return HugePages(size_kib=pages.size_kib, total=pages.reserved, reserved=pages.reserved)


def _rule(before: ResourceRule, setting: ResourceTable) -> ResourceRule:
    """The rule with what the file says of it."""
    said: dict[str, Any] = {
        name: value for name in ("reserved", "min_unit", "max_unit", "step_size") if (value := getattr(setting, name)) is not UNSET
    }
    if said.get("max_unit") == UNLIMITED:
        said["max_unit"] = None
    if setting.ratio is not UNSET:
        said["ratio_milli"] = ratio_milli(setting.ratio, "ratio")
    return replace(before, **said)


def all_reserved(node: Node, fields: OperatorFields) -> list[str]:
    """What `fields` reserve more of than the node has: nothing that asks for any fits there, and what runs there is over its limit."""
    found = []
    for name in RESOURCES:
        rule, total = getattr(fields, name), node.total(name)
        if isinstance(rule, ResourceRule) and total is not None and rule.reserved > total:
            found.append(f"{node.node_id}: {name}: {rule.reserved} of {total}")
    return found


def changes(node: Node, fields: OperatorFields) -> tuple[OperatorFields, list[Change]]:
    """What of `fields` differs from the node as it is, and the same in words."""
    different: dict[str, Any] = {}
    listed: list[Change] = []
    for name in OperatorFields.__struct_fields__:
        after, before = getattr(fields, name), getattr(node, name)
        if after is UNSET or after == before:
            continue
        different[name] = after
        if isinstance(after, ResourceRule):
            listed += _rule_changes(node.node_id, name, before, after)
        else:
            listed.append(Change(node.node_id, name, _said(before), _said(after)))
    return OperatorFields(**different), listed


def _rule_changes(node_id: str, resource: str, before: ResourceRule, after: ResourceRule) -> list[Change]:
    found = []
    for name in ResourceRule.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            shown = (units.ratio(old), units.ratio(new)) if name == "ratio_milli" else (_said(old), _said(new))
            found.append(Change(node_id, f"{resource}.{name.removesuffix('_milli')}", *shown))
    return found


def _said(value: object) -> str:
    """A setting as people read it."""
    match value:
        case None | "" | ():
            return "none"
        case tuple():
            return ", ".join(_said(each) for each in value)
        case Aggregate(name=name, metadata=metadata):
            return name + ("" if not metadata else " (" + ", ".join(f"{key}={text}" for key, text in metadata.items()) + ")")
        case HugePages():
            return pages_text(**_pages(value))
        case _:
            return str(value)


def pages_text(size_kib: int, reserved: int) -> str:
    """Pages that are kept back, as people read them: `128 of 2048 KiB`."""
    return f"{reserved} of {size_kib} KiB"


def _pages(pages: HugePages) -> dict[str, int]:
    """How many pages of which size a record keeps back, which may say so as their total (see `numa_node`)."""
    return {"size_kib": pages.size_kib, "reserved": pages.reserved or pages.total}


def settings(node: Node) -> dict[str, Any]:
    """The operator's settings of a node, in plain units."""
    return {
        "node_id": node.node_id,
        "status": node.status,
        "status_reason": node.status_reason,
        "zone": node.zone,
        "aggregates": [{"name": each.name, "metadata": dict(each.metadata)} for each in node.aggregates],
        "traits": list(node.traits),
        "pages_reserved": [_pages(each) for each in node.pages_reserved],
        **{resource: asdict(node.rule(resource)) for resource in RESOURCES},
    }
