"""A timeline is what a fold of every record says, though what stands in front of the subject's first record is not folded."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from projections.cut import Cut
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.observed import Observed
from projections.subjects import Subject, subject_of
from projections.timeline import AROUND, Timeline
from schemas.claims import ClaimRequested
from schemas.codec import decode_keyed
from schemas.lifecycle import InstanceDeparted
from schemas.requests import Flavor, PlacementRequested
from schemas.topics import CLAIMS, REQUESTS
from streams.cli.main import run
from streams.cli.reading.records import Range, records_of
from streams.cli.reading.state_at import state_at
from streams.cli.timeline import entry_item
from streams.log.base import Log
from streams.log.sqlite import SqliteLog
from tests.cli_log import FleetLog

FOR_EVER = Range(None, None)


def named_in(log: Log) -> dict[Subject, int]:
    """Every node, instance and request of the claims on a log, with the time of the first record that claims for it."""
    found: dict[Subject, int] = {}
    for record in records_of(log, [CLAIMS], FOR_EVER, 1000):
        event = decode_keyed(CLAIMS, record.key, record.value)
        if isinstance(event, ClaimRequested):
            names = [Subject("request", event.request_id)]
            names += [Subject("instance", item.instance_id) for item in event.items]
            names += [Subject("node", node_id) for item in event.items for node_id in item.nodes]
            for subject in names:
                found.setdefault(subject, record.time_ms)
    return found


def whole(log: Log, subject: Subject) -> list[dict[str, Any]]:
    """The items of a timeline, from a fold of every record, every record around it decoded."""
    since_ms: dict[str, int] = {}
    for record in records_of(log, [CLAIMS], FOR_EVER, 1000):
        event = decode_keyed(CLAIMS, record.key, record.value)
        if subject.kind == "request" and isinstance(event, ClaimRequested) and event.request_id == subject.name:
            for item in event.items:
                since_ms.setdefault(item.instance_id, record.time_ms)
    about = Timeline(subject, since_ms=since_ms)

    def each(ledger: Ledger, observed: Observed, step: Step) -> None:
        del observed
        about.apply(ledger, step)

    state = state_at(log, each=each, stderr=StringIO())
    for record in records_of(log, AROUND, FOR_EVER, 1000):
        about.tell(record.topic, record.partition, record.offset, record.time_ms, decode_keyed(record.topic, record.key, record.value))
    return [entry_item(entry, state.laid.get((entry.partition, entry.offset))) for entry in about.ordered()]


def said(fleet: FleetLog, capsys: pytest.CaptureFixture[str], subject: object) -> Any:
    return fleet.run(capsys, "timeline", str(subject), "-o", "json").json


def test_every_subject_of_a_long_log_has_the_timeline_of_a_whole_fold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path, opened=False)
    run(["produce", "load", "--history", "3000", "--nodes", "8", "--log", fleet.spec])
    run(["snapshot", "write", "--log", fleet.spec])
    with SqliteLog.open(fleet.path) as log:
        subjects = list(named_in(log))
        chosen = [*subjects[::50], *subjects[-3:], *(subject for subject in subjects if subject.kind == "node")]
        expected = {subject: whole(log, subject) for subject in chosen}

    assert {subject.kind for subject in chosen} == {"node", "instance", "request"}
    for subject in chosen:
        assert said(fleet, capsys, subject)["items"] == expected[subject] != []


def test_a_subject_behind_a_snapshot_has_the_same_timeline_and_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    nodes = [f"c{number:02}" for number in range(8)]
    for node_id in nodes:
        fleet.audit(node_id)
        fleet.claim(f"{node_id}/0/s-1.1", f"i-{node_id}", node_id, request_id=f"r-{node_id}")
    fleet.run(capsys, "snapshot", "write")
    fleet.append(REQUESTS, PlacementRequested(request_id="late", flavor=Flavor(memory_mib=64), instance_ids=("i-late",)))
    fleet.schedule()
    fleet.audit("c03", {"i-c03": 1024, "i-late": 64}, carry=False)

    for subject in ("i-late", "request/late", "request/r-c03", "i-c03", *(f"node/{node_id}" for node_id in nodes)):
        answer = said(fleet, capsys, subject)
        assert answer["items"] == whole(fleet.log, subject_of(subject)) != []
        ends = Cut.parse(answer["cut"]).next_offsets
        assert {number: ends[CLAIMS, number] for number in fleet.log.ends(CLAIMS)} == fleet.log.ends(CLAIMS)
        again = fleet.run(capsys, "timeline", subject, "--until", answer["cut"], "-o", "json").json
        assert again["items"] == answer["items"]


@pytest.mark.parametrize("way", [("c01", "c05"), ("c05", "c01")])
def test_a_request_that_moves_an_instance_tells_of_both_nodes_whichever_partition_comes_first(
    way: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    source, target = way
    assert fleet.log.partition(CLAIMS, source.encode()) != fleet.log.partition(CLAIMS, target.encode())
    for node_id in way:
        fleet.audit(node_id)
    fleet.claim("r1/0/s-1.1", "i-77", source, memory_mib=2048, request_id="r1")
    fleet.lived(source, "i-77", 2048)
    fleet.claim("r2/0/s-1.2", "i-77", target, memory_mib=2048, request_id="r2")
    fleet.lived(target, "i-77", 2048)
    fleet.lived(source, "i-77", 2048, InstanceDeparted)

    items = said(fleet, capsys, "request/r2")["items"]

    assert [(item["event"], item["node_id"]) for item in items] == [
        ("claim-requested", target),
        ("instance-observed", target),
        ("instance-observed", source),
    ]
    assert [item["delta"]["memory_mib"] for item in items] == [2048, 0, 0]


def test_a_request_for_more_of_what_an_instance_has_adds_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.claim("r1/0/s-1.1", "i-77", "c01", memory_mib=2048, request_id="r1")
    fleet.lived("c01", "i-77", 2048)
    resize = PlacementRequested(
        request_id="r2", action="resize", flavor=Flavor(memory_mib=3072), instance_ids=("i-77",), source_node="c01", forced_nodes=("c01",)
    )
    fleet.append(REQUESTS, resize)
    fleet.schedule()

    (claimed,) = (item for item in said(fleet, capsys, "request/r2")["items"] if item["event"] == "claim-requested")

    assert (claimed["delta"]["memory_mib"], claimed["use"]["memory_mib"]) == (1024, 3072)
