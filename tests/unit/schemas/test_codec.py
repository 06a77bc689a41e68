"""Bad bytes are values: whatever stands in a message, decoding gives a record or says why there is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.audits import HypervisorAudited
from schemas.claims import ClaimRenewed
from schemas.codec import UNREADABLE_KINDS, Unreadable, decode, decode_keyed, encode, event_type, key_of, known_types, record_types
from schemas.topics import AUDITS, CLAIMS, DEAD_LETTERS, REQUESTS, TOPICS

GOLDEN = Path(__file__).parents[2] / "golden" / "records.jsonl"
LINES = [msgspec.json.decode(line) for line in GOLDEN.read_bytes().splitlines()]
WITH_RECORDS = sorted(name for name in TOPICS if TOPICS[name].records is not None)
RENEWED = b'{"type":"claim-renewed","node_id":"n1","record_id":"x","claim_id":"c","ttl_ms":5}'
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def reason(topic: str, value: bytes) -> str:
    """Why the bytes count for nothing, as `kind: reason`."""
    verdict = decode(topic, value)
    assert isinstance(verdict, Unreadable)
    return f"{verdict.kind}: {verdict.reason}"


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every leaf and branch of a JSON value but its root."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for name, each in inner for found in [(*path, name), *paths(each, (*path, name))]]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The same JSON value with another one at `path`."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def fits_or_says_why(topic: str, value: bytes) -> None:
    """A record, which then has one form in bytes, or a reason in words."""
    record = decode(topic, value)
    if isinstance(record, Unreadable):
        assert record.kind in {"too-large", "unreadable", "unknown-type", "invalid"}
        assert record.reason
    else:
        assert type(record) in record_types(topic)
        assert decode(topic, encode(record)) == record
        assert encode(decode(topic, encode(record))) == encode(record)


@given(st.sampled_from(WITH_RECORDS), st.binary(max_size=200))
def test_any_bytes_on_any_topic_are_a_value(topic: str, value: bytes) -> None:
    fits_or_says_why(topic, value)


@given(st.sampled_from(LINES), st.data())
def test_a_record_cut_short_is_unreadable(line: dict[str, str], data: st.DataObject) -> None:
    value = line["value"].encode()
    end = data.draw(st.integers(0, len(value) - 1))

    assert reason(line["topic"], value[:end]).startswith("unreadable: expected a JSON object with a type")


@given(st.sampled_from(LINES), st.data())
def test_a_record_with_changed_bytes_is_a_value(line: dict[str, str], data: st.DataObject) -> None:
    value = bytearray(line["value"].encode())
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))

    fits_or_says_why(line["topic"], bytes(value))


@given(st.sampled_from(LINES), st.data())
def test_a_record_with_another_value_somewhere_is_a_value(line: dict[str, str], data: st.DataObject) -> None:
    document = msgspec.json.decode(line["value"])
    path = data.draw(st.sampled_from(paths(document)))

    fits_or_says_why(line["topic"], msgspec.json.encode(replaced(document, path, data.draw(JSON_VALUES))))


@given(st.sampled_from(LINES), st.text(min_size=1, max_size=9).map(lambda name: f"x{name}"), JSON_VALUES)
def test_a_field_that_is_not_known_makes_the_record_invalid(line: dict[str, str], name: str, value: Any) -> None:
    document = {**msgspec.json.decode(line["value"]), name: value}

    assert reason(line["topic"], msgspec.json.encode(document)).startswith(f"invalid: {line['type']}: Object contains unknown field")


@given(st.sampled_from(LINES), st.sampled_from(WITH_RECORDS))
def test_a_type_counts_on_its_own_topic_only(line: dict[str, str], topic: str) -> None:
    verdict = decode(topic, line["value"].encode())

    if topic == line["topic"]:
        assert event_type(verdict) == line["type"]
    else:
        assert isinstance(verdict, Unreadable)
        assert verdict.kind == "unknown-type"
        assert verdict.reason.endswith(f"known: {', '.join(known_types(topic))}")


@given(st.sampled_from(LINES), st.binary(max_size=20))
def test_a_record_counts_under_its_own_key_only(line: dict[str, str], key: bytes) -> None:
    record = decode(line["topic"], line["value"].encode())
    own = key_of(record)

    assert decode_keyed(line["topic"], own or key, line["value"].encode()) == record
    if own is not None and own != key:
        assert decode_keyed(line["topic"], key, line["value"].encode()).kind == "wrong-key"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", "unreadable: expected a JSON object with a type: Input data was truncated"),
        (b"null", "unreadable: expected a JSON object with a type: Expected `object`, got `null`"),
        (b'"claim-renewed"', "unreadable: expected a JSON object with a type: Expected `object`, got `str`"),
        (b'{"node_id":"n1"}', "unreadable: expected a JSON object with a type: Object missing required field `type`"),
        (RENEWED + b" x", "unreadable: expected a JSON object with a type: JSON is malformed"),
        (RENEWED.replace(b"5}", b"-1}"), "invalid: claim-renewed: Expected `int` >= 0 - at `$.ttl_ms`"),
        (RENEWED.replace(b"5}", b"1125899906842625}"), "invalid: claim-renewed: Expected `int` <= 1125899906842624 - at `$.ttl_ms`"),
        (RENEWED.replace(b"5}", b"1e400}"), "invalid: claim-renewed: Number out of range - at `$.ttl_ms`"),
        (RENEWED.replace(b"5}", b'"5"}'), "invalid: claim-renewed: Expected `int`, got `str` - at `$.ttl_ms`"),
        (RENEWED.replace(b"5}", b"5.5}"), "invalid: claim-renewed: Expected `int`, got `float` - at `$.ttl_ms`"),
        (RENEWED.replace(b"5}", b"true}"), "invalid: claim-renewed: Expected `int`, got `bool` - at `$.ttl_ms`"),
        (RENEWED.replace(b'"n1"', b'""'), "invalid: claim-renewed: Expected `str` of length >= 1 - at `$.node_id`"),
        (RENEWED.replace(b"n1", b"n" * 256), "invalid: claim-renewed: Expected `str` of length <= 255 - at `$.node_id`"),
        (RENEWED.replace(b"n1", b"\xff\xfe"), "unreadable: "),
        (RENEWED.replace(b"-renewed", b"-renewed-twice"), "unknown-type: type 'claim-renewed-twice' is not known on claims; known: claim-"),
        (b'{"type":7}', "unreadable: expected a JSON object with a type: Expected `str` - at `$.type`"),
    ],
)
def test_the_reason_names_what_was_expected_what_came_and_where(value: bytes, expected: str) -> None:
    assert reason(CLAIMS, value).startswith(expected)


def test_a_huge_message_is_not_even_parsed() -> None:
    assert reason(CLAIMS, b"[" * ((256 << 10) + 1)) == "too-large: expected at most 262144 bytes, got 262145"


@pytest.mark.parametrize("opening", [b"[", b'{"type":', b'{"a":', b'{"type":"claim-renewed","node_id":['])
def test_a_deep_message_is_unreadable_and_ends_no_reader(opening: bytes) -> None:
    assert reason(CLAIMS, opening * ((256 << 10) // len(opening))).startswith("unreadable: ")


def test_nesting_that_closes_is_no_record_either() -> None:
    deep = b"[" * 33 + b"]" * 33

    assert reason(CLAIMS, RENEWED.replace(b"5}", deep + b"}")).startswith("invalid: claim-renewed: Expected `int`, got `array`")


def test_a_record_at_the_limit_is_read_and_one_byte_more_is_not() -> None:
    padded = RENEWED + b" " * ((256 << 10) - len(RENEWED))

    assert isinstance(decode(CLAIMS, padded), ClaimRenewed)
    assert reason(CLAIMS, padded + b" ").startswith("too-large")


def test_what_a_record_refuses_itself_is_a_value_too() -> None:
    half = HypervisorAudited(node_id="n1", producer="p", epoch=1, counter=1, taken_at_ms=1, mono_ms=1, digest="d")
    value = encode(half).replace(b'"digest":"d"', b'"digest":"d","instances":[]')

    assert reason(AUDITS, value).startswith("invalid: hypervisor-audited: hypervisor and instances: expected both")
    assert "count: expected 1 to 1000 instances, got 0" in reason(
        REQUESTS, b'{"type":"placement-requested","request_id":"r","flavor":{},"count":0}'
    )


def test_a_topic_without_records_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        decode(DEAD_LETTERS, b"{}")


def test_every_kind_of_what_cannot_be_read_is_among_those_that_people_may_ask_for() -> None:
    root = GOLDEN.parent.parent.parent
    files = [file for package in ("schemas", "projections", "streams", "producers") for file in (root / package).rglob("*.py")]

    made = {kind for file in files for kind in re.findall(r"\bUnreadable\(\s*\"([a-z-]+)\"", file.read_text())}

    assert made == set(UNREADABLE_KINDS)
