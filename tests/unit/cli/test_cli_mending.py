"""`claimlog leaks --heal`, `leaks ignore` and `leaks adopt`: what is written, what is not and why, and what became of the finding."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from projections.observed import NodeView
from schemas.audits import InstanceReport
from schemas.claims import ClaimRequested, FindingIgnored, InstanceObserved, NodeConfigured, NodeSilent
from schemas.codec import decode
from schemas.findings import LeakConfirmed, LeakSuspected
from schemas.inventory import Hypervisor, OperatorFields, PciDevice, ResourceRule
from schemas.lifecycle import InstanceArrived, InstanceDeleted, InstanceDeparted
from schemas.requests import PciWant
from schemas.resources import ObservedResources
from schemas.topics import CLAIMS, LIFECYCLE
from streams.cli import fresh
from streams.cli.flags import Show
from streams.cli.leaks.mending import heal
from streams.cli.reading.state import State
from streams.cli.reading.state_at import state_at
from streams.healing import Place, remedy
from streams.log.base import BareRecord, Log, LogFull, Message, Record
from streams.log.sqlite import SqliteLog
from streams.operator import Stamp
from streams.reconciler import CARRIERS, SOURCES
from tests.cli_log import FleetLog
from tests.ledger_history import START_MS, History

LONG = ("--report-age", "100000h")
"""The audits of these tests were taken long ago."""


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    """An audited node."""
    fleet = FleetLog(tmp_path)
    fleet.audit("n1")
    return fleet


def orphaned(fleet: FleetLog) -> str:
    """A confirmed claim whose guest two audits no longer list; returns the finding's id."""
    fleet.claim("r1/0/s-1.1", "gone", "n1", memory_mib=1024)
    fleet.lived("n1", "gone", 1024)
    for listed in ({"gone": 1024}, {}, {}):
        fleet.now_ms += 60_000
        fleet.audit("n1", listed)
    return "orphan-claim/n1/r1/0/s-1.1"


def strange(fleet: FleetLog, *, carry: bool = True) -> str:
    """A guest that nobody claimed, seen by two audits, which the ledger has where somebody is to `carry` them; returns the finding's id."""
    for _ in range(2):
        fleet.now_ms += 60_000
        fleet.audit("n1", {"stranger": 2048}, carry=carry)
    return "ghost-instance/n1/stranger"


