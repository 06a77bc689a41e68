"""Logs as lines of JSON: kcat's, rpk's and our own."""

import io
import json
from codecs import BOM_UTF8
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.log.base import LogCutShort, LogDamaged, LogReadOnly, Message, Partition, Record, TopicSpec
from streams.log.jsonl import read_jsonl, write_jsonl
from streams.log.memory import MemoryLog

# As kcat 1.7.1 and rpk 24 print them.
KCAT = (
    b'{"topic":"claims","partition":1,"offset":7,"tstype":"create","ts":1700000000123,"broker":1,'
    b'"headers":["ce_id","42","ce_type","claim"],"key":"n1","payload":"{\\"a\\":1}"}\n'
)
RPK = (
    b'{"topic":"claims","key":"n1","value":"{\\"a\\":1}","headers":[{"key":"ce_id","value":"42"}],'
    b'"timestamp":1700000000123,"partition":0,"offset":3}\n'
)


def test_kcats_lines_are_read() -> None:
    log = read_jsonl([KCAT], "x.jsonl")

    headers = (("ce_id", b"42"), ("ce_type", b"claim"))
    assert log.read("claims", 1, 7) == [Record("claims", 1, 7, 1700000000123, b"n1", b'{"a":1}', headers)]
    assert log.topics() == {"claims": 2}
    assert (log.start("claims", 1), log.end("claims", 1), log.end("claims", 0)) == (7, 8, 0)


def test_rpks_lines_are_read() -> None:
    log = read_jsonl([RPK, b"\n"], "x.jsonl")

    assert log.read("claims", 0, 3) == [Record("claims", 0, 3, 1700000000123, b"n1", b'{"a":1}', (("ce_id", b"42"),))]
    assert log.topics() == {"claims": 1}


def test_rpks_records_over_several_lines_are_read_and_one_that_is_cut_short_is_named() -> None:
    pretty = json.dumps(json.loads(RPK), indent=2).encode().splitlines(keepends=True)
    lines = [*pretty, b"\n", KCAT]

    log = read_jsonl(lines, "x.jsonl")

    assert log.read("claims", 0, 3) == read_jsonl([RPK], "x.jsonl").read("claims", 0, 3)
    assert log.end("claims", 1) == 8
    with pytest.raises(LogDamaged, match=r"x.jsonl:1: "):
        read_jsonl(pretty[:-1], "x.jsonl")


def test_the_prefix_of_a_ledger_on_a_shared_cluster_is_taken_off_and_no_other() -> None:
    other = KCAT.replace(b'"claims"', b'"fleet.metrics"')

    assert read_jsonl([KCAT.replace(b'"claims"', b'"fleet.claims"')], "x.jsonl").topics() == {"claims": 2}
    assert read_jsonl([KCAT.replace(b'"claims"', b'"fleet.claims"'), other], "x.jsonl").topics() == {"fleet.claims": 2, "fleet.metrics": 2}
    assert read_jsonl([KCAT, KCAT.replace(b'"claims"', b'"old.claims"')], "x.jsonl").topics() == {"claims": 2, "old.claims": 2}
    two = [KCAT.replace(b'"claims"', b'"old.claims"'), KCAT.replace(b'"claims"', b'"new.claims"')]
    assert read_jsonl(two, "x.jsonl").topics() == {"old.claims": 2, "new.claims": 2}


def test_a_mark_of_the_byte_order_is_passed_over_where_a_file_begins_and_only_there() -> None:
    assert read_jsonl([BOM_UTF8 + KCAT], "x.jsonl").end("claims", 1) == 8
    with pytest.raises(LogDamaged, match=r"x\.jsonl:2: "):
        read_jsonl([KCAT, BOM_UTF8 + KCAT], "x.jsonl")


def test_a_time_that_nobody_knew_is_the_earliest() -> None:
    log = read_jsonl([KCAT.replace(b"1700000000123", b"-1")], "x.jsonl")

    assert [record.time_ms for record in log.read("claims", 1, 7)] == [0]


def test_a_missing_key_or_payload_is_empty() -> None:
    log = read_jsonl([b'{"topic":"t","partition":0,"offset":0,"key":null,"payload":null,"headers":["a",null]}'], "x.jsonl")

    assert log.read("t", 0, 0) == [Record("t", 0, 0, 0, b"", b"", (("a", b""),))]


@given(st.lists(st.tuples(st.binary(), st.binary(), st.lists(st.tuples(st.text(st.characters(codec="utf-8")), st.binary()), max_size=3))))
def test_what_is_written_is_read_back_byte_for_byte(parts: list[tuple[bytes, bytes, list[tuple[str, bytes]]]]) -> None:
    topics = [TopicSpec("t", 3, compacted=True)]
    log = MemoryLog(topics, clock=lambda: 5)
    log.append([Message("t", key, value, tuple(headers)) for key, value, headers in parts])
    records = [record for number in range(3) for record in log.read("t", number, 0)]

    stream = io.BytesIO()
    written = write_jsonl(records, stream, topics, ledger_id="abc")
    again = read_jsonl(stream.getvalue().splitlines(), "x.jsonl")

    assert written == len(parts)
    assert again.ledger_id == "abc"
    assert again.topics() == {"t": 3}
    assert [record for number in range(3) for record in again.read("t", number, 0)] == records


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        KCAT[:60],
        b"[]",
        b'{"topic":"t","partition":-1,"offset":0}',
        b'{"topic":"t","partition":0,"offset":0,"payload_base64":"?"}',
        b'{"topic":"t","partition":0,"offset":0,"headers":["name-without-value"]}',
        b'{"topic":"t","partition":0,"offset":0,"headers":[null,"value"]}',
        b'{"topic":"\xff","partition":0,"offset":0}',
        b'{"topic":"t","partition":4294967296,"offset":0}',
        b'{"topic":"t","partition":0,"offset":9223372036854775808}',
        b'{"topic":"t","partition":0,"offset":0,"ts":9223372036854775808}',
        b'{"topic":"t","partition":0,"offset":0,"timestamp":9223372036854775808}',
        b'{"topic":"t","partition":0,"offset":0,"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    ],
)
def test_a_line_that_is_no_record_is_named(line: bytes) -> None:
    with pytest.raises(LogDamaged, match=r"x\.jsonl:2: "):
        read_jsonl([KCAT, line], "x.jsonl")


