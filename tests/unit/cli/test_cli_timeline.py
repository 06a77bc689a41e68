"""`claimlog timeline` and `claimlog events`: the records that say something of a subject."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from projections.cut import Cut
from schemas.lifecycle import InstanceDeparted
from schemas.requests import Flavor, PlacementRequested
from schemas.results import PlacementFailed
from schemas.topics import CLAIMS, LIFECYCLE, REQUESTS, RESULTS
from streams.log.base import Message
from tests.cli_log import FleetLog


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    """A request, its claim, the guest that started, one that nobody asked for, and garbage."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.append(REQUESTS, PlacementRequested(request_id="r1", flavor=Flavor(memory_mib=2048), instance_ids=("i-77",)))
    fleet.claim("r1/0/s-1.1", "i-77", "c01", memory_mib=2048)
    fleet.lived("c01", "i-77", 2048)
    fleet.claim("r2/0/s-1.2", "i-78", "c01", memory_mib=1024, request_id="r2")
    fleet.now_ms += 60_000
    fleet.audit("c01", {"i-77": 2048, "ghost": 512})
    fleet.now_ms += 1000
    fleet.log.append([Message(LIFECYCLE, b"c01", b"{garbage")])
    return fleet


def test_an_instances_timeline_is_its_request_its_claim_and_its_life(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "timeline", "i-77", "-o", "json")

    assert said.code == 0
    items = said.json["items"]
    assert [item["event"] for item in items] == ["placement-requested", "claim-requested", "instance-observed"]
    assert [item["delta"]["memory_mib"] for item in items] == [0, 2048, 0]
    assert [item["use"]["memory_mib"] for item in items] == [None, 2048, 2048]
    assert items[1]["summary"] == "request r1 claims 2 GiB: r1/0/s-1.1 granted on c01"
    assert [item["position"].split("@")[0].split("/")[0] for item in items] == [REQUESTS, CLAIMS, CLAIMS]


