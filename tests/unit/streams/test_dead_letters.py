"""Dead letters keep what could not be used byte for byte, and find the way back."""

from __future__ import annotations

from base64 import b64encode
from hashlib import blake2b

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import Unreadable
from schemas.envelope import Headers
from schemas.topics import AUDITS, CLAIMS, DEAD_LETTERS, RESULTS
from streams.dead_letters import HEADER_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX, DeadLetter, dead_letter, read_letter, redrive
from streams.log.base import Message, Record

FAULT = Unreadable("invalid", "hypervisor-audited: expected `int` >= 0 - at `$.epoch`")
HEADER_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
RECORDS = st.builds(
    Record,
    topic=st.sampled_from([AUDITS, CLAIMS, RESULTS]),
    partition=st.integers(0, 500),
    offset=st.integers(0, 1 << 50),
    time_ms=st.integers(0, 1 << 50),
    key=st.binary(max_size=40),
    value=st.binary(max_size=200),
    headers=st.lists(st.tuples(HEADER_NAMES, st.binary(max_size=20)), max_size=4).map(tuple),
)
FAULTS = st.builds(Unreadable, kind=st.sampled_from(["invalid", "wrong-key", "too-large", "unknown-type"]), reason=st.text(max_size=80))


def landed(message: Message, offset: int = 5) -> Record:
    """The message as it stands on `dead-letters`."""
    return Record(message.topic, 0, offset, 77, message.key, message.value, message.headers)


def source(value: bytes = b"{", *, topic: str = AUDITS, key: bytes = b"n1", headers: Headers = ()) -> Record:
    return Record(topic, 3, 41, 9, key, value, headers)


@given(RECORDS, FAULTS)
def test_a_letter_brings_back_the_original_bytes_key_and_place(record: Record, fault: Unreadable) -> None:
    letter = dead_letter(record, fault)

    message = redrive(landed(letter))

    assert isinstance(message, Message)
    assert (message.topic, message.partition, message.key, message.value) == (record.topic, record.partition, record.key, record.value)
    assert message.headers == (*(h for h in record.headers if h[0] != "redriven_from"), ("redriven_from", b"dead-letters/0@5"))


@given(RECORDS, FAULTS)
def test_a_letter_says_where_from_and_why(record: Record, fault: Unreadable) -> None:
    message = dead_letter(record, fault)

    letter = read_letter(landed(message))

    assert (message.topic, message.key) == (DEAD_LETTERS, str(record.position).encode())
    assert isinstance(letter, DeadLetter)
    assert (letter.position, letter.kind, letter.size_bytes) == (str(record.position), fault.kind, len(record.value))
    assert letter.headers == record.headers
    assert letter.reason == fault.reason.encode(errors="replace").decode()


@given(RECORDS, FAULTS)
def test_the_same_record_gives_the_same_letter(record: Record, fault: Unreadable) -> None:
    assert dead_letter(record, fault) == dead_letter(record, fault)


@given(RECORDS)
def test_a_letter_of_a_redriven_record_comes_back_like_the_first(record: Record) -> None:
    again = redrive(landed(dead_letter(record, FAULT)))
    assert isinstance(again, Message)
    failed_again = Record(record.topic, record.partition, record.offset + 1, 0, again.key, again.value, again.headers)

    third = redrive(landed(dead_letter(failed_again, FAULT), offset=6))

    assert isinstance(third, Message)
    assert third.value == record.value
    assert [value for name, value in third.headers if name == "redriven_from"] == [b"dead-letters/0@6"]


def test_a_huge_value_is_cut_hashed_and_not_redriven() -> None:
    record = source(b"x" * (VALUE_BYTES_MAX + 1))

    message = dead_letter(record, FAULT)

    letter = read_letter(landed(message))
    assert isinstance(letter, DeadLetter)
    assert (len(letter.value), letter.size_bytes, letter.cut_short) == (512 << 10, (512 << 10) + 1, ("value",))
    assert letter.hash == blake2b(record.value, digest_size=16).hexdigest()
    assert redrive(landed(message)) == Unreadable(
        "cut-short", "dead-letters/0@5: only the start of the value of hypervisor-audits/3@41 was kept; append it from its source"
    )


def test_a_value_at_the_limit_is_whole_and_redriven() -> None:
    record = source(b"x" * VALUE_BYTES_MAX)

    message = redrive(landed(dead_letter(record, FAULT)))

    assert isinstance(message, Message)
    assert message.value == record.value


def test_a_huge_key_is_cut_and_not_redriven() -> None:
    verdict = redrive(landed(dead_letter(source(key=b"k" * (KEY_BYTES_MAX + 1)), FAULT)))

    assert isinstance(verdict, Unreadable)
    assert "only the start of the key" in verdict.reason


def test_headers_without_end_are_cut_yet_the_record_goes_back() -> None:
    record = source(headers=(("a", b"1"), ("b", b"x" * HEADER_BYTES_MAX), ("c", b"2")))

    letter = landed(dead_letter(record, FAULT))

    read = read_letter(letter)
    assert isinstance(read, DeadLetter)
    assert (read.cut_short, read.headers) == (("headers",), (("a", b"1"),))
    assert isinstance(redrive(letter), Message)


def test_a_letter_stays_under_what_a_broker_takes() -> None:
    record = source(b"v" * (2 << 20), key=b"k" * (1 << 20), headers=(("h", b"x" * 60_000),) * 3)

    message = dead_letter(record, Unreadable("too-large", "r" * 100_000))

    assert len(message.key) + len(message.value) + sum(len(name) + len(value) for name, value in message.headers) < 700_000


def test_what_was_in_the_wrong_partition_goes_where_its_key_belongs() -> None:
    message = redrive(landed(dead_letter(source(), Unreadable("wrong-partition", "…"))))

    assert isinstance(message, Message)
    assert message.partition is None


def test_a_message_of_somebody_else_on_dead_letters_is_a_value_too() -> None:
    verdict = redrive(Record(DEAD_LETTERS, 0, 8, 0, b"", b"hello"))

    assert verdict == Unreadable(
        "not-a-letter", "dead-letters/0@8: expected the header dead_letter_topic; it was not written by a dead-letter step"
    )


def test_a_letter_whose_bytes_changed_is_refused() -> None:
    letter = msgspec.structs.replace(landed(dead_letter(source(b"one"), FAULT)), value=b"two")

    verdict = redrive(letter)

    assert isinstance(verdict, Unreadable)
    assert verdict.kind == "damaged"


@given(st.sampled_from(["topic", "partition", "offset", "kind", "key", "size", "hash"]), st.binary(max_size=12))
def test_a_letter_with_a_broken_header_never_raises(name: str, value: bytes) -> None:
    letter = landed(dead_letter(source(), FAULT))
    headers = tuple((known, value if known == f"dead_letter_{name}" else old) for known, old in letter.headers)

    assert isinstance(redrive(msgspec.structs.replace(letter, headers=headers)), Message | Unreadable)


def test_nothing_is_redriven_to_a_topic_that_is_not_ours() -> None:
    verdict = redrive(landed(dead_letter(source(topic="their-topic"), FAULT)))

    assert isinstance(verdict, Unreadable)
    assert verdict.kind == "unknown-topic"


def test_the_key_travels_as_base64_since_headers_are_read_by_people() -> None:
    headers = dict(dead_letter(source(key=b"\xff\x00"), FAULT).headers)

    assert headers["dead_letter_key"] == b64encode(b"\xff\x00")
