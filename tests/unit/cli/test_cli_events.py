"""`claimlog events` and `timeline` beside writers: an answer has what its cut says, and a watch misses nothing."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

import msgspec
import pytest

from projections.cut import Cut
from schemas.audits import HypervisorAudited
from schemas.codec import encode, key_of
from schemas.inventory import Hypervisor
from schemas.requests import Flavor, PlacementCancelled, PlacementRequested
from schemas.results import LedgerDigest
from schemas.topics import AUDITS, CLAIMS, DIGESTS, REQUESTS
from streams.cli import events
from streams.cli.events import coming, record_item
from streams.cli.given.timegrammar import Instant
from streams.cli.printed.output import Report, Style, write
from streams.ledger_topics import open_ledger
from streams.log.base import LogUnreachable, Message, Record
from streams.log.memory import MemoryLog
from streams.log.sqlite import SqliteLog
from tests.cli_log import PARTITIONS, FleetLog


def requested(number: int) -> PlacementRequested:
    """The n-th request."""
    return PlacementRequested(request_id=f"r{number}", flavor=Flavor(memory_mib=512), instance_ids=(f"i-{number}",))


def test_a_type_is_looked_for_wherever_it_may_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Digests are not among the topics shown by default; asked for by their type they are there all the same."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})
    digest = LedgerDigest(ledger_id="x", partition=0, process="p7", offset=0, digest="00" * 16, rules_version=1)
    fleet.log.append([Message(DIGESTS, b"0/p7", encode(digest), partition=0)])

    shown, asked = (fleet.run(capsys, "events", *flags, "-o", "value", "-c", "type").out for flags in ((), ("--type", "ledger-*")))

    assert "ledger-digest" not in shown
    assert asked.split() == ["ledger-digest"]


def test_events_have_every_record_of_their_cut_and_no_other_while_others_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    for number in range(300):
        fleet.append(REQUESTS, requested(number))
    stop = threading.Event()

    def write() -> None:
        number = 300
        while not stop.is_set():
            fleet.append(REQUESTS, requested(number))
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        answers = [fleet.run(capsys, "events", "--topic", REQUESTS, "-o", "json").json for _ in range(5)]
    finally:
        stop.set()
        writer.join()

    for answer in answers:
        told = Counter(int(item["position"].partition("/")[2].partition("@")[0]) for item in answer["items"])
        cut = Cut.parse(answer["cut"])
        assert {number: cut.next_offset(REQUESTS, number) for number in range(PARTITIONS)} == dict(told)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("unreadable", [(REQUESTS, "unreadable"), (CLAIMS, "unreadable")]),
        ("placement-requested", [(REQUESTS, "placement-requested")]),
        ("*re*", [(REQUESTS, "unreadable"), (REQUESTS, "placement-requested"), (CLAIMS, "unreadable")]),
    ],
)
def test_records_of_a_type_are_found_in_every_topic_that_may_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, told: list[tuple[str, str]]
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.log.append([Message(REQUESTS, b"x", b"no letter", (), 0)])
    fleet.append(REQUESTS, requested(1))
    fleet.log.append([Message(CLAIMS, b"x", b"{", (), 0)])

    items = fleet.run(capsys, "events", "--type", kind, "-o", "json").json["items"]

    assert sorted((item["position"].partition("/")[0], item["type"]) for item in items) == sorted(told)


@pytest.mark.parametrize("flags", [(), ("--for", "request/r2")])
def test_events_are_printed_as_they_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    fleet = FleetLog(tmp_path)
    for number in (1, 2, 2, 2):
        fleet.append(REQUESTS, requested(number))
    read = list[str]()

    def counted(record: Record) -> dict[str, Any]:
        read.append(str(record.position))
        return record_item(record)

    def first_only(report: Report, style: Style, out: TextIO, err: TextIO) -> None:
        write(msgspec.structs.replace(report, items=[next(iter(report.items))]), style, out, err)

    monkeypatch.setattr(events, "record_item", counted)
    monkeypatch.setattr("streams.cli.flags.write", first_only)

    said = fleet.run(capsys, "events", *flags, "-o", "jsonl")

    assert (said.code, len(said.out.splitlines()), len(read)) == (0, 1, 1)


def test_a_timeline_until_its_own_cut_is_the_same_whatever_came_since(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.append(REQUESTS, requested(1))
    before = fleet.run(capsys, "timeline", "request/r1", "-o", "json").json
    fleet.append(REQUESTS, PlacementCancelled(request_id="r1", record_id="k1", reason="not needed"))

    now = fleet.run(capsys, "timeline", "request/r1", "-o", "json").json
    again = fleet.run(capsys, "timeline", "request/r1", "--until", before["cut"], "-o", "json").json

    assert [item["event"] for item in before["items"]] == ["placement-requested"]
    assert [item["event"] for item in now["items"]] == ["placement-requested", "placement-cancelled"]
    assert again == before


@pytest.mark.parametrize(("flags", "said"), [(("-o", "json"), "jsonl"), (("--sort", "key"), "as they come")])
def test_a_watch_refuses_what_needs_an_end(flags: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)

    refused = fleet.run(capsys, "events", "-w", *flags)

    assert refused.code == 2
    assert said in refused.err


def test_a_watch_reads_topics_that_are_made_after_it_began_from_their_first_record(tmp_path: Path) -> None:
    fleet = FleetLog(tmp_path, opened=False)
    reader = SqliteLog.open(tmp_path / "log.db")
    watch = coming(reader, (REQUESTS,), None)

    def begin() -> None:
        open_ledger(fleet.log, ledger_partitions=PARTITIONS, request_partitions=PARTITIONS)
        fleet.append(REQUESTS, requested(1))

    later = threading.Timer(0.2, begin)
    later.start()
    first = next(batch for batch in watch if batch)
    later.join()
    reader.close()

    assert [record.key for record in first] == [b"r1"]


class _SometimesAway(MemoryLog):
    """A log that goes out of reach after so many reads, and is there again after the next look."""

    reads_left = -1

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        self.reads_left -= 1
        if self.reads_left == 0:
            raise LogUnreachable("no broker answers")
        return super().read(topic, partition, offset, records_max, bytes_max)


@pytest.mark.parametrize("reads_before", range(1, PARTITIONS + 1))
def test_a_watch_goes_on_where_it_was_when_a_log_that_was_out_of_reach_is_back(
    reads_before: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(events, "WAIT_SECONDS", 0.0)
    log = _SometimesAway(clock=lambda: 1)
    open_ledger(log, ledger_partitions=PARTITIONS, request_partitions=PARTITIONS)
    watch = coming(log, (REQUESTS,), None)
    assert next(watch) == []
    asked = [requested(number) for number in range(20)]
    log.append([Message(REQUESTS, key_of(request) or b"", encode(request)) for request in asked])

    log.reads_left = reads_before
    told = [record.key.decode() for _ in range(4) for record in next(watch)]

    assert sorted(told) == sorted(request.request_id for request in asked)
    assert capsys.readouterr().err.count("no broker answers; it is waited for") == 1


BOUNDS = ("--since", "--until")


def test_an_end_that_has_not_come_has_no_answer_and_an_empty_bound_is_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")

    ahead = [
        fleet.run(capsys, *verb)
        for verb in (
            ["events", "--until", "+2h"],
            ["events", "--since", "+2h"],
            ["timeline", "node/c01", "--since", "+2h"],
            ["dead-letters", "list", "--since", "+2h"],
            ["archive", tmp_path / "old", "--below", "+30d"],
        )
    ]
    empty = [
        fleet.run(capsys, *verb, flag, "") for verb in (["events"], ["timeline", "node/c01"], ["dead-letters", "list"]) for flag in BOUNDS
    ]

    assert [(said.code, said.out, "which has not come yet" in said.err) for said in ahead] == [(6, "", True)] * 5
    assert fleet.log.start(CLAIMS, 0) == fleet.log.start(CLAIMS, 1) == 0
    assert [(said.code, said.out) for said in empty] == [(2, "")] * 6


def test_a_watch_since_a_time_says_what_is_there_in_the_order_of_all_partitions_then_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(events, "READ_RECORDS", 5)
    now_ms = 1_000_000
    log = MemoryLog(clock=lambda: now_ms)
    open_ledger(log, ledger_partitions=PARTITIONS, request_partitions=PARTITIONS)
    asked = [requested(number) for number in range(60)]
    for number, request in enumerate(asked):
        now_ms += 1
        # Many of one partition, then as many of the other.
        log.append([Message(REQUESTS, key_of(request) or b"", encode(request), (), number // 30)])
    watch = coming(log, (REQUESTS,), Instant(0))

    there = [record for _ in range(12) for record in next(watch)]
    log.append([Message(REQUESTS, b"later", encode(requested(60)), (), 0)])
    later = [record.key for _ in range(2) for record in next(watch)]

    assert [record.time_ms for record in there] == list(range(1_000_001, 1_000_061))
    assert later == [b"later"]


@pytest.mark.parametrize("reads_before", range(1, 8))
def test_a_watch_that_loses_its_log_while_it_reads_what_is_there_goes_on_where_it_was(
    reads_before: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(events, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(events, "READ_RECORDS", 4)
    log = _SometimesAway(clock=lambda: 1)
    open_ledger(log, ledger_partitions=PARTITIONS, request_partitions=PARTITIONS)
    asked = [requested(number) for number in range(20)]
    log.append([Message(REQUESTS, key_of(request) or b"", encode(request)) for request in asked])
    watch = coming(log, (REQUESTS,), Instant(0))

    log.reads_left = reads_before
    told = [record.key.decode() for _ in range(12) for record in next(watch)]

    assert sorted(told) == sorted(request.request_id for request in asked)
    assert capsys.readouterr().err.count("no broker answers; it is waited for") == 1


def test_an_instance_that_an_audit_could_not_read_is_named_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    look = HypervisorAudited(
        node_id="n1", producer="p", epoch=1, counter=1, taken_at_ms=fleet.now_ms, mono_ms=1, digest="d", complete=False,
        hypervisor=Hypervisor(vcpus=8), instances=(), unknown_instances=("lost-1",),
    )  # fmt: skip
    fleet.append(AUDITS, look)
    fleet.carry()

    about = fleet.run(capsys, "events", "--for", "instance/lost-1", "-o", "value", "-c", "type")
    other = fleet.run(capsys, "events", "--for", "instance/lost-2")

    assert (about.code, about.out.split()) == (0, ["hypervisor-audited", "node-observed"])
    assert other.code == 2