def test_a_request_record_with_an_id_that_was_asked_for_before_is_told_as_such_to_whoever_it_names(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    again = PlacementRequested(request_id="r1", flavor=Flavor(memory_mib=9), instance_ids=("i-99",), forced_nodes=("c02",))
    fleet.append(REQUESTS, again)

    told = [fleet.run(capsys, "timeline", subject, "-o", "json").json["items"] for subject in ("request/r1", "i-77", "i-99", "node/c02")]

    says = "1 x 9 MiB wanted (asked again with an id that placement-requests/0@0 has: counts for nothing)"
    assert [[item["summary"] for item in items if item["event"] == "placement-requested"] for items in told] == [
        ["1 x 2 GiB wanted", says],
        ["1 x 2 GiB wanted", says],
        [says],
        [says],
    ]


def test_an_instances_timeline_has_why_a_request_that_names_it_was_refused_or_cancelled(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (reason, message) in enumerate([("invalid", "group g: it is not in it"), ("cancelled", "no longer wanted")]):
        request = PlacementRequested(request_id=f"w{number}", flavor=Flavor(memory_mib=1), count=2, instance_ids=("i-90", "i-91"))
        failed = PlacementFailed(request_id=f"w{number}", owner="s", taken_up_ms=1, reason=reason, message=message)  # type: ignore[arg-type]
        fleet.append(RESULTS, failed)  # Another broker's clock may be behind.
        fleet.append(REQUESTS, request)

    items = fleet.run(capsys, "timeline", "i-91", "-o", "json").json["items"]

    assert [item["summary"] for item in items if item["event"] == "placement-failed"] == [
        "not placed: invalid: group g: it is not in it", "not placed: cancelled: no longer wanted",
    ]  # fmt: skip
    assert "not placed" not in fleet.run(capsys, "timeline", "i-77").out


def test_a_nodes_timeline_adds_up_to_what_it_uses_now(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    items = fleet.run(capsys, "timeline", "node/c01", "-o", "json").json["items"]
    (node,) = fleet.run(capsys, "nodes", "-o", "json").json["items"]

    assert sum(item["delta"]["memory_mib"] for item in items) == node["memory_mib"]["used"] == 3584
    assert items[-1]["use"]["memory_mib"] == 3584


def test_since_and_until_choose_what_is_shown_and_not_what_is_folded(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    every = fleet.run(capsys, "timeline", "node/c01", "-o", "json").json["items"]
    middle_ms = every[-1]["time_ms"]

    late = fleet.run(capsys, "timeline", "node/c01", "--since", str(middle_ms), "-o", "json").json["items"]
    early = fleet.run(capsys, "timeline", "node/c01", "--until", str(middle_ms), "-o", "json").json["items"]

    assert early + late == every
    assert late[0]["delta"]["memory_mib"] == 512


def test_an_event_that_nobody_carried_yet_is_in_the_timeline_at_its_own_place(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.lived("c01", "i-77", 2048, InstanceDeparted, carry=False)

    last = fleet.run(capsys, "timeline", "i-77", "-o", "json").json["items"][-1]

    assert last["position"].startswith(f"{LIFECYCLE}/")
    assert last["summary"] == "instance departed"


@pytest.mark.parametrize("verb", [("timeline",), ("events", "--for")])
def test_a_subject_that_no_record_names_is_told(fleet: FleetLog, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]) -> None:
    unknown = [fleet.run(capsys, *verb, subject) for subject in ("i-none", "node/c09", "request/i-77")]
    early = fleet.run(capsys, "timeline", "i-77", "--until", "2025-11-21T09:09:08Z")
    unprefixed = fleet.run(capsys, *verb, "c01")
    empty = fleet.run(capsys, *verb, "node/")

    assert [(said.code, said.out) for said in (*unknown, early, unprefixed, empty)] == [(2, "")] * 6
    assert "no record of this log names instance/i-none" in unknown[0].err
    assert "no record of this log names request/i-77; there is instance/i-77" in unknown[2].err
    assert "no record of this log before --until names instance/i-77" in early.err
    assert "no record of this log names instance/c01; there is node/c01" in unprefixed.err


def test_an_instance_that_a_request_wants_to_be_apart_from_is_named(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet.run(capsys, "place", "--memory", "1GiB", "--hint", "different_host=vm-a", "--wait", "0s").code == 0

    told = fleet.run(capsys, "timeline", "instance/vm-a")
    of_another_type = fleet.run(capsys, "events", "--for", "instance/vm-a", "--type", "claim-requested")

    assert [(said.code, "no record of this log names" in said.err) for said in (told, of_another_type)] == [(0, False)] * 2


def test_a_subject_that_is_known_but_not_in_what_was_chosen_is_no_wrong_name(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    none_since = fleet.run(capsys, "events", "--for", "i-77", "--since", "2025-11-22")
    none_of_type = fleet.run(capsys, "events", "--for", "i-77", "--type", "leak-*")
    later = fleet.run(capsys, "timeline", "i-77", "--since", "2025-11-22")

    assert [said.code for said in (none_since, none_of_type, later)] == [0, 0, 0]


def test_events_are_every_record_in_the_order_of_the_log_unreadable_ones_with_the_reason(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fleet.run(capsys, "events", "-o", "json")

    items = said.json["items"]
    assert said.code == 0
    assert [item["time_ms"] for item in items] == sorted(item["time_ms"] for item in items)
    assert items[-1]["type"] == "unreadable"
    assert "expected a JSON object" in items[-1]["summary"]
    requested = next(item for item in items if item["type"] == "placement-requested")
    assert requested["record"]["flavor"] == {"memory_mib": 2048}


def test_events_are_chosen_by_subject_type_topic_and_time(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    def types(*flags: str) -> list[str]:
        return [item["type"] for item in fleet.run(capsys, "events", *flags, "-o", "json").json["items"]]

    assert types("--for", "instance/ghost") == ["hypervisor-audited", "node-observed"]
    assert types("--for", "request/r2") == ["claim-requested"]
    assert types("--for", "node/c01", "--type", "claim-*") == ["claim-requested", "claim-requested"]
    assert types("--topic", LIFECYCLE) == ["instance-arrived", "unreadable"]
    everything = fleet.run(capsys, "events", "-o", "json").json
    boundary_ms = str(everything["items"][5]["time_ms"])
    assert types("--until", boundary_ms) + types("--since", boundary_ms) == [item["type"] for item in everything["items"]]
    fleet.audit("c02")
    assert len(fleet.run(capsys, "events", "--until", everything["cut"], "-o", "json").json["items"]) == len(everything["items"])
    assert types("--since", everything["cut"]) == ["hypervisor-audited", "node-observed", "dead-letter"]


def test_a_topic_or_subject_that_does_not_exist_is_a_usage_error(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = str(Cut.of({("claims", 0): 1}, "another ledger"))
    assert fleet.run(capsys, "events", "--until", elsewhere).code == 2
    assert fleet.run(capsys, "events", "--since", elsewhere).code == 2
    assert fleet.run(capsys, "events", "--until", str(Cut.of({("claims", 0): 1_000}))).code == 6
    assert fleet.run(capsys, "events", "--topic", "claim").code == 2
    assert fleet.run(capsys, "events", "--for", "node/").code == 2
    assert fleet.run(capsys, "events", "-w", "--until", "now").code == 2


def test_a_watch_prints_what_comes_and_ends_with_130_when_interrupted(fleet: FleetLog) -> None:
    program = "import sys; from streams.cli.main import run; sys.exit(run(sys.argv[1:]))"
    flags = ["events", "-w", "--since", "now", "--type", "hypervisor-audited", "-o", "value", "--log", fleet.spec]
    command = [sys.executable, "-c", program, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3], env={**os.environ}) as watch:
        try:
            assert watch.stdout is not None
            fleet.now_ms = time.time_ns() // 1_000_000 + 60_000
            fleet.audit("c07")
            first = watch.stdout.readline()
            fleet.audit("c08")  # The watch is at work now: what comes is read because it waits for it.
            line = watch.stdout.readline()
            watch.send_signal(signal.SIGINT)
            code = watch.wait(timeout=10)
        finally:
            watch.kill()

    assert ("c07" in first, "c08" in line) == (True, True)
    assert code == 130


def test_a_range_that_ends_before_it_begins_is_refused(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    cuts = [fleet.run(capsys, "events", "-o", "json").json["cut"]]
    fleet.audit("c01")
    cuts.append(fleet.run(capsys, "events", "-o", "json").json["cut"])

    times = fleet.run(capsys, "events", "--since", "2025-11-22", "--until", "2025-11-21")
    offsets = fleet.run(capsys, "events", "--since", cuts[1], "--until", cuts[0])
    timeline = fleet.run(capsys, "timeline", "node/c01", "--since", "2025-11-22", "--until", "2025-11-21")
    between = fleet.run(capsys, "events", "--topic", "hypervisor-audits", "--since", cuts[0], "--until", cuts[1], "-o", "json")

    assert [(said.code, said.out) for said in (times, offsets, timeline)] == [(2, "")] * 3
    assert "--since is after --until" in times.err
    assert [item["type"] for item in between.json["items"]] == ["hypervisor-audited"]


def test_events_since_a_time_on_a_damaged_log_name_the_offset(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.log.close()
    data = bytearray(fleet.path.read_bytes())
    at = data.find(b"hypervisor-audited")
    while at >= 0:
        data[at + 3] ^= 0x55
        at = data.find(b"hypervisor-audited", at + 1)
    fleet.path.write_bytes(data)

    said = fleet.run(capsys, "events", "--topic", "hypervisor-audits", "--since", "2025-11-21T09:09:08Z")

    assert said.code == 1
    assert re.search(r"hypervisor-audits/\d@0: a checksum does not hold", said.err)
