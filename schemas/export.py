"""JSON Schemas for readers in other languages: one event type each, in the part of JSON Schema that code generators agree on.

That part is draft 7 with `object`, `enum`, `anyOf` with null, and `$ref`: generators turn a union of all types into one struct of
optional fields, so each type has a document of its own. Every amount carries its unit, taken from its name, in `description` and `x-unit`.
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from schemas.claims import ITEMS_MAX, NODES_MAX
from schemas.codec import event_type, record_types
from schemas.requests import INSTANCES_MAX
from schemas.topics import TOPICS, Topic

DIALECT = "http://json-schema.org/draft-07/schema#"
ID_PREFIX = "urn:claimlog:schema:"

UNITS = {
    "_mib": "MiB",
    "_gib": "GiB",
    "_kib": "KiB",
    "_ms": "milliseconds",
    "_milli": "thousandths",
    "_bits": "bits",
}
"""What the end of a field's name says of its number. Times in milliseconds count from 1970, UTC."""

COUNTED = {"vcpus": "virtual CPUs", "pcpus": "dedicated CPUs"}
"""Amounts whose whole name is their unit."""

TIMES = ("time_ms", "taken_at_ms", "since_ms", "suspected_ms", "started_ms", "taken_up_ms", "commit_by_ms")
"""Ends of names that are points in time; other milliseconds are durations."""


BOUNDS: dict[tuple[str, str], dict[str, Any]] = {
    ("ClaimRequested", "items"): {"minItems": 1, "maxItems": ITEMS_MAX},
    ("ClaimItem", "nodes"): {"minItems": 1, "maxItems": NODES_MAX},
    ("PlacementRequested", "count"): {"minimum": 1, "maximum": INSTANCES_MAX},
    ("PlacementRequested", "instance_ids"): {"maxItems": INSTANCES_MAX},
}
"""What records check themselves, by the name of their class and field: their types do not say it."""


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of every event type, by type."""
    return {event_type(cls): _schema(topic, cls) for topic in TOPICS.values() for cls in record_types(topic.name)}


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one event type. Raises KeyError with the types there are."""
    known = schemas()
    if name not in known:
        raise KeyError(f"type {name!r} is not known; known: {', '.join(sorted(known))}")
    return known[name]


def export(directory: Path) -> list[Path]:
    """Write `TYPE.json` for every event type into `directory`, which is made if need be; returns what was written. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, document in sorted(schemas().items()):
        path = directory / f"{name}.json"
        path.write_bytes(as_json(document) + b"\n")
        written.append(path)
    return written


def as_json(document: dict[str, Any]) -> bytes:
    """Indented, for people and for diffs."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def unit_of(field: str) -> str:
    """The unit that a field's name says, or nothing."""
    return COUNTED.get(field) or next((unit for end, unit in UNITS.items() if field.endswith(end)), "")


def _schema(topic: Topic, cls: Any) -> dict[str, Any]:
    """The type itself at the top, what it refers to under `definitions`."""
    (root,), components = msgspec.json.schema_components([cls], ref_template="#/definitions/{name}")
    top = components.pop(root["$ref"].rpartition("/")[2])
    for component in (top, *components.values()):
        _tidy(component)
    return {
        "$schema": DIALECT,
        "$id": ID_PREFIX + event_type(cls),
        "x-topic": topic.name,
        "x-key": topic.key,
        **top,
        **({"definitions": components} if components else {}),
    }


def _tidy(component: dict[str, Any]) -> None:
    """Docstrings without their indentation, units and bounds beside the numbers."""
    if "description" in component:
        component["description"] = cleandoc(component["description"])
    for name, field in component.get("properties", {}).items():
        field.update(BOUNDS.get((component.get("title", ""), name), {}))
        # Bounds of names of a map's entries: generators know no such word.
        field.get("items", field).pop("propertyNames", None)
        if "$ref" in field:
            # Draft 7 ignores what stands beside a $ref, and generators warn of it.
            component["properties"][name] = {"$ref": field["$ref"]}
        elif unit := unit_of(name):
            field["x-unit"] = unit
            field["description"] = _described(name, unit)


def _described(name: str, unit: str) -> str:
    if name.endswith(TIMES):
        return "Point in time, in milliseconds since 1970, UTC."
    return f"In {unit}."