@pytest.mark.parametrize(
    "head",
    [
        b'{"claimlog":1,"topics":[{"name":"claims","partitions":4294967296}]}',
        b'{"claimlog":1,"topics":[{"name":"claims","partitions":1}],"ends":{"claims":[9223372036854775808]}}',
    ],
)
def test_a_first_line_of_more_than_there_can_be_is_named(head: bytes) -> None:
    with pytest.raises(LogDamaged, match=r"x\.jsonl:1: .*(at most 100000|<=)"):
        read_jsonl([head, KCAT], "x.jsonl")


def test_the_largest_numbers_of_a_record_are_read_and_written_back() -> None:
    line = b'{"topic":"claims","partition":0,"offset":1125899906842623,"ts":1125899906842624}'

    log = read_jsonl([line], "x.jsonl")
    stream = io.BytesIO()
    write_jsonl(log.read("claims", 0, (1 << 50) - 1), stream, [TopicSpec("claims", 1)], ends={"claims": log.ends("claims")})
    again = read_jsonl(stream.getvalue().splitlines(keepends=True), "x.jsonl")

    assert [(record.offset, record.time_ms) for record in again.read("claims", 0, (1 << 50) - 1)] == [((1 << 50) - 1, 1 << 50)]


def test_a_file_of_ours_that_ends_within_a_line_was_cut_short_and_is_not_damaged() -> None:
    stream = io.BytesIO()
    records = [Record("claims", 0, offset, 1700000000123, b"n1", b"{}", ()) for offset in range(2)]
    write_jsonl(records, stream, [TopicSpec("claims", 1)], ends={"claims": {0: 2}})
    head, first, last = stream.getvalue().splitlines(keepends=True)

    with pytest.raises(LogCutShort, match=r"x\.jsonl: it was cut short within line 3"):
        read_jsonl([head, first, last[:-5]], "x.jsonl")
    with pytest.raises(LogDamaged, match=r"x\.jsonl:2: "):
        read_jsonl([head, first[:-5] + b"\n", last], "x.jsonl")


def written(offsets: int, ends: dict[str, dict[int, int]]) -> list[bytes]:
    """The lines of a file of ours."""
    stream = io.BytesIO()
    records = [Record("claims", 0, offset, 1700000000123, b"n1", b"{}", ()) for offset in range(offsets)]
    write_jsonl(records, stream, [TopicSpec("claims", 2), TopicSpec("rows", 1)], ends=ends)
    return stream.getvalue().splitlines(keepends=True)


def test_what_the_first_line_says_and_the_records_do_not_keep_is_told() -> None:
    whole = {"claims": {0: 2, 1: 0}, "rows": {0: 0}}
    told: list[str] = []

    assert read_jsonl(written(2, whole), "x.jsonl", told.append).end("claims", 0) == 2
    assert told == []
    for ends, said in (
        ({"claims": {0: 3, 1: 0}}, "claims/0 ends at 2, its first line says 3"),
        ({"claims": {0: 2, 1: 1}, "rows": {0: 1}}, r"claims/1 ends at 0, its first line says 1 \(and 1 partitions more\)"),
    ):
        with pytest.raises(LogCutShort, match=rf"x\.jsonl: it was cut short: {said}\. Copy it again"):
            read_jsonl(written(2, ends), "x.jsonl")
    assert read_jsonl(written(1, whole), "x.jsonl", told.append).end("claims", 0) == 1
    assert told == ["x.jsonl: it was cut short: claims/0 ends at 1, its first line says 2; answers are about the records that are there"]


def test_a_first_line_that_is_not_the_first_is_no_record() -> None:
    lines = written(1, {})

    with pytest.raises(LogDamaged, match=r"x\.jsonl:3: "):
        read_jsonl(lines + lines, "x.jsonl")


def test_offsets_must_rise() -> None:
    with pytest.raises(LogDamaged, match="must rise"):
        read_jsonl([KCAT, KCAT], "x.jsonl")


def test_times_never_go_back() -> None:
    later = KCAT.replace(b'"offset":7', b'"offset":9').replace(b"1700000000123", b"1600000000000")

    log = read_jsonl([KCAT, later], "x.jsonl")

    assert [record.time_ms for record in log.read("claims", 1, 7)] == [1700000000123] * 2


def test_it_can_be_read_and_waited_for_but_not_written() -> None:
    log = read_jsonl([KCAT], "x.jsonl")
    acts: tuple[Callable[[], object], ...] = (
        lambda: log.append([Message("claims", b"k", b"v")]),
        lambda: log.create([TopicSpec("new", 1)]),
        lambda: log.truncate("claims", 1, 8),
        lambda: log.compact("claims", 1),
    )

    assert log.wait({Partition("claims", 1): 7}, 0)
    for act in acts:
        with pytest.raises(LogReadOnly, match=r"x\.jsonl"):
            act()
    assert (log.topics(), log.start("claims", 1), log.end("claims", 1)) == ({"claims": 2}, 7, 8)
