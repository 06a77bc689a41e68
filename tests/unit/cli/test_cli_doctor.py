"""`claimlog doctor`: what is well is ok, what is not is named with what to do, and the exit code says which."""

from __future__ import annotations

import resource
import sqlite3
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from msgspec import structs

from projections import filed
from projections.rules import SKEW_MS
from projections.state import STATE_VERSION
from schemas.audits import HypervisorAudited
from schemas.claims import ClaimReleased, NodeConfigured, NodeObserved, NodeSilent
from schemas.codec import decode, encode
from schemas.inventory import Hypervisor
from schemas.requests import Flavor, PlacementRequested
from schemas.results import LedgerDigest, NodeResources, PlacementFailed, SnapshotChunk
from schemas.topics import ANSWERED, AUDITS, CLAIMS, DIGESTS, NODE_RESOURCES, REQUESTS, RESULTS, SNAPSHOTS
from streams import ledger_topics
from streams.cli.doctor import checks
from streams.cli.doctor.holes import holes
from streams.cli.doctor.host_clocks import host_clocks
from streams.cli.printed.units import moment
from streams.cli.reading.state_at import state_at
from streams.clock import wall_clock_ms
from streams.ledger_topics import open_ledger, topic_specs
from streams.log.base import NO_RECORD, Message
from streams.placement.filing import KEPT_MS
from streams.scheduler import GROUP
from tests.cli_log import PARTITIONS, FleetLog, Said
from tests.unit.cli.test_answers import Stamped


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})
    return fleet


def statuses(said: Said) -> dict[str, str]:
    return {item["check"]: item["status"] for item in said.json["items"]}


def says(said: Said, check: str) -> str:
    return next(f"{item['says']} / {item['fix']}" for item in said.json["items"] if item["check"] == check)


def test_a_sound_log_is_ok_from_the_checksums_to_the_digests(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "doctor", "-o", "json")

    assert said.code == 0
    found = statuses(said)
    assert {status for check, status in found.items() if check != "libvirt"} == {"ok"}
    assert {"log", "integrity", "topics", "ledger", "clock", "reconciler", "schedulers", "findings", "digests", "sqlite"} <= found.keys()
    assert "every checksum fits" in says(said, "integrity")
    assert said.json["cut"].startswith("cut:")


def test_a_topic_that_an_earlier_version_did_not_make_is_a_warning_with_the_command_that_makes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(ledger_topics, "topic_specs", lambda *counts: [spec for spec in topic_specs(*counts) if spec.name != ANSWERED])
        fleet = FleetLog(tmp_path)

    before = fleet.run(capsys, "doctor", "-o", "json")
    made = fleet.run(capsys, "topics", "apply")
    after = fleet.run(capsys, "doctor", "-o", "json")

    assert (before.code, statuses(before)["topics"]) == (0, "warn")
    assert "answered-requests is missing, so each start of a scheduler reads all results / `claimlog topics" in says(before, "topics")
    assert (made.code, statuses(after)["topics"]) == (0, "ok")