def test_a_guest_that_its_owner_says_has_left_is_not_adopted_while_its_claim_is_held(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.claim("r1/0/s-1.1", "moved", "n1", memory_mib=1024)
    fleet.lived("n1", "moved", 1024)
    fleet.lived("n1", "moved", 1024, InstanceDeparted)
    for _ in range(3):
        fleet.now_ms += 60_000
        fleet.audit("n1", {"moved": 1024})

    (finding,) = fleet.run(capsys, "leaks", "-o", "json").json["items"]
    healed = fleet.run(capsys, "leaks", "--heal", *LONG)
    adopted = fleet.run(capsys, "leaks", "adopt", "ghost-instance/n1/moved", "--reason", "mine")

    assert (finding["kind"], finding["state"]) == ("ghost-instance", "confirmed")
    assert "delete the guest there, which gives its claim back" in healed.out
    assert adopted.code != 0
    assert "moved has a claim on n1: only an instance without one can be adopted" in adopted.out + adopted.err


class Reading(SqliteLog):
    """A log that counts the records of `claims` that are read from it."""

    def __init__(self, log: SqliteLog) -> None:
        self.__dict__ = dict(log.__dict__)
        self.records = 0

    def read_lazily(
        self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20
    ) -> Iterator[BareRecord]:
        """As its own."""
        for record in super().read_lazily(topic, partition, offset, records_max, bytes_max):
            self.records += topic == CLAIMS
            yield record


def claims(fleet: FleetLog) -> list[Record]:
    return [record for number in range(fleet.log.topics()[CLAIMS]) for record in fleet.log.read(CLAIMS, number, 0, 1000)]


def test_an_ignored_finding_is_shown_only_when_asked_for_and_alarms_nobody(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    finding = strange(fleet)

    done = fleet.run(capsys, "leaks", "ignore", finding, "--reason", "the operator's own")

    assert (done.code, done.out) == (0, "ignored\n"), done.err
    hidden = fleet.run(capsys, "leaks", "-o", "json")
    assert (hidden.code, hidden.json["items"]) == (0, [])
    assert "1 finding more, ignored by the operator" in hidden.err
    shown = fleet.run(capsys, "leaks", "--ignored", "-o", "json")
    assert [(item["finding_id"], item["ignored"]) for item in shown.json["items"]] == [(finding, "the operator's own")]
    assert shown.code == 0
    assert fleet.run(capsys, "nodes", "-o", "json").json["items"][0]["leaks"] == 0
    node = fleet.run(capsys, "node", "show", "n1").out
    assert "findings    none, 1 more, ignored\n  ghost-instance stranger confirmed, ignored: the operator's own\n" in node
    assert "the operator's own\n    " not in node, "what would mend it is not said"
    checks = {item["check"]: (item["status"], item["says"]) for item in fleet.run(capsys, "doctor", "-o", "json").json["items"]}
    assert checks["findings"] == ("ok", "none is open; 1 more, ignored")
    assert [event.reason for record in claims(fleet) if isinstance(event := decode(CLAIMS, record.value), FindingIgnored)] == [
        "the operator's own"
    ]


def test_a_word_on_what_is_not_in_the_ledger_yet_is_not_written_as_it_would_stand_in_front_of_it(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    finding, before = strange(fleet, carry=False), claims(fleet)

    refused = fleet.run(capsys, "leaks", "ignore", finding, "--reason", "known")
    unchanged = claims(fleet) == before
    fleet.carry()
    done = fleet.run(capsys, "leaks", "ignore", finding, "--reason", "known")

    assert (refused.code, refused.out, unchanged) == (1, "", True)
    assert "is not in the ledger yet, so nothing was written; `claimlog run` carries it there" in refused.err
    assert (done.code, done.out) == (0, "ignored\n")
    assert fleet.run(capsys, "leaks").code == 0


def test_the_word_can_be_taken_back(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    finding = strange(fleet)
    fleet.run(capsys, "leaks", "ignore", finding, "--reason", "for now")

    done = fleet.run(capsys, "leaks", "ignore", finding, "--undo")

    assert (done.code, done.out) == (0, "alarms again\n")
    assert fleet.run(capsys, "leaks").code == 3


def test_an_adopted_guest_has_a_claim_of_its_size_and_is_no_finding_any_more(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    finding = strange(fleet)

    done = fleet.run(capsys, "leaks", "adopt", finding, "--reason", "started by hand")

    assert (done.code, done.out) == (0, "granted\n"), done.err
    fleet.now_ms += 60_000
    fleet.audit("n1", {"stranger": 2048})
    row = fleet.run(capsys, "nodes", "-o", "json").json["items"][0]
    assert (row["memory_mib"]["claimed"], row["memory_mib"]["used"], row["leaks"]) == (2048, 2048, 0)
    assert fleet.run(capsys, "leaks").code == 0


def test_the_word_on_an_adoption_is_written_once_its_claim_is_granted(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    finding = strange(fleet)

    done = fleet.run(capsys, "leaks", "adopt", finding, "--reason", "started by hand")

    written = [event for record in claims(fleet) if isinstance(event := decode(CLAIMS, record.value), ClaimRequested | FindingIgnored)]
    assert (done.code, [type(event) for event in written]) == (0, [ClaimRequested, FindingIgnored])
    assert getattr(written[-1], "reason", "") == "adopted: started by hand"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"status": "disabled", "reason": "no more"}, "n1: status: disabled (no more)"),
        ({"status": "draining"}, "n1: status: draining"),
        (
            {"fields": OperatorFields(memory_mib=ResourceRule(step_size=1536))},
            "n1: step_size: memory_mib: 2048 needed, only multiples of 1536 are given",
        ),
    ],
)
def test_an_adoption_that_the_ledger_refuses_says_why_and_hides_no_finding(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], why: str
) -> None:
    finding = strange(fleet)
    fleet.append(CLAIMS, NodeConfigured(node_id="n1", record_id="c", **fields))

    done = fleet.run(capsys, "leaks", "adopt", finding, "--reason", "started by hand")

    assert (done.code, done.out) == (1, "refused\n")
    assert f"claim 2 GiB for stranger on n1; refused: {why}: claims/" in done.err
    found = fleet.run(capsys, "leaks", "-o", "json")
    assert (found.code, [(item["finding_id"], item["ignored"]) for item in found.json["items"]]) == (3, [(finding, "")])


def test_healing_that_the_ledger_refuses_says_why(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.claim("r1/0/s-1.1", "grown", "n1", memory_mib=1024)
    for _ in range(3):
        fleet.now_ms += 60_000
        fleet.audit("n1", {"grown": 3072})
    fleet.append(CLAIMS, NodeConfigured(node_id="n1", record_id="c", status="disabled", reason="no more"))

    done = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG, "-o", "json")

    (item,) = done.json["items"]
    assert (done.code, item["action"]) == (3, "refused; still open")
    assert item["what"] == "claim 3 GiB for grown, as its host shows it; refused: n1: status: disabled (no more)"


def test_an_orphan_is_given_back_once_the_operator_agrees(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    finding = orphaned(fleet)
    asked = fleet.run(capsys, "leaks", "--heal", *LONG, "-o", "json")

    done = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG, "-o", "json")

    assert [(item["finding_id"], item["action"]) for item in asked.json["items"]] == [(finding, "would write")]
    assert (asked.code, "nothing was written" in asked.err) == (3, True)
    assert [(item["finding_id"], item["action"]) for item in done.json["items"]] == [(finding, "released")]
    assert done.code == 0
    assert fleet.run(capsys, "leaks").code == 0


def test_a_guest_that_came_back_since_keeps_its_claim(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    orphaned(fleet)
    fleet.now_ms += 60_000
    fleet.audit("n1", {"gone": 1024}, carry=False)
    before = len(claims(fleet))

    done = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG, "-o", "json")

    assert (done.json["items"], len(claims(fleet)) - before) == ([], 0)


def test_healing_says_what_it_would_write_and_writes_nothing(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    finding = strange(fleet)
    before = len(claims(fleet))

    said = fleet.run(capsys, "leaks", "--heal", *LONG, "-o", "json")

    assert said.code == 3
    assert said.json["cut"] == fleet.run(capsys, "leaks", "-o", "json").json["cut"]
    (item,) = said.json["items"]
    assert item["action"] == "left alone"
    assert "delete the guest there" in item["what"]
    assert f"`claimlog leaks adopt {finding} --reason WORDS`" in item["what"]
    assert len(claims(fleet)) == before


@pytest.mark.parametrize("yes", [False, True])
def test_a_size_that_drifted_is_claimed_as_the_host_shows_it(fleet: FleetLog, capsys: pytest.CaptureFixture[str], *, yes: bool) -> None:
    fleet.claim("r1/0/s-1.1", "grown", "n1", memory_mib=1024)
    for _ in range(3):
        fleet.now_ms += 60_000
        fleet.audit("n1", {"grown": 3072})
    before = len(claims(fleet))

    said = fleet.run(capsys, "leaks", "--heal", *LONG, *(["--yes"] if yes else []), "-o", "json")

    (item,) = [item for item in said.json["items"] if item["kind"] == "size-drift"]
    assert (item["action"], len(claims(fleet)) - before) == (("granted", 1) if yes else ("would write", 0)), item
    assert said.code == (0 if yes else 3)
    if yes:
        fleet.now_ms += 60_000
        fleet.audit("n1", {"grown": 3072})
        assert fleet.run(capsys, "leaks").code == 0


@pytest.mark.parametrize("how", ["fix", "heal"])
def test_a_claim_that_outlived_its_guest_is_given_back_by_the_command_that_it_names_or_by_healing(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    for claim_id, memory_mib in (("old/0/s-1.1", 3072), ("new/0/s-1.2", 1024)):
        fleet.claim(claim_id, "again", "n1", memory_mib=memory_mib, request_id=claim_id[:3])
        fleet.now_ms += 1_000
        fleet.lived("n1", "again", memory_mib)
        fleet.audit("n1", {"again": memory_mib})
        if memory_mib == 3072:
            fleet.lived("n1", "again", memory_mib, InstanceDeleted)
    for _ in range(2):
        fleet.now_ms += 60_000
        fleet.audit("n1", {"again": 1024})
    found = fleet.run(capsys, "leaks", "-o", "json")
    (item,) = [item for item in found.json["items"] if item["kind"] == "size-drift"]
    assert (item["claim_id"], item["held"]["memory_mib"]) == ("old/0/s-1.1", 0)

    done = fleet.run(capsys, *shlex.split(item["fix"])[1:]) if how == "fix" else fleet.run(capsys, "leaks", "--heal", "--yes", *LONG)

    assert done.code == 0, done
    assert fleet.run(capsys, "claims", "list", "-o", "value", "-c", "claim_id").out.split() == ["new/0/s-1.2"]
    assert fleet.run(capsys, "leaks").code == 0
    (then,) = fleet.run(capsys, "leaks", "--at", found.json["cut"], "-o", "json").json["items"]
    assert (then["finding_id"], then["held"], then["fix"]) == (item["finding_id"], item["held"], item["fix"])


def test_the_claim_of_a_resize_that_was_undone_is_given_back_by_healing(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.claim("r1/0/s-1.1", "grown", "n1", memory_mib=1024)
    fleet.audit("n1", {"grown": 1024})
    fleet.claim("r2/0/s-1.2", "grown", "n1", memory_mib=3072, request_id="r2", resize=True)
    for memory_mib in (3072, 1024, 1024):
        fleet.now_ms += 60_000
        fleet.audit("n1", {"grown": memory_mib})
    (found,) = fleet.run(capsys, "leaks", "-o", "json").json["items"]

    healed = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG)

    assert (found["kind"], found["state"], found["claim_id"]) == ("size-drift", "confirmed", "r2/0/s-1.2")
    assert healed.code == 0, healed
    assert fleet.run(capsys, "claims", "list", "-o", "value", "-c", "claim_id").out.split() == ["r1/0/s-1.1"]
    assert fleet.run(capsys, "leaks").code == 0


def test_what_no_recent_audit_knows_is_left_alone(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    strange(fleet)

    said = fleet.run(capsys, "leaks", "--heal", "--yes", "-o", "json")

    (item,) = said.json["items"]
    assert (said.code, item["action"]) == (3, "left alone")
    assert "audit the host first" in item["what"]


def test_only_what_is_confirmed_is_healed(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.claim("r1/0/s-1.1", "gone", "n1", ttl_ms=1000)
    fleet.now_ms += 5_000
    fleet.audit("n1", {})

    said = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG, "-o", "json")

    assert {(item["kind"], item["action"]) for item in said.json["items"]} == {("expired-claim", "left alone")}
    assert "only suspected" in said.json["items"][0]["what"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("leaks", "--yes"), "--yes goes with --heal"),
        (("leaks", "--report-age", "1h"), "--report-age goes with --heal"),
        (("leaks", "--heal", "--at", "-1h"), "--heal is about the present"),
        (("leaks", "ignore", "nothing", "--reason", "x"), "there is no open finding 'nothing'"),
        (("leaks", "ignore", "nothing"), "needs --reason"),
        (("leaks", "--heal", "--report-age", "soon"), "soon"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    said = fleet.run(capsys, *words)

    assert (said.code, says in said.err) == (2, True), said.err


def test_the_departure_of_a_guest_that_only_the_hypervisors_own_events_count_is_said_and_ends_its_gap(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    stale(fleet, producer="audits")

    done = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG, "-o", "json")

    assert [(item["finding_id"], item["action"]) for item in done.json["items"]] == [
        ("stale-instance/n1/one", "done"), ("stale-instance/n1/two", "done"),
    ]  # fmt: skip
    assert done.code == 0
    assert fleet.run(capsys, "leaks").code == 0
    assert fleet.run(capsys, "nodes", "-o", "json").json["items"][0]["memory_mib"]["gap"] == 0


def test_who_mends_by_a_clock_behind_that_of_the_last_one_is_heard_all_the_same(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    stale(fleet, producer="audits")
    nobody = InstanceReport(instance_id="nobody")
    years_ahead_ms = 4_000_000_000_000
    fleet.append(
        CLAIMS,
        InstanceObserved(
            node_id="n1", producer="operator", epoch=years_ahead_ms, counter=1, change="departed", event_time_ms=1, instance=nobody
        ),
    )

    done = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG, "-o", "json")

    assert [item["action"] for item in done.json["items"]] == ["done", "done"]


def test_the_log_is_folded_once_however_much_is_mended(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    stale(fleet, producer="audits")
    for topic in SOURCES:
        fleet.log.commit(CARRIERS, topic, fleet.log.ends(topic))
    read = Reading(fleet.log)
    found = state_at(fleet.log).findings()
    folded = len(claims(fleet))

    code = heal(read, found, Show(), yes=True, report_age_ms=1 << 60)

    assert (code, len(found), len(claims(fleet))) == (0, 2, folded + 2), capsys.readouterr().out
    assert read.records == folded + 2


def test_what_nobody_has_carried_costs_no_load_of_the_ledger_a_finding(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        node_id, instance_id = f"n{number}", f"gone-{number}"
        fleet.audit(node_id)
        fleet.claim(f"r-{number}/0/s-1.{number}", instance_id, node_id, request_id=f"r-{number}")
        for guests in ({instance_id: 1024}, {}, {}):
            fleet.now_ms += 60_000
            fleet.audit(node_id, guests)
    fleet.audit("elsewhere", {}, carry=False)
    found = [finding for finding in state_at(fleet.log).findings() if finding.instance_id.startswith("gone")]
    loaded = []

    def counted(log: Log, *args: Any, **options: Any) -> State:
        loaded.append(options)
        return state_at(log, *args, **options)

    monkeypatch.setattr(fresh, "state_at", counted)
    code = heal(fleet.log, found, Show(), yes=True, report_age_ms=1 << 60)

    assert (code, len(found)) == (0, 6), capsys.readouterr().out
    assert len(loaded) == 3


def test_two_findings_of_one_node_are_looked_at_one_after_the_other_whatever_is_pending(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    stale(fleet, producer="audits")
    fleet.audit("elsewhere", {}, carry=False)
    before = len(claims(fleet))
    found = state_at(fleet.log).findings()

    code = heal(fleet.log, found, Show(), yes=True, report_age_ms=1 << 60)

    assert (code, len(found), len(claims(fleet))) == (0, 2, before + 2), capsys.readouterr().out


@pytest.mark.parametrize("is_carried", [True, False])
def test_a_guest_that_its_host_shows_again_meanwhile_keeps_its_claim_whatever_is_pending(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_carried: bool
) -> None:
    for node_id in ("n1", "n2"):
        fleet.audit(node_id)
        fleet.claim(f"{node_id}/0/s-1.1", f"gone-{node_id}", node_id, request_id=node_id)
        for guests in ({f"gone-{node_id}": 1024}, {}, {}):
            fleet.now_ms += 60_000
            fleet.audit(node_id, guests)
    fleet.audit("elsewhere", {}, carry=False)
    found = [finding for finding in state_at(fleet.log).findings() if finding.kind == "orphan-claim"]
    write = fresh.Fresh.write

    def and_then_the_other_is_back(its: fresh.Fresh, messages: Any) -> Any:
        done = write(its, messages)
        fleet.now_ms += 60_000
        fleet.audit("n2", {"gone-n2": 1024}, carry=is_carried)
        return done

    monkeypatch.setattr(fresh.Fresh, "write", and_then_the_other_is_back)
    heal(fleet.log, found, Show(output="json"), yes=True, report_age_ms=1 << 60)
    items = json.loads(capsys.readouterr().out)["items"]

    assert [(item["node_id"], item["action"]) for item in items] == [("n1", "released"), ("n2", "resolved")]


def test_what_was_written_before_it_failed_is_told(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stale(fleet, producer="audits")
    found = state_at(fleet.log).findings()
    write, written = fresh.Fresh.write, list[Any]()

    def once(its: fresh.Fresh, messages: Any) -> Any:
        if written:
            raise LogFull("no room left")
        written.append(write(its, messages))
        return written[0]

    monkeypatch.setattr(fresh.Fresh, "write", once)
    with pytest.raises(LogFull):
        heal(fleet.log, found, Show(output="json"), yes=True, report_age_ms=1 << 60)
    said = capsys.readouterr()

    assert [item["position"] for item in json.loads(said.out)["items"]] == [str(written[0][0])]
    assert "it ended before all was looked at; until then:" in said.err


def test_all_findings_are_listed_once_however_many_are_looked_at(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan, ghost = orphaned(fleet), strange(fleet)
    listed, findings = list[State](), State.findings

    def counted(state: State) -> list[LeakSuspected | LeakConfirmed]:
        listed.append(state)
        return findings(state)

    monkeypatch.setattr(State, "findings", counted)
    said = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG, "-o", "json")

    assert len(listed) == 1
    assert {item["finding_id"]: item["action"] for item in said.json["items"]}.keys() == {orphan, ghost}
    assert [item["action"] for item in said.json["items"] if item["finding_id"] == orphan] == ["released"]


def test_what_a_cloud_counts_is_left_to_the_cloud(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    stale(fleet, producer="nova")
    before = len(claims(fleet))

    done = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG, "-o", "json")

    assert (done.code, len(claims(fleet))) == (3, before)
    assert {item["action"] for item in done.json["items"]} == {"left alone"}
    assert done.json["items"][0]["what"].startswith("nova counts it: delete it there")


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_claim_stranded_on_a_withdrawn_node_is_given_back(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], *, confirmed: bool
) -> None:
    fleet.claim("r1/0/s-1.1", "i1", "n1", memory_mib=1024)
    fleet.now_ms += 60_000
    fleet.audit("n1", {"i1": 1024})
    fleet.append(CLAIMS, NodeConfigured(node_id="n1", record_id="w", status="withdrawn", reason="scrapped"))
    (found,) = fleet.run(capsys, "leaks", "-o", "json").json["items"]
    fleet.now_ms += 60_000
    if confirmed:
        fleet.append(
            CLAIMS, NodeSilent(node_id="n1", record_id="s", producer="audits", epoch=1, counter=99, silent_since_ms=fleet.now_ms - 60_000)
        )

    done = fleet.run(capsys, "leaks", "--heal", "--yes", "-o", "json")

    assert (found["kind"], found["state"]) == ("stranded-claim", "suspected")
    assert [(item["finding_id"], item["action"]) for item in done.json["items"]] == [("stranded-claim/n1/r1/0/s-1.1", "released")]
    assert fleet.run(capsys, "leaks").code == 0


def stale(fleet: FleetLog, producer: str) -> None:
    """Two guests arrive, are listed once, and are gone without a word."""
    for number, instance in enumerate(("one", "two"), 1):
        report = InstanceReport(instance_id=instance, resources=ObservedResources(memory_mib=64))
        event = InstanceArrived(
            node_id="n1", producer=producer, epoch=1, counter=number, event_time_ms=fleet.now_ms + 1000, instance=report
        )
        fleet.append(LIFECYCLE, event)
    fleet.carry()
    fleet.audit("n1", {"one": 64, "two": 64})
    for _ in range(12):
        fleet.now_ms += 60_000
        fleet.audit("n1")


@pytest.mark.parametrize("kept", [False, True])
def test_a_drifted_size_is_claimed_with_the_devices_that_the_claim_had(*, kept: bool) -> None:
    history, wanted = History(), (PciWant(specs=({"address": "a"},)),)
    host = Hypervisor(vcpus=8, pcpus=0, memory_mib=64, disk_mib=64, pci_devices=(PciDevice(address="a"),))
    grown = InstanceReport(instance_id="i", resources=ObservedResources(memory_mib=6), pci_addresses=("a",))
    history.audit({}, at_s=0, hypervisor=host)
    history.claim("c", "i", 4, at_s=1, pci=wanted)
    history.audit({"i": grown}, at_s=60, hypervisor=host)
    if kept:
        history.claim("kept", "i", 6, keep=True, request_id="move", ttl_s=30, at_s=70)
    history.audit({"i": grown}, at_s=120, hypervisor=host)
    drift = LeakConfirmed(
        finding_id="size-drift/n1/c", kind="size-drift", node_id="n1", instance_id="i", claim_id="c",
        partition=0, offset=2, time_ms=0, since_ms=0, suspected_ms=0,
    )  # fmt: skip

    mends = remedy(drift, Place(history.node(), 3, NodeView()), Stamp("x", START_MS + 130_000), report_age_ms=60_000)

    (message,) = mends.messages
    history.append(message.key or b"", message.value, at_s=130)
    claim = max(history.node().claims["i"], key=lambda claim: claim.offset)
    assert (claim.pci, claim.amounts[2], claim.pci_addresses, history.used()) == (wanted, 6, ("a",), 6)


@pytest.mark.parametrize(
    ("claim_id", "fix", "says"),
    [
        ("c", "claimlog claims release c", "evacuate or delete i first, and then: claimlog claims release c"),
        ("", "claimlog timeline i", "evacuate or delete i on n1; see also: claimlog timeline i"),
    ],
)
def test_who_was_left_behind_by_its_group_is_moved_and_only_a_claim_of_it_is_released_then(claim_id: str, fix: str, says: str) -> None:
    history = History()
    history.audit({}, at_s=0)
    stranded = LeakConfirmed(
        finding_id="stranded-member/n1/i", kind="stranded-member", node_id="n1", instance_id="i", claim_id=claim_id, fix=fix,
        partition=0, offset=2, time_ms=0, since_ms=0, suspected_ms=0,
    )  # fmt: skip

    mends = remedy(stranded, Place(history.node(), 1, NodeView()), Stamp("x", START_MS + 10_000), report_age_ms=60_000)

    assert (mends.messages, mends.says) == ((), says)


def vanished(fleet: FleetLog) -> None:
    """A guest was started under a claim, and audits no longer list it: nobody said that it left."""
    fleet.audit("c01", {})
    fleet.claim("r1/0/s-1.1", "i1", "c01", ttl_ms=60_000)
    fleet.lived("c01", "i1", 1024)
    for _ in range(6):
        fleet.now_ms += 60_000
        fleet.audit("c01", {})


def test_the_command_that_mends_a_vanished_claim_works_as_it_is_printed(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    vanished(fleet)
    (finding,) = fleet.run(capsys, "leaks", "-o", "json").json["items"]

    mended = fleet.run(capsys, *shlex.split(finding["fix"])[1:])
    again = fleet.run(capsys, *shlex.split(finding["fix"])[1:])

    assert (finding["kind"], mended.code, mended.out) == ("vanished-claim", 0, "noted\n")
    assert fleet.run(capsys, "leaks", "-o", "json").json["items"] == []
    assert (again.code, again.out) == (1, "not-held\n")


def test_a_vanished_claim_is_noted_without_its_node_too(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    vanished(fleet)

    others = fleet.run(capsys, "claims", "release", "r1/0/s-1.2")
    mended = fleet.run(capsys, "claims", "release", "r1/0/s-1.1")

    assert (others.code, others.out) == (1, "not-held\n")
    assert (mended.code, mended.out) == (0, "noted\n")
    assert fleet.run(capsys, "leaks", "-o", "json").json["items"] == []


def test_healing_a_vanished_claim_says_that_it_is_noted(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    vanished(fleet)

    healed = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG, "-o", "json")

    assert (healed.code, [item["action"] for item in healed.json["items"]]) == (0, ["noted"])


def test_a_vanished_claim_is_noted_on_a_node_that_is_withdrawn_too(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    vanished(fleet)
    fleet.run(capsys, "node", "withdraw", "c01", "--reason", "burnt")

    healed = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG, "-o", "json")

    assert (healed.code, [item["action"] for item in healed.json["items"]]) == (0, ["noted"])
    assert fleet.run(capsys, "leaks").code == 0


def test_what_another_mend_has_ended_is_resolved_and_nothing_is_left(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a double one host is withdrawn: its claim goes back as the stranded one that it is, and with it the double."""
    for node_id, claim_id in (("n1", "r1/0/s-1.1"), ("n2", "r2/0/s-1.2")):
        fleet.audit(node_id)
        fleet.claim(claim_id, "i1", node_id, request_id=claim_id[:2], ttl_ms=60_000)
        fleet.audit(node_id, {"i1": 1024})
    for _ in range(4):
        fleet.now_ms += 30_000
        fleet.audit("n1", {"i1": 1024})
        fleet.audit("n2", {"i1": 1024})
    fleet.run(capsys, "node", "withdraw", "n1", "--reason", "burnt")
    fleet.audit("n2", {"i1": 1024})

    healed = fleet.run(capsys, "leaks", "--heal", "--yes", *LONG, "-o", "json")

    actions = {item["finding_id"]: item["action"] for item in healed.json["items"]}
    assert (healed.code, actions) == (0, {"double-claim/i1": "resolved", "stranded-claim/n1/r1/0/s-1.1": "released"})
    assert fleet.run(capsys, "leaks").code == 0


def test_an_adoption_whose_word_nobody_could_read_claims_nothing(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    finding = strange(fleet)
    before = len(claims(fleet))

    long = fleet.run(capsys, "leaks", "adopt", finding, "--reason", "x" * 4_090)
    none = fleet.run(capsys, "leaks", "adopt", finding, "--reason", "")

    assert (long.code, none.code, len(claims(fleet))) == (2, 2, before)
    assert "Expected `str` of length <= 4096" in long.err


def test_an_adoption_is_told_before_its_word_is_written(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finding, append = strange(fleet), SqliteLog.append

    def full(log: SqliteLog, messages: Sequence[Message]) -> list[int]:
        if any(isinstance(decode(message.topic, message.value), FindingIgnored) for message in messages):
            raise LogFull("no room")
        return append(log, messages)

    monkeypatch.setattr(SqliteLog, "append", full)

    said = fleet.run(capsys, "leaks", "adopt", finding, "--reason", "started by hand")

    assert said.code not in {0, 2}
    assert said.out == "granted\n"
    assert "claim 2 GiB for stranger on n1: claims/" in said.err


@pytest.mark.parametrize("meanwhile", ["another adoption", "the guest left"])
def test_an_adoption_that_was_overtaken_is_given_back(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    finding, append, overtaken = strange(fleet), SqliteLog.append, list[str]()

    def overtake(log: SqliteLog, messages: Sequence[Message]) -> list[int]:
        if not overtaken and any(isinstance(decode(each.topic, each.value), ClaimRequested) for each in messages):
            overtaken.append(meanwhile)
            if meanwhile == "the guest left":
                fleet.lived("n1", "stranger", 2048, InstanceDeparted)
            else:
                fleet.claim("theirs", "stranger", "n1", memory_mib=2048)
        return append(log, messages)

    monkeypatch.setattr(SqliteLog, "append", overtake)
    said = fleet.run(capsys, "leaks", "adopt", finding, "--reason", "started by hand")

    held = [item["claim_id"] for item in fleet.run(capsys, "claims", "list", "-o", "json").json["items"]]
    assert (said.code, said.out) == (1, "released\n"), said.err
    if meanwhile == "the guest left":
        assert "stranger left n1 meanwhile: the claim at claims/" in said.err
        assert held == []
    else:
        assert "stranger was claimed meanwhile (theirs): the claim at claims/" in said.err
        assert held == ["theirs"]
    words = [event for record in claims(fleet) if isinstance(event := decode(CLAIMS, record.value), FindingIgnored)]
    assert words == []


def test_nothing_is_claimed_for_a_guest_that_only_observations_show_which_nobody_carried(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = strange(fleet, carry=False)
    before = len(claims(fleet))

    said = fleet.run(capsys, "leaks", "adopt", finding, "--reason", "started by hand")

    assert (said.code, said.out, len(claims(fleet))) == (1, "", before)
    assert "is not in the ledger yet, so nothing was written; `claimlog run` carries it there" in said.err


def test_a_kind_of_finding_that_there_is_not_is_refused_with_those_that_there_are(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fleet.run(capsys, "leaks", "--kind", "ghost")

    assert (said.code, said.out) == (2, "")
    assert "ghost-instance" in said.err
