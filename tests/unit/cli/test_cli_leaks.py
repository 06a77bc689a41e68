"""`claimlog leaks`: what is found, why, and how it ends."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from projections.cut import Cut
from schemas.audits import HypervisorAudited, InstanceReport
from schemas.claims import ClaimReleased
from schemas.inventory import Hypervisor
from schemas.lifecycle import InstanceArrived, InstanceDeleted, InstanceDeparted, InstanceResized
from schemas.resources import ObservedResources
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE
from tests.cli_log import FleetLog

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    """c01 has an orphan of 2 GiB and c02 a ghost of 512 MiB, both confirmed."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.audit("c02")
    fleet.claim("r1/0/s-1.1", "i-77", "c01", memory_mib=2048, vcpus=2)
    fleet.lived("c01", "i-77", 2048)
    fleet.now_ms += 60_000
    fleet.audit("c01", {"i-77": 2048})
    for _ in range(2):
        fleet.now_ms += 60_000
        fleet.audit("c01")
        fleet.audit("c02", {"ghost": 512})
    return fleet


def test_each_finding_has_its_state_and_what_it_holds_and_the_exit_code_says_that_there_are_some(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fleet.run(capsys, "leaks", "-o", "json")

    assert said.code == 3
    found = {item["kind"]: item for item in said.json["items"]}
    assert sorted(found) == ["ghost-instance", "orphan-claim"]
    orphan = found["orphan-claim"]
    assert (orphan["node_id"], orphan["instance_id"], orphan["claim_id"], orphan["state"]) == ("c01", "i-77", "r1/0/s-1.1", "confirmed")
    assert orphan["held"] == {"vcpus": 2, "pcpus": 0, "memory_mib": 2048, "disk_mib": 0}
    assert said.json["summary"] == {
        "findings": 2, "confirmed": 2, "nodes": 2, "held": {"vcpus": 2, "pcpus": 0, "memory_mib": 2560, "disk_mib": 0},
        "counted": {"vcpus": 0, "pcpus": 0, "memory_mib": 2048, "disk_mib": 0}, "nodes_apart": [], "nodes_claimed_beyond": [],
    }  # fmt: skip


def test_the_table_names_the_missing_event_and_the_totals_go_to_stderr(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "leaks")

    assert said.code == 3
    assert "InstanceDeparted or InstanceDeleted of i-77 on c01" in said.out
    assert said.err.endswith("2 findings on 2 nodes, 2 confirmed; held: 2 vCPUs, 2.5 GiB; counted and on no audit: 2 GiB\n")


def test_explain_tells_the_events_at_places_where_they_stand(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    told = fleet.run(capsys, "leaks", "--explain", "--node", "c01").out
    causes = fleet.run(capsys, "leaks", "--node", "c01", "-o", "json").json["items"][0]["causes"]

    assert [cause["event"] for cause in causes] == [
        "claim-requested", "instance-observed", "node-observed", "node-observed", "node-observed",
    ]  # fmt: skip
    for cause in causes:
        (record,) = fleet.log.read(cause["topic"], cause["partition"], cause["offset"], 1)
        assert f'"type":"{cause["event"]}"'.encode() in record.value
        assert f"{cause['topic']}/{cause['partition']}@{cause['offset']}" in told
    assert "missing   InstanceDeparted or InstanceDeleted of i-77 on c01" in told
    assert "to mend   claimlog claims release r1/0/s-1.1 --reason deleted" in told
    assert "ghost" not in told


@pytest.mark.parametrize(
    ("sort", "first", "then"),
    [("node", "i-77", "ghost"), ("-node", "ghost", "i-77"), ("held.vcpus", "ghost", "i-77")],
)
def test_explanations_come_in_the_order_that_is_asked_for(
    sort: str, first: str, then: str, fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    told = fleet.run(capsys, "leaks", "--explain", "--sort", sort)

    assert told.code == 3
    assert told.out.index(f"{first} ") < told.out.index(f"{then} ")


def test_explanations_have_no_columns_to_choose_from(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    refused = fleet.run(capsys, "leaks", "--explain", "-c", "node_id")
    chosen = fleet.run(capsys, "leaks", "--explain", "-c", "node_id", "-o", "jsonl")

    assert (refused.code, refused.out) == (2, "")
    assert "--explain tells in words, which have no columns" in refused.err
    assert (chosen.code, chosen.out) == (3, '{"node_id":"c01"}\n{"node_id":"c02"}\n')


def test_a_command_that_only_shows_what_happened_is_not_said_to_mend(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    told = fleet.run(capsys, "leaks", "--explain", "--node", "c02").out

    assert "delete the guest on its host, or claim what it uses" in told
    assert "  see also  claimlog timeline ghost\n" in told
    assert "to mend" not in told


def test_the_command_that_claims_what_a_guest_uses_is_told_with_its_finding_and_works(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    told = fleet.run(capsys, "leaks", "--explain", "--node", "c02").out
    orphan = fleet.run(capsys, "leaks", "--explain", "--kind", "orphan-claim").out

    (command,) = re.findall(r"^  to adopt  claimlog (.*)$", told, re.MULTILINE)
    adopted = fleet.run(capsys, *shlex.split(command))

    assert "to adopt" not in orphan
    assert adopted.code == 0, adopted.err
    assert fleet.run(capsys, "leaks", "--node", "c02").code == 0


def test_the_command_that_it_prints_mends_the_orphan_and_its_gap(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    command = fleet.run(capsys, "leaks", "--kind", "orphan-claim", "-o", "json").json["items"][0]["fix"]

    assert fleet.run(capsys, *command.split()[1:]).code == 0

    assert [item["kind"] for item in fleet.run(capsys, "leaks", "-o", "json").json["items"]] == ["ghost-instance"]
    assert fleet.run(capsys, "nodes", "c01", "-o", "json").json["items"][0]["memory_mib"]["gap"] == 0


def test_at_a_cut_from_before_nothing_is_found_and_a_departure_that_comes_late_ends_it(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Cut.of({(CLAIMS, number): min(5, end) for number, end in fleet.log.ends(CLAIMS).items()})
    assert fleet.run(capsys, "leaks", "--at", str(before), "--node", "c01").code == 0

    fleet.now_ms += 60_000
    fleet.lived("c01", "i-77", 2048, InstanceDeleted)

    assert fleet.run(capsys, "leaks", "--node", "c01").code == 0
    assert "nothing found" in fleet.run(capsys, "leaks", "--node", "c01").err


def test_an_observation_that_nobody_carried_yet_is_named_by_where_it_stands(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.audit("c03", {"new": 256}, carry=False)

    (item,) = fleet.run(capsys, "leaks", "--node", "c03", "-o", "json").json["items"]

    assert [cause["topic"] for cause in item["causes"]] == ["hypervisor-audits"]


def test_a_claim_that_is_an_orphan_and_a_double_counts_once(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.claim("r2/0/s-1.2", "i-77", "c02", memory_mib=2048, vcpus=2)
    fleet.now_ms += 60_000
    fleet.lived("c02", "i-77", 2048)
    fleet.append(CLAIMS, ClaimReleased(node_id="c01", record_id="x", claim_id="nobody", reason="loser"))
    for _ in range(2):
        fleet.now_ms += 20_000
        fleet.audit("c01")
        fleet.audit("c02", {"ghost": 512, "i-77": 2048})

    answer = fleet.run(capsys, "leaks", "-o", "json").json

    states = {item["kind"]: item["state"] for item in answer["items"]}
    assert (states["double-claim"], states["orphan-claim"]) == ("confirmed", "confirmed")
    assert answer["summary"]["held"]["memory_mib"] == 2048 + 512


def test_a_kind_or_a_node_that_does_not_exist_is_a_usage_error_that_names_those_that_do(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = fleet.run(capsys, "leaks", "--kind", "orphan")
    node = fleet.run(capsys, "leaks", "--node", "c9")

    assert (kind.code, node.code) == (2, 2)
    assert "orphan-claim" in kind.err
    assert "known: c01, c02" in node.err


def test_a_filter_that_finds_nothing_does_not_say_that_all_is_well(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    every = fleet.run(capsys, "leaks", "-o", "json").json["items"]

    said = fleet.run(capsys, "leaks", "--kind", "device-drift")

    assert said.code == 0
    assert len(every) > 0
    assert f"nothing found of that kind or there; open in all: {len(every)} finding" in said.err
    assert "agree" not in said.err


@pytest.mark.parametrize("shown", ["json", "jsonl", "table"])
def test_findings_are_the_exit_code_also_for_a_reader_who_has_gone(fleet: FleetLog, shown: str) -> None:
    fleet.audit("c02", {f"stranger-{number:040}": 1 for number in range(100)})
    reads, writes = os.pipe()
    os.close(reads)

    command = [sys.executable, "-m", "streams.cli.main", "leaks", "-o", shown, "--log", fleet.spec]
    with os.fdopen(writes, "w") as gone:
        ran = subprocess.run(command, cwd=ROOT, stdout=gone, stderr=subprocess.PIPE, text=True, timeout=60)

    assert ran.returncode == 3, ran.stderr
    assert "Traceback" not in ran.stderr


def test_where_nothing_is_found_any_field_may_be_asked_for_and_healing_says_that_there_is_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = FleetLog(tmp_path)
    sound.audit("c01")

    for fields in (("finding_id",), ("held.memory_mib",), ("causes",)):
        said = sound.run(capsys, "leaks", "-o", "value", *(word for field in fields for word in ("-c", field)), "--sort", fields[0])
        assert (said.code, said.out) == (0, "")
    assert "nothing found: claims, life cycles and audits agree" in sound.run(capsys, "leaks", "--heal").err


def test_where_all_that_is_found_is_ignored_nothing_is_said_of_kinds_or_places(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    for finding_id in fleet.run(capsys, "leaks", "-o", "value", "-c", "finding_id").out.split():
        fleet.run(capsys, "leaks", "ignore", finding_id, "--reason", "known")

    said = fleet.run(capsys, "leaks")
    elsewhere = fleet.run(capsys, "leaks", "--ignored", "--kind", "negative-free")
    of_kind = fleet.run(capsys, "leaks", "--kind", "negative-free")

    assert (said.code, said.err.splitlines()[0], said.err.splitlines()[-1]) == (
        0, "2 findings more, ignored by the operator: --ignored shows them", "nothing else found"
    )  # fmt: skip
    assert elsewhere.err.splitlines()[-1] == "nothing found of that kind or there; open in all: 2 findings"
    assert of_kind.err.splitlines()[-1] == "nothing found of that kind or there; what is open is ignored by the operator"


@pytest.fixture
def sound(tmp_path: Path) -> FleetLog:
    """On c01 `i-1` of 2 GiB is claimed, has arrived and was audited; nothing runs on c02."""
    sound = FleetLog(tmp_path)
    sound.audit("c01")
    sound.audit("c02")
    sound.claim("r1/0/s-1.1", "i-1", "c01", memory_mib=2048)
    sound.lived("c01", "i-1", 2048)
    sound.now_ms += 60_000
    sound.audit("c01", {"i-1": 2048})
    return sound


def last_words(fleet: FleetLog, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """What `leaks` says when it finds nothing."""
    said = fleet.run(capsys, "leaks", *flags)
    assert said.code == 0
    return said.err.splitlines()[-1]


AGREE = "nothing found: claims, life cycles and audits agree"


def test_a_gap_that_no_audit_could_judge_yet_is_an_open_question_until_the_next_one(
    sound: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    before = last_words(sound, capsys)
    sound.claim("r2/0/s-1.2", "i-2", "c02", memory_mib=512)
    sound.lived("c02", "i-2", 512)
    sound.audit("c02")  # A second later, and without it: clocks may differ by more.
    gap = sound.run(capsys, "nodes", "c02", "-o", "json").json["items"][0]["memory_mib"]["gap"]
    one, elsewhere, healed = last_words(sound, capsys), last_words(sound, capsys, "--node", "c01"), last_words(sound, capsys, "--heal")
    sound.lived("c01", "i-1", 2048, InstanceDeleted)
    two = last_words(sound, capsys)
    sound.now_ms += 60_000
    sound.audit("c01")
    sound.audit("c02", {"i-2": 512})

    assert (before, gap, elsewhere) == (AGREE, 512, AGREE)
    assert one.startswith("nothing found yet; tracked and reported differ on 1 node: its next audit will tell; its last is ")
    assert healed.startswith("nothing found yet; tracked and reported differ on 1 node: its next audit will tell; its last is ")
    assert two.startswith(
        "nothing found yet; tracked and reported differ on 2 nodes: their next audits will tell; their last ones are up to "
    )
    assert last_words(sound, capsys) == AGREE


def test_an_open_question_says_how_old_the_audit_is_that_another_one_has_to_follow(
    sound: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    """Perhaps none ever will: its producer was stopped, and with no process that tells silence nobody says so."""
    sound.lived("c01", "i-1", 2048, InstanceDeleted)
    sound.now_ms += 3 * 3_600_000
    sound.audit("c02", {"ghost": 512})
    at = sound.now_ms + 500

    said, explained = (sound.run(capsys, "leaks", *flags, "--at", str(at)) for flags in ((), ("--explain",)))

    ends = "its next audit will tell; its last is 3h old"
    assert said.err.splitlines()[-1] == f"without a finding, tracked and reported differ on 1 node: {ends}"
    assert f"tracked and reported differ on c01: {ends}\n" in explained.out


def test_an_open_question_that_the_next_audit_answers_badly_becomes_a_finding(sound: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    sound.claim("r2/0/s-1.2", "i-2", "c02", memory_mib=512)
    sound.lived("c02", "i-2", 512)
    sound.audit("c02")
    sound.now_ms += 60_000
    sound.audit("c02")

    said = sound.run(capsys, "leaks", "-o", "json")

    assert (said.code, said.json["summary"]["findings"], said.json["items"][0]["kind"]) == (3, 1, "orphan-claim")


def test_a_gap_that_no_audit_will_ever_judge_is_not_said_to_wait_for_one(sound: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    sound.claim("r2/0/s-1.2", "silent", "c01", memory_mib=256)
    for _ in range(2):
        sound.now_ms += 60_000
        sound.audit("c01", {"i-1": 2048, "silent": 256})  # Its life cycle says nothing of it; its claim is as audited.

    assert last_words(sound, capsys) == "nothing found, though tracked and reported differ on 1 node: see `claimlog nodes`"


@pytest.mark.parametrize("shown", [0, None])
@pytest.mark.parametrize("counted", [4, 3])
def test_what_one_guests_event_leaves_out_is_no_gap_of_another(
    sound: FleetLog, capsys: pytest.CaptureFixture[str], counted: int, shown: int | None
) -> None:
    """A guest with dedicated CPUs, and one of which the life cycle says nothing of any: how many the node has is not known there."""
    sizes = {"pinned": ObservedResources(vcpus=0, pcpus=4, memory_mib=64), "shared": ObservedResources(vcpus=2, pcpus=shown, memory_mib=64)}
    said = {"pinned": structs.replace(sizes["pinned"], pcpus=counted), "shared": structs.replace(sizes["shared"], pcpus=None)}
    host = Hypervisor(vcpus=16, pcpus=8, memory_mib=8192, disk_mib=102_400)
    for counter, name in enumerate(sizes, start=1):
        report = InstanceReport(instance_id=name, resources=said[name])
        event = InstanceArrived(node_id="c02", producer="life", epoch=1, counter=counter, event_time_ms=sound.now_ms, instance=report)
        sound.append(LIFECYCLE, event)
    for counter in range(1, 4):
        sound.now_ms += 60_000
        audit = HypervisorAudited(
            node_id="c02", producer="audits", epoch=2, counter=counter, taken_at_ms=sound.now_ms, mono_ms=sound.now_ms, digest=str(counter),
            hypervisor=host, instances=tuple(InstanceReport(instance_id=name, resources=size) for name, size in sizes.items()),
        )  # fmt: skip
        sound.append(AUDITS, audit)
        sound.carry()

    found, leaks = sound.run(capsys, "leaks", "-o", "json", "--node", "c02").json["items"], sound.run(capsys, "leaks", "--node", "c02")

    assert [(item["kind"], item["instance_id"]) for item in found] == ([] if counted == 4 else [("size-drift", "pinned")])
    assert "tracked and reported differ" not in leaks.err


def test_a_gap_without_a_finding_is_told_beside_findings_and_explained_by_what_each_side_says(
    sound: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hypervisor's own producer says that a guest grew and that another left, and its audits go on saying otherwise."""
    sound.claim("r2/0/s-1.2", "i-2", "c01", memory_mib=512)
    sound.lived("c01", "i-2", 512, producer="audits")
    sound.claim("r3/0/s-1.3", "i-3", "c01", memory_mib=256)
    sound.lived("c01", "i-3", 256, producer="audits")
    sound.now_ms += 60_000
    sound.lived("c01", "i-3", 1024, InstanceResized, producer="audits")
    sound.lived("c01", "i-2", 512, InstanceDeparted, producer="audits")
    sound.audit("c02", {"ghost": 256})
    for _ in range(3):
        sound.now_ms += 60_000
        sound.audit("c01", {"i-1": 2048, "i-2": 512, "i-3": 256})

    said, explained = sound.run(capsys, "leaks"), sound.run(capsys, "leaks", "--explain")
    one_kind = sound.run(capsys, "leaks", "--explain", "--kind", "ghost-instance")

    assert said.err.splitlines()[-1] == "without a finding, tracked and reported differ on 1 node: see `claimlog nodes`"
    assert sound.run(capsys, "leaks", "-o", "json").json["summary"]["nodes_apart"] == ["c01"]
    assert "tracked and reported differ on c01, without a finding\n" in explained.out
    assert "  i-3  shown with 256 MiB; the life cycle counts 1 GiB (resized at claims/" in explained.out
    assert "  i-1  " not in explained.out, "both sides say the same of it"
    assert "  i-2  shown with 512 MiB; the life cycle does not count it: `claimlog timeline i-2`" in explained.out
    assert "differ on c01" not in one_kind.out


def test_a_gap_on_a_node_with_a_finding_is_told_of_those_instances_that_the_finding_does_not_name(
    sound: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    sound.claim("r3/0/s-1.3", "i-3", "c01", memory_mib=256)
    sound.lived("c01", "i-3", 256, producer="audits")
    sound.now_ms += 60_000
    sound.lived("c01", "i-3", 1024, InstanceResized, producer="audits")
    for _ in range(3):
        sound.now_ms += 60_000
        sound.audit("c01", {"i-1": 2048, "i-3": 256, "ghost": 512})

    said, explained = sound.run(capsys, "leaks", "-o", "json"), sound.run(capsys, "leaks", "--explain")

    assert [(item["kind"], item["instance_id"]) for item in said.json["items"]] == [("ghost-instance", "ghost")]
    assert said.json["summary"]["nodes_apart"] == ["c01"]
    (paragraph,) = [each for each in explained.out.split("\n\n") if each.startswith("tracked and reported differ on c01")]
    assert "  i-3  shown with 256 MiB" in paragraph
    assert "ghost" not in paragraph, "the finding says it"


def test_guests_that_arrived_since_the_last_audit_are_a_gap_beside_a_finding_about_another(
    sound: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        sound.now_ms += 60_000
        sound.audit("c01", {"i-1": 2048, "ghost": 512})
    alone = sound.run(capsys, "leaks", "-o", "json")
    sound.claim("r3/0/s-1.3", "i-3", "c01", memory_mib=256)
    sound.lived("c01", "i-3", 256)

    said = sound.run(capsys, "leaks", "-o", "json")

    assert [(each.json["summary"]["findings"], each.json["summary"]["nodes_apart"]) for each in (alone, said)] == [(1, []), (1, ["c01"])]


def test_an_open_question_beside_what_is_ignored_is_told(sound: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    sound.audit("c02", {"ghost": 512})
    (ghost,) = sound.run(capsys, "leaks", "-o", "value", "-c", "finding_id").out.split()
    sound.run(capsys, "leaks", "ignore", ghost, "--reason", "known")
    ignored = last_words(sound, capsys)
    sound.lived("c01", "i-1", 2048, InstanceDeleted)

    assert ignored == "nothing else found"
    assert last_words(sound, capsys).startswith("nothing else found yet; tracked and reported differ on 1 node: its next audit will tell")


def test_a_larger_claim_beside_the_one_that_the_guest_is_as_is_told_once_nothing_is_under_way(
    sound: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no finding, as the guest may take that size again; that claims agree would not be true either."""
    sound.claim("r2/0/s-1.2", "i-1", "c01", memory_mib=4096, request_id="r2")
    words = []
    for _ in range(2):
        words.append(last_words(sound, capsys))
        sound.now_ms += 60_000
        sound.audit("c01", {"i-1": 2048})
    said, explained = sound.run(capsys, "leaks", "-o", "json"), sound.run(capsys, "leaks", "--explain")
    elsewhere = last_words(sound, capsys, "--node", "c02")

    ends = "more is claimed than reported on 1 node: `claimlog leaks --explain` names the instances"
    assert words == [AGREE, AGREE], "unconfirmed, and just confirmed"
    assert (said.code, said.json["items"], said.json["summary"]["nodes_claimed_beyond"]) == (0, [], ["c01"])
    assert explained.err.splitlines()[-1] == f"nothing found, though {ends}"
    assert explained.out.startswith("more is claimed than reported on c01, without a finding\n  i-1  shown with 2 GiB; claimed: ")
    assert "r2/0/s-1.2 4 GiB\n" in explained.out
    assert elsewhere == AGREE

    sound.audit("c02", {"ghost": 512})
    (ghost,) = sound.run(capsys, "leaks", "-o", "value", "-c", "finding_id").out.split()
    assert sound.run(capsys, "leaks").err.splitlines()[-1] == f"without a finding, {ends}"
    sound.run(capsys, "leaks", "ignore", ghost, "--reason", "known")
    assert last_words(sound, capsys) == f"nothing else found, though {ends}"

    sound.claim("r3/0/s-1.2", "silent", "c01", memory_mib=256)
    for _ in range(2):
        sound.now_ms += 60_000
        sound.audit("c01", {"i-1": 2048, "silent": 256})  # Its life cycle says nothing of it.
    both = sound.run(capsys, "leaks").err.splitlines()[-2:]
    assert both == ["nothing else found, though tracked and reported differ on 1 node: see `claimlog nodes`", f"without a finding, {ends}"]