def test_who_is_behind_is_named_with_what_to_do(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.audit("c02", {}, carry=False)
    fleet.append(REQUESTS, PlacementRequested(request_id="r", flavor=Flavor(memory_mib=1024)))

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert said.code == 0
    assert statuses(said)["reconciler"] == "warn"
    assert "1 record behind" in says(said, "reconciler")
    assert "claimlog run" in says(said, "reconciler")
    assert statuses(said)["schedulers"] == "warn"


def test_leaks_and_dead_letters_are_warnings(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.audit("c01", {"ghost": 512})
    fleet.log.append([Message(AUDITS, b"c01", b"{")])
    fleet.carry()

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert said.code == 0
    assert (statuses(said)["findings"], statuses(said)["dead letters"]) == ("warn", "warn")
    assert "claimlog leaks --explain" in says(said, "findings")
    assert "1 message that could not be used / claimlog dead-letters list" in says(said, "dead letters")


def test_a_digest_that_differs_from_the_fold_fails(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    digest = LedgerDigest(ledger_id="x", partition=0, process="p7", offset=0, digest="00" * 16, rules_version=1)
    fleet.log.append([Message(DIGESTS, b"0/p7", encode(digest), partition=0)])

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert said.code == 3
    assert statuses(said)["digests"] == "fail"
    assert "p7 (claimlog unknown, rules 1) at claims/0@0" in says(said, "digests")


def test_damage_fails_and_names_the_place(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.log.close()
    with sqlite3.connect(fleet.path) as db:
        db.execute("UPDATE blocks SET records = zeroblob(length(records))")
    db.close()

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert said.code == 3
    assert "fail" in {statuses(said).get("integrity"), statuses(said).get("log")}
    assert "@0" in " ".join(item["says"] for item in said.json["items"])


@pytest.mark.parametrize("where", ["log", "archive"])
def test_damage_fails_where_history_is_read_too_be_it_in_the_log_or_in_a_file(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    history = fleet.path.parent / "history"
    history.mkdir()
    assert fleet.run(capsys, "archive", str(history), "--below", "now").code == 0
    fleet.audit("c01", {}, memory_mib=8192)
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(history))
    sound = fleet.run(capsys, "doctor", "-o", "json")
    assert "every checksum fits" in says(sound, "integrity")
    assert (statuses(sound)["integrity"], "room" in statuses(sound)) == ("ok", True)

    if where == "log":
        fleet.log.close()
        with sqlite3.connect(fleet.path) as db:
            claims = db.execute("SELECT id FROM topics WHERE name = 'claims'").fetchone()[0]
            between = (claims, claims + 3)
            db.execute("UPDATE blocks SET records = zeroblob(length(records)) WHERE id >> 40 BETWEEN ? AND ?", between)
        db.close()
    else:
        file = max(history.glob("claims/*/*.archive"), key=lambda file: file.stat().st_size)
        file.write_bytes(file.read_bytes()[:-20] + bytes(20))

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert said.code == 3
    assert "fail" in {statuses(said).get("integrity"), statuses(said).get("log")}


@pytest.mark.parametrize("quick", [(), ("--quick",)])
def test_a_copy_in_a_file_is_judged_by_what_a_file_can_have(
    fleet: FleetLog, tmp_path: Path, capsys: pytest.CaptureFixture[str], quick: tuple[str, ...]
) -> None:
    fleet.audit("c01", {"ghost": 512})
    fleet.run(capsys, "copy", str(tmp_path / "copy.jsonl"))
    fleet.spec = str(tmp_path / "copy.jsonl")

    said = fleet.run(capsys, "doctor", *quick, "-o", "json")

    assert said.code == 0
    assert set(statuses(said).values()) <= {"ok", "warn"}
    assert says(said, "topics").startswith("6 of 13 topics, as it is a file; 2 partitions of the ledger")
    assert "do not apply" in says(said, "work")
    assert not {"reconciler", "schedulers", "node rows", "snapshots"} & statuses(said).keys()
    assert quick or says(said, "findings").startswith("0 confirmed, 1 suspected")


def test_a_file_without_anything_to_fold_or_with_a_ledger_of_two_logs_fails(
    fleet: FleetLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.run(capsys, "copy", str(tmp_path / "copy.jsonl"))
    lines = [line for line in (tmp_path / "copy.jsonl").read_text().splitlines(keepends=True) if '"topic"' in line]
    (tmp_path / "requests.jsonl").write_text('{"topic":"placement-requests","partition":0,"offset":0,"key":"r","payload":"{}"}\n')
    opened = [line for line in lines if '"topic":"claims"' in line and '"offset":0' in line]
    other = opened[1].replace('\\"ledger_id\\":\\"', '\\"ledger_id\\":\\"other')
    (tmp_path / "mixed.jsonl").write_text(opened[0] + other)

    found = {}
    for name in ("requests", "mixed"):
        fleet.spec = str(tmp_path / f"{name}.jsonl")
        found[name] = fleet.run(capsys, "doctor", "-o", "json")

    assert [said.code for said in found.values()] == [3, 3]
    assert "nothing can be folded" in says(found["requests"], "topics")
    assert "partitions of 2 ledgers" in says(found["mixed"], "ledger")


def test_quick_leaves_out_what_reads_the_whole_log(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    found = statuses(fleet.run(capsys, "doctor", "--quick", "-o", "json"))

    assert "integrity" not in found
    assert "digests" not in found
    assert found["topics"] == "ok"


def test_a_log_that_is_no_ledger_fails_and_says_what_makes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = FleetLog(tmp_path, opened=False).run(capsys, "doctor", "-o", "json")

    assert said.code == 3
    assert "claimlog topics apply" in says(said, "topics")


def test_a_log_that_is_not_there_fails_with_5(fleet: FleetLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.spec = f"sqlite:{tmp_path / 'other.db'}"

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert said.code == 5
    assert statuses(said)["log"] == "fail"


def test_a_clock_that_is_behind_the_log_is_a_warning(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.now_ms += 500_000_000_000
    fleet.append(CLAIMS, ClaimReleased(node_id="c01", record_id="x", claim_id="y", reason="operator"))

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert statuses(said)["clock"] == "warn"
    assert "ahead of this machine's clock / check NTP" in says(said, "clock")
    assert f"claims of {CLAIMS}/{fleet.log.partition(CLAIMS, b'c01')} are neither confirmed nor expire" in says(said, "clock")


def test_a_producer_that_stamps_its_records_ahead_is_a_warning_too(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    """On an embedded log both the look and its record are of that one wrong clock; who carries it has another."""
    right, fleet.now_ms = fleet.now_ms, wall_clock_ms() + 10_800_000
    look = HypervisorAudited(node_id="n1", producer="p", epoch=1, counter=1, taken_at_ms=fleet.now_ms, mono_ms=1, digest="d")
    fleet.append(AUDITS, structs.replace(look, hypervisor=Hypervisor(vcpus=8), instances=()))
    fleet.now_ms = right
    fleet.carry()

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert statuses(said)["clock"] == "warn"
    assert f"the newest record, {AUDITS}/{fleet.log.partition(AUDITS, b'n1')}@" in says(said, "clock")


def test_a_partition_whose_time_is_ahead_is_named_also_when_its_newest_record_is_right_and_no_host_is_blamed() -> None:
    now_ms = wall_clock_ms()
    times_ms = [now_ms]
    log = Stamped(clock=lambda: times_ms[0])
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    configured = NodeConfigured(node_id="n1", record_id="c")
    look = NodeObserved(
        node_id="n1",
        producer="p",
        epoch=1,
        counter=1,
        taken_at_ms=now_ms,
        mono_ms=1,
        digest="d",
        hypervisor=Hypervisor(vcpus=8),
        instances=(),
    )
    for time_ms, record in ((now_ms + 31_536_000_000, configured), (now_ms, look)):
        times_ms[0] = time_ms
        log.append([Message(CLAIMS, b"n1", encode(record))])

    state = state_at(log)
    (ahead,) = checks.times_ahead(state, now_ms)

    assert checks.clock(log, now_ms).status == "ok"
    assert (ahead.status, ahead.check) == ("warn", "clock")
    assert ahead.says.startswith(f"the time of {CLAIMS}/0 is 365d ahead of this machine's clock")
    assert f"until {moment(now_ms + 31_536_000_000)} claims of {CLAIMS}/0 are neither confirmed nor expire" in ahead.fix
    assert [check.status for check in host_clocks(log, state, now_ms)] == ["ok"]


def test_the_clock_is_said_once_with_what_the_ledger_says_of_it(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    right, fleet.now_ms = fleet.now_ms, wall_clock_ms() + 86_400_000
    fleet.append(CLAIMS, ClaimReleased(node_id="c01", record_id="x", claim_id="y", reason="operator"))
    fleet.now_ms = right

    said = fleet.run(capsys, "doctor", "-o", "json")

    (clock,) = [line["says"] for line in said.json["items"] if line["check"] == "clock"]
    assert clock.startswith("the time of claims/")


def test_records_that_left_without_a_snapshot_that_includes_them_are_a_failure(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    number = fleet.log.partition(CLAIMS, b"c01")
    fleet.log.truncate(CLAIMS, number, 1)

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert said.code == 3
    assert statuses(said)["snapshots"] == "fail"
    assert f"none includes what left the log below {CLAIMS}/{number}@1" in says(said, "snapshots")


@pytest.mark.parametrize("archived", [False, True])
def test_a_snapshot_of_another_state_version_is_none_that_a_start_begins_at(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], tmp_path: Path, archived: bool
) -> None:
    fleet.run(capsys, "archive", str(tmp_path / "history"), "--below", "now") if archived else fleet.run(capsys, "snapshot", "write")
    for number in range(fleet.log.topics()[SNAPSHOTS]):
        end = fleet.log.end(SNAPSHOTS, number)
        for record in fleet.log.read(SNAPSHOTS, number, end - 1) if end else ():
            chunk = decode(SNAPSHOTS, record.value)
            assert isinstance(chunk, SnapshotChunk)
            newer = encode(structs.replace(chunk, state_version=chunk.state_version + 1))
            fleet.log.append([Message(SNAPSHOTS, record.key, newer, record.headers, number)])
            fleet.log.truncate(SNAPSHOTS, number, end)

    said = fleet.run(capsys, "doctor", "--quick", "-o", "json")

    assert (said.code, statuses(said)["snapshots"]) == ((3, "fail") if archived else (0, "warn"))
    assert f"of state version {STATE_VERSION + 1}" in says(said, "snapshots")


def test_a_host_whose_clock_is_behind_is_named(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    before = says(fleet.run(capsys, "doctor", "-o", "json"), "clocks of hosts")
    taken_at_ms = fleet.now_ms - 86_400_000
    late = HypervisorAudited(node_id="late", producer="p", epoch=1, counter=1, taken_at_ms=taken_at_ms, mono_ms=1, digest="d")
    fleet.append(AUDITS, structs.replace(late, hypervisor=Hypervisor(vcpus=8, memory_mib=8192, disk_mib=102_400), instances=()))
    fleet.carry()

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert before.startswith("audits are in the log soon after they were taken")
    assert statuses(said)["clocks of hosts"] == "warn"
    assert "the newest audits of 1 node are up to 1d older than their records (late) / check NTP" in says(said, "clocks of hosts")


def test_a_host_whose_clock_is_ahead_is_named_until_it_is_right(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    audit = HypervisorAudited(node_id="early", producer="p", epoch=1, counter=1, taken_at_ms=0, mono_ms=1, digest="d")
    said = []
    for counter, ahead_ms in enumerate((86_500_000, SKEW_MS), start=1):
        look = structs.replace(audit, counter=counter, taken_at_ms=fleet.now_ms + ahead_ms)
        fleet.append(AUDITS, structs.replace(look, hypervisor=Hypervisor(vcpus=8), instances=()))
        fleet.carry()
        said.append(fleet.run(capsys, "doctor", "-o", "json"))

    ahead, right = said
    assert statuses(ahead)["clocks of hosts"] == "warn"
    assert "the newest reports of 1 node are up to 1d newer than their records (early) / check NTP" in says(ahead, "clocks of hosts")
    assert statuses(right)["clocks of hosts"] == "ok"


def test_what_came_within_the_last_seconds_makes_nobody_behind() -> None:
    log = Stamped(clock=lambda: 100_000)
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    log.append([Message(AUDITS, b"n1", b"{}"), Message(AUDITS, b"n2", b"{}")])

    soon, late, ahead = (next(checks.lags(log, now_ms)) for now_ms in (105_000, 105_001, 94_999))

    assert (soon.status, soon.check, soon.says) == ("ok", "reconciler", "has read all but the last 2 records, the oldest from 5s ago")
    assert [check.status for check in (late, ahead)] == ["warn", "warn"]
    assert late.says.startswith("2 records behind, the oldest from ")


def test_a_node_that_two_processes_report_at_once_is_named_and_one_that_began_anew_is_not(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = HypervisorAudited(node_id="twice", producer="p", epoch=1, counter=1, taken_at_ms=fleet.now_ms, mono_ms=1, digest="d")
    twice = (1, 2, 1, 2, 1)
    for node_id, epochs in {
        "twice": twice, "withdrawn": twice, "anew": (1, 1, 2, 3), "carried-again": (1, 2, 1, 2), "mended": (*twice, *[3] * 10),
        "begun-anew": (1, 2, 1, 3, 1, 4),
    }.items():  # fmt: skip
        for counter, epoch in enumerate(epochs, start=1):
            look = structs.replace(audit, node_id=node_id, epoch=epoch, counter=counter)
            fleet.append(AUDITS, structs.replace(look, hypervisor=Hypervisor(vcpus=8), instances=()))
    fleet.append(CLAIMS, NodeConfigured(node_id="withdrawn", record_id="w", status="withdrawn"))
    fleet.carry()

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert statuses(said)["producers"] == "warn"
    assert "two processes at once report begun-anew, twice: only the one that began last counts / stop one" in says(said, "producers")


def test_a_node_that_is_reported_in_vain_since_one_look_of_a_later_process_is_named_and_one_whose_spool_came_late_is_not(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    vain = (1, 1, 2, 1, 1)
    in_vain = dict.fromkeys(("in-vain", "withdrawn", "long-withdrawn", "back", "came-late"), vain)
    for node_id, epochs in (in_vain | {"anew": (1, 2, 1, 3), "looked-at": (1, 1, 2)}).items():
        for counter, epoch in enumerate(epochs, start=1):
            taken_ms = fleet.now_ms - 600_000 if node_id == "came-late" else fleet.now_ms
            look = HypervisorAudited(
                node_id=node_id, producer="p", epoch=epoch, counter=counter, taken_at_ms=taken_ms, mono_ms=counter, digest="d"
            )
            fleet.append(AUDITS, structs.replace(look, hypervisor=Hypervisor(vcpus=8), instances=()))
    for node_id in ("in-vain", "withdrawn"):
        fleet.append(CLAIMS, NodeConfigured(node_id=node_id, record_id=f"w-{node_id}", status="withdrawn"))
    fleet.append(CLAIMS, NodeConfigured(node_id="in-vain", record_id="back", status="enabled"))
    rows = {"in-vain": "withdrawn", "withdrawn": "enabled", "long-withdrawn": "enabled withdrawn", "back": "withdrawn enabled"}
    for node_id, there in rows.items():
        for offset, status in enumerate(there.split()):
            fleet.append(NODE_RESOURCES, NodeResources(node_id=node_id, partition=0, offset=offset, status=status))
    fleet.carry()

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert [item["says"] for item in said.json["items"] if item["check"] == "producers"] == [
        "what is reported of back, in-vain counts for nothing: another process that began later reported it since"
    ]
    assert says(said, "producers").endswith(" / start the one that goes on anew")


def test_nodes_that_are_silent_from_one_audit_to_the_next_are_named_and_one_that_hung_or_began_anew_is_not(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    """`carried` was reported in time by a producer that could not reach the log, `away` had two outages, `late` mostly pauses too long,
    and `later` does since lately."""
    words = {"slow": "1 S 2 S 3", "hung": "1 2 S 3 4", "anew": "1 S 9 S 17", "carried": "1 S late2 S late3", "gone": "1 S"}
    words |= {"late": "1 2 S 3 S 4", "away": "1 2 S 3 4 5 S 6 7"}
    words["later"] = " ".join([*map(str, range(1, 21)), *(f"S {number}" for number in range(21, 28))])
    for node_id, history in words.items():
        said_last = 0
        for word in history.split():
            number = int(word.removeprefix("late")) if word != "S" else said_last
            names: dict[str, Any] = {"node_id": node_id, "producer": "p", "epoch": number // 8, "counter": number}
            taken_ms = fleet.now_ms - 60_000 if word.startswith("late") else fleet.now_ms + 1_000
            look = NodeObserved(taken_at_ms=taken_ms, mono_ms=1, digest="d", hypervisor=Hypervisor(vcpus=8), instances=(), **names)
            silence = NodeSilent(record_id=f"{node_id}/{len(words)}/{number}", silent_since_ms=fleet.now_ms, **names)
            fleet.append(CLAIMS, silence if word == "S" else look)
            said_last = number

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert (said.code, statuses(said)["intervals"]) == (0, "warn")
    assert "3 nodes silent from one audit to the next (late, later, slow), though the producer goes on / report" in says(said, "intervals")
    fleet.run(capsys, "node", "withdraw", "late", "--reason", "sold")
    assert "2 nodes silent from one audit to the next (later, slow)" in says(fleet.run(capsys, "doctor", "-o", "json"), "intervals")


def test_a_machine_that_is_reported_as_several_nodes_is_named_until_all_but_one_are_withdrawn(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    for node_id, host_uuid in {"a": "u-1", "b": "u-1", "c": "u-2", "d": "", "e": ""}.items():
        fleet.audit(node_id, host_uuid=host_uuid)

    twice = fleet.run(capsys, "doctor", "-o", "json")
    assert fleet.run(capsys, "node", "withdraw", "b", "--reason", "it is a").code == 0
    once = fleet.run(capsys, "doctor", "-o", "json")

    assert (twice.code, statuses(twice)["machines"]) == (0, "warn")
    assert "1 machine reported as several nodes each, by host_uuid (a, b) / report each under one name" in says(twice, "machines")
    assert "machines" not in statuses(once)


def test_the_record_that_is_ahead_is_named_on_whatever_topic_it_is(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.now_ms += 500_000_000_000
    fleet.append(RESULTS, PlacementFailed(request_id="r", owner="s", taken_up_ms=1, reason="cancelled"))

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert "the newest record, placement-results/" in says(said, "clock")


def test_an_archived_log_is_sound_and_its_digests_are_compared_with_the_archive_at_hand(
    fleet: FleetLog, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.audit("c01", {"ghost": 512})
    assert fleet.run(capsys, "archive", str(tmp_path / "history"), "--below", "now").code == 0

    alone = fleet.run(capsys, "doctor", "-o", "json")
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(tmp_path / "history"))
    together = fleet.run(capsys, "doctor", "-o", "json")
    rmtree(tmp_path / "history" / AUDITS)
    in_part = fleet.run(capsys, "doctor", "--quick", "-o", "json")
    (tmp_path / "history" / AUDITS).mkdir()
    for number in range(PARTITIONS):
        (tmp_path / "history" / AUDITS / str(number)).write_bytes(b"")  # As a folder that may not be listed.
    unread = fleet.run(capsys, "doctor", "-o", "json")

    assert (alone.code, together.code) == (0, 0)
    assert ("history" in statuses(alone), statuses(together)["history"], statuses(in_part)["history"]) == (False, "ok", "warn")
    assert "hypervisor-audits/" in says(in_part, "history")
    assert (unread.code, statuses(unread)["history"]) == (3, "fail")
    assert "expected a folder that can be read" in says(unread, "history")
    assert says(alone, "findings").startswith("0 confirmed, 1 suspected")
    assert statuses(alone)["digests"] == "warn"
    assert "CLAIMLOG_ARCHIVE" in says(alone, "digests")
    assert statuses(together)["digests"] == "ok"


def test_a_disk_that_is_full_or_nearly_so_is_told() -> None:
    """A log on a full disk takes nothing, while all else about it is as it should be."""
    path = Path("/var/lib/claimlog/log.sqlite")
    told = [checks.room(path, free_mib << 20) for free_mib in (10, 500, 5_000)]

    assert [each.status for each in told] == ["fail", "warn", "ok"]
    assert told[0].says == "10 MiB free where /var/lib/claimlog/log.sqlite is"
    assert ["make room there" in each.fix for each in told] == [True, True, False]


def test_a_limit_of_the_process_is_told_where_it_leaves_less_than_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    path.write_bytes(b"x" * 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((200 << 20) + 1000, hard))
    try:
        left_bytes = checks.left_of_limit(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert left_bytes == 200 << 20
    told = [checks.room(path, free_mib << 20, left_mib << 20) for free_mib, left_mib in ((5_000, 200), (5_000, 0), (5_000, 4_000))]
    assert [each.status for each in told] == ["warn", "fail", "ok"]
    assert told[0].says == f"{path} may grow by 200 MiB, says the limit of this process"
    assert checks.room(path, 10 << 20, 200 << 20).says == f"10 MiB free where {path} is"


def test_requests_that_schedulers_were_set_past_are_named_until_they_are_asked_again(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.asked(capsys, "answered", "--memory", "1GiB")
    asks = {name: ("place", "--memory", "1GiB", "--request", name, "--wait", "0s") for name in ("r1", "r2", "taken-back", "late")}
    for name in ("r1", "r2", "taken-back"):
        fleet.run(capsys, *asks[name])
    fleet.run(capsys, "cancel", "taken-back")
    fleet.log.commit(GROUP, REQUESTS, fleet.log.ends(REQUESTS))
    fleet.run(capsys, *asks["late"])

    both = fleet.run(capsys, "doctor", "-o", "json")
    fleet.run(capsys, *asks["r1"])
    one = fleet.run(capsys, "doctor", "-o", "json")
    fleet.run(capsys, *asks["r2"])
    fleet.schedule()
    none = fleet.run(capsys, "doctor", "-o", "json")

    first = min((fleet.log.partition(REQUESTS, name.encode()), name) for name in ("r1", "r2"))
    assert says(both, "requests").startswith("2 requests have no answer and will have none, as schedulers go on behind them")
    assert f"the first is {first[1]} at {REQUESTS}/{first[0]}@" in says(both, "requests")
    assert "`claimlog place` with the same flags and `--request ID`" in says(both, "requests")
    assert says(one, "requests").startswith("1 request has no answer")
    assert (both.code, statuses(both)["requests"]) == (0, "warn")
    assert "requests" not in statuses(none)
    assert all(fleet.run(capsys, "explain", name).code == 0 for name in ("r1", "r2"))


def test_what_was_filed_away_is_answered_and_schedulers_set_back_place_nothing_again(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filed, "SAID_REQUESTS", 1)
    fleet.asked(capsys, "r1", "--memory", "1GiB")
    fleet.now_ms += 2 * KEPT_MS
    fleet.asked(capsys, "r2", "--memory", "1GiB")
    fleet.now_ms += 2 * KEPT_MS
    fleet.asked(capsys, "r3", "--memory", "1GiB")
    fleet.schedule()
    results = fleet.log.ends(RESULTS)

    filed_away = sum(fleet.log.ends(ANSWERED).values())
    said = fleet.run(capsys, "doctor", "-o", "json")
    fleet.log.commit(GROUP, REQUESTS, dict.fromkeys(fleet.log.ends(REQUESTS), 0))
    fleet.schedule()

    assert filed_away > 0
    assert "requests" not in statuses(said)
    placed = [record for number, end in results.items() for record in fleet.log.read(RESULTS, number, end)]
    assert all(b"instances-placed" not in record.value for record in placed)


def test_records_that_were_lost_in_the_middle_of_topics_are_named_with_where_and_how_many(fleet: FleetLog) -> None:
    counted: list[int] = []
    (sound,) = holes(fleet.log, counted.append)
    number = fleet.log.partition(AUDITS, b"c01")
    fleet.log.append([Message(AUDITS, b"", b"", NO_RECORD, number)] * 30)
    fleet.audit("c01", {})
    fleet.log.append([Message(REQUESTS, b"", b"", NO_RECORD, 1)] * 20)

    (lost,) = holes(fleet.log, counted.append)

    assert (sound.status, lost.status, sum(counted)) == ("ok", "warn", 1 + 52)
    assert lost.says.startswith(
        f"{AUDITS}/{number}: the offsets from 1 to 30 have no record, nor have 20 others, the last of them in {REQUESTS}/1: a compaction or"
    )
