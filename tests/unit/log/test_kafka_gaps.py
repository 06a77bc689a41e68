"""Offsets without a record: passed over where outsiders write, the end where a number would rest on them."""

from __future__ import annotations

from schemas.topics import CLAIMS, NODE_RESOURCES, REQUESTS
from streams.log.base import NO_RECORD, Partition, Record, is_stand_in
from streams.log.kafka_gaps import behind_the_last, missing, without_gaps


def fetched(topic: str, *offsets: int) -> list[Record]:
    return [Record(topic, 0, offset, 1000 + offset, b"k", b"{}") for offset in offsets]


def shown(records: list[Record]) -> str:
    return " ".join(f"({record.offset})" if is_stand_in(record) else str(record.offset) for record in records)


def test_an_offset_without_a_record_is_passed_over_where_outsiders_write() -> None:
    found = without_gaps(Partition(REQUESTS, 0), 3, fetched(REQUESTS, 4, 5, 8))

    assert shown(found) == "(3) 4 5 (6) (7) 8"
    assert [record.time_ms for record in found] == [1004, 1004, 1005, 1008, 1008, 1008]


def test_what_comes_again_is_no_gap() -> None:
    assert shown(without_gaps(Partition(REQUESTS, 0), 6, fetched(REQUESTS, 4, 5, 6, 8))) == "4 5 6 (7) 8"


def test_claims_are_served_up_to_the_first_offset_without_a_record() -> None:
    place = Partition(CLAIMS, 0)

    assert shown(without_gaps(place, 3, fetched(CLAIMS, 3, 4, 6))) == "3 4"
    assert without_gaps(place, 3, fetched(CLAIMS, 4)) == []
    assert str(missing(place, 5)).startswith("claims/0@5: no record has this offset")


def test_what_compaction_left_stays_as_it_is() -> None:
    assert shown(without_gaps(Partition(NODE_RESOURCES, 0), 3, fetched(NODE_RESOURCES, 9, 20))) == "9 20"


def test_behind_the_last_record_everything_up_to_the_end_is_passed_over() -> None:
    assert shown(behind_the_last(Partition(REQUESTS, 0), 7, 9, 1000)) == "(7) (8)"
    assert shown(behind_the_last(Partition(NODE_RESOURCES, 0), 7, 9, 1000)) == "(8)"
    assert behind_the_last(Partition("other", 0), 7, 9, 1000) == []


def test_only_what_stands_for_no_record_is_no_record() -> None:
    headers = (NO_RECORD, (), NO_RECORD, (*NO_RECORD, ("ce_id", b"1")))
    records = [
        Record(CLAIMS, 0, at, 0, b"", value, header) for at, (header, value) in enumerate(zip(headers, (b"", b"", b"{}", b""), strict=True))
    ]

    assert [is_stand_in(record) for record in records] == [True, False, False, False]
