"""What counts as a record of `claims` under rules version 1, type by type and field by field, for ever (rule 11).

A field that one version knows and another does not makes a record for the one and a dead letter for the other, so the two count
differently. What is new in a record of `claims` needs the next version of the rules (docs/decisions/0007).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.export import schemas
from schemas.topics import CLAIMS

FILE = Path(__file__).with_name("fields_v1.json")
WORDS = ("$id", "$schema", "description", "title", "x-key", "x-topic", "x-unit")
"""What a schema says to people and generators; it judges nothing."""


def judging(schema: Any) -> Any:
    """The part of a schema that decides what a record is."""
    if isinstance(schema, dict):
        return {name: judging(part) for name, part in schema.items() if not (name in WORDS and isinstance(part, str))}
    return [judging(part) for part in schema] if isinstance(schema, list) else schema


def now() -> dict[str, Any]:
    told = {name: judging(schema) for name, schema in schemas().items() if schema["x-topic"] == CLAIMS}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(told))
    return plain


def test_no_record_of_claims_has_changed_since_rules_version_1_was_frozen() -> None:
    if os.environ.get("CLAIMLOG_GOLDEN") == "write" and not FILE.exists():
        FILE.write_bytes(msgspec.json.format(msgspec.json.encode(now()), indent=1) + b"\n")

    golden = msgspec.json.decode(FILE.read_bytes())

    assert sorted(now()) == sorted(golden)
    for name, schema in now().items():
        assert schema == golden[name], f"{name}: one version would take for a dead letter what another takes for a record"


@pytest.mark.parametrize("name", ["claim-requested", "node-observed"])
def test_the_file_has_the_fields_of_records_and_of_what_they_are_made_of(name: str) -> None:
    golden = msgspec.json.decode(FILE.read_bytes())[name]

    assert golden["additionalProperties"] is False
    assert len(golden["definitions"]) > 3
    assert all(part["properties"] for part in golden["definitions"].values() if part.get("type") == "object" and "enum" not in part)
