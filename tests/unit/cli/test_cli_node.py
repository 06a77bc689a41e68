"""`claimlog node`: the arithmetic is printed with its numbers, and the operator's word stands in the ledger."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from schemas.audits import AuditFailed, HypervisorAudited, InstanceReport
from schemas.claims import ClaimItem, ClaimRequested, NodeConfigured, NodeSilent
from schemas.codec import decode
from schemas.inventory import HugePages, Hypervisor, NumaCell, PciDevice, Physical
from schemas.requests import NumaWant, PciWant
from schemas.resources import ObservedResources, Resources
from schemas.topics import AUDITS, CLAIMS
from streams.cli.node.devices import device_items
from tests.cli_log import PARTITIONS, FleetLog
from tests.ledger_history import History, item


def words(fleet: FleetLog) -> list[NodeConfigured]:
    """Every word of the operator in the ledger."""
    records = [record for number in range(PARTITIONS) for record in fleet.log.read(CLAIMS, number, 0)]
    return [event for record in records if isinstance(event := decode(CLAIMS, record.value), NodeConfigured)]


def test_show_prints_the_arithmetic_of_what_is_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1204}, memory_mib=8192)
    fleet.claim("r1/0/s-1.1", "i2", "c01", memory_mib=1024)

    said = fleet.run(capsys, "node", "show", "c01")

    assert said.code == 0
    assert "memory      free 5,964 MiB = limit 8 GiB - used 2,228 MiB" in said.out
    assert "limit 8 GiB = (total 8 GiB - reserved 0) x 1" in said.out
    assert "r1/0/s-1.1  i2  1 GiB  unconfirmed" in said.out
    assert "(no claim)  i1  1,204 MiB" in said.out
    assert "ghost-instance i1" in said.out


def test_show_as_json_has_the_claims_the_instances_and_the_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1204})
    fleet.claim("r1/0/s-1.1", "i2", "c01", memory_mib=1024)

    (node,) = fleet.run(capsys, "node", "show", "c01", "-o", "json").json["items"]

    assert [claim["claim_id"] for claim in node["claims_held"]] == ["r1/0/s-1.1"]
    assert [report["instance_id"] for report in node["instances_shown"]] == ["i1"]
    assert [finding["kind"] for finding in node["findings"]] == ["ghost-instance"]
    assert node["memory_mib"]["free"] == 8192 - 1204 - 1024


def test_show_has_cells_and_devices_and_claims_say_which_of_them_they_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One has a function of a device, so that the device itself is nobody's and not free."""
    fleet = FleetLog(tmp_path)
    cells = tuple(
        NumaCell(
            cell_id=number,
            cpus=tuple(range(4 * number, 4 * number + 4)),
            dedicated_cpus=(4 * number, 4 * number + 1),
            memory_mib=4096,
            pages=(HugePages(size_kib=4, total=524_288), HugePages(size_kib=2048, total=1024)),
        )
        for number in (0, 1)
    )
    whole = PciDevice(address="0000:01:00.0", vendor_id="8086", product_id="1572", device_type="type-PF")
    part: dict[str, Any] = {"vendor_id": "8086", "product_id": "154c", "device_type": "type-VF", "physical_function": whole.address}
    parts = (PciDevice(address=f"0000:01:10.{number}", **part) for number in (0, 1))
    fleet.audit("c01", pcpus=4, numa_cells=cells, pci_devices=(whole, *parts))
    item = ClaimItem(
        claim_id="r1/0/s-1.1", instance_id="i1", nodes=("c01",), resources=Resources(pcpus=1, memory_mib=512),
        numa=(NumaWant(cpus=(0,), memory_mib=512, cpu_policy="dedicated", page_size="large"),),
        pci=(PciWant(alias="vf", specs=({"product_id": "154c"},)),),
    )  # fmt: skip
    fleet.append(CLAIMS, ClaimRequested(request_id="r1", owner="s1", basis=0, ttl_ms=600_000, items=(item,)), key=b"c01")

    (node,) = fleet.run(capsys, "node", "show", "c01", "-o", "json").json["items"]
    words, (held,) = fleet.run(capsys, "node", "show", "c01").out, node["claims_held"]

    assert (held["pinned_cpus"], held["pci_addresses"]) == ([0], ["0000:01:10.0"])
    assert [(cell["cell_id"], cell["page_size_kib"], cell["memory_mib"]) for cell in held["cells"]] == [(0, 2048, 512)]
    (first, second) = node["numa_cells"]
    assert (first["dedicated_cpus_free"], second["dedicated_cpus_free"]) == ([1], [4, 5])
    assert [pages["free"] for pages in first["pages"] if pages["size_kib"] == 2048] == [768]
    devices = {each["address"]: (each["free"], each["instances"]) for each in node["pci_devices"]}
    assert devices == {"0000:01:00.0": (False, []), "0000:01:10.0": (False, ["i1"]), "0000:01:10.1": (True, [])}
    assert [" ".join(line.split()) for line in words.splitlines() if line.startswith(("cell", "devices"))] == [
        "cell 0 free 1 of 2 dedicated CPUs, 768 of 1,024 pages of 2,048 KiB",
        "cell 1 free 2 of 2 dedicated CPUs, 1,024 of 1,024 pages of 2,048 KiB",
        "devices free 1 of 2 8086:154c (type-VF)",
        "devices free 0 of 1 8086:1572 (type-PF)",
    ]
    listed = fleet.run(capsys, "claims", "list", "-o", "wide").out.splitlines()
    assert listed[0].split()[-6:] == ["keep", "resize", "forced", "CPUs", "devices", "position"]
    assert listed[1].split()[-6:-1] == ["no", "no", "no", "0", "0000:01:10.0"]


def test_show_says_why_the_first_audit_of_a_node_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    at = {"epoch": 1, "counter": 1, "taken_at_ms": fleet.now_ms, "mono_ms": 0, "unknown_since_ms": fleet.now_ms}
    fleet.append(AUDITS, AuditFailed(node_id="c01", producer="p", reason="no answer in 3 s", **at))

    failing = audit_line(fleet, capsys)
    look: dict[str, Any] = {"taken_at_ms": fleet.now_ms, "mono_ms": 0, "hypervisor": Hypervisor(), "instances": ()}
    fleet.append(AUDITS, HypervisorAudited(node_id="c01", producer="p", epoch=1, counter=2, digest="d", complete=False, **look))
    answering = audit_line(fleet, capsys)

    assert failing.startswith("audit       never; unknown since ")
    assert failing.endswith(": no answer in 3 s")
    assert re.fullmatch(r"audit       \S+ ago, incomplete; none complete since one failed at \S+Z", answering)


def test_a_table_of_nodes_says_where_the_last_audit_is_not_what_is_known_since(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    for name in ("failing", "partly", "silent", "sound"):
        fleet.audit(name, {"i1": 512} if name == "sound" else {})
    now_ms = fleet.now_ms = fleet.now_ms + 1_000
    at: dict[str, Any] = {"producer": "p", "epoch": 2, "counter": 1, "mono_ms": 0}
    failed: dict[str, Any] = {"reason": "no answer in 3 s", "unknown_since_ms": now_ms, "taken_at_ms": now_ms, **at}
    look: dict[str, Any] = {"hypervisor": Hypervisor(), "instances": (), "digest": "d", "complete": False, **at}
    fleet.append(AUDITS, AuditFailed(node_id="failing", **failed))
    fleet.append(AUDITS, AuditFailed(node_id="new", **failed))
    fleet.append(AUDITS, AuditFailed(node_id="partly", **failed))
    fleet.append(AUDITS, HypervisorAudited(node_id="partly", **look | {"counter": 2, "taken_at_ms": now_ms + 1_000}))
    fleet.carry()
    source: dict[str, Any] = {"node_id": "silent", "producer": "p", "epoch": 1, "counter": 3}
    fleet.append(CLAIMS, NodeSilent(record_id="s1", silent_since_ms=now_ms, **source))
    fleet.now_ms += 3_000

    said = fleet.run(capsys, "nodes", "-c", "node_id", "-c", "audit_age_ms")

    words = {name: rest for name, *rest in map(str.split, said.out.splitlines()[1:])}
    assert {name: rest[1:] for name, rest in words.items()} == {
        "failing": ["unknown"], "new": ["unknown"], "partly": ["incomplete"], "silent": ["silent"], "sound": [],
    }  # fmt: skip
    assert words["new"][0] == "never"


def audit_line(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> str:
    """What `node show` says of the audits of c01."""
    (line,) = [line for line in fleet.run(capsys, "node", "show", "c01").out.splitlines() if line.startswith("audit ")]
    return line


def test_show_says_which_figures_are_the_hosts_own_and_since_when_guests_do_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    since_ms = fleet.now_ms
    reports = tuple(
        InstanceReport(instance_id=name, resources=ObservedResources(memory_mib=512), unknown_since_ms=unknown)
        for name, unknown in (("i1", None), ("i2", since_ms))
    )
    physical = Physical(memory_mib_used=3072, memory_mib_free=5120, disk_mib_free=2048, disk_mib_available_least=-1024)
    fleet.append(
        AUDITS,
        HypervisorAudited(
            node_id="c01",
            producer="p",
            epoch=1,
            counter=1,
            taken_at_ms=fleet.now_ms + 1000,
            mono_ms=1,
            digest="d",
            complete=False,
            hypervisor=Hypervisor(memory_mib=8192, disk_mib=10_240, physical=physical),
            instances=reports,
            unknown_instances=("i2",),
        ),
    )

    said = fleet.run(capsys, "node", "show", "c01").out

    assert "incomplete (1 guest does not answer, since 2025-11-21T09:09:07" in said
    assert "physical: 3 GiB used, 5 GiB free (the host's own figure" in said
    assert "physical: 2 GiB free, -1 GiB left if all images grow (the host's own figure" in said


@pytest.mark.parametrize(("verb", "status"), [("disable", "disabled"), ("drain", "draining"), ("withdraw", "withdrawn")])
def test_a_status_is_written_with_its_reason_and_taken_back_by_enable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, status: str
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})

    said = fleet.run(capsys, "node", verb, "c01", "--reason", "new DIMMs")
    (node,) = fleet.run(capsys, "nodes", "-o", "json").json["items"]
    back = fleet.run(capsys, "node", "enable", "c01")

    assert (said.code, said.out) == (0, f"c01: enabled -> {status} (new DIMMs)\n")
    assert said.err.startswith("claims/")
    assert (node["status"], node["status_reason"]) == (status, "new DIMMs")
    assert back.out == f"c01: {status} -> enabled\n"
    assert [word.status for word in words(fleet)] == [status, "enabled"]


def test_an_unknown_node_is_refused_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})

    said = fleet.run(capsys, "node", "disable", "c1", "--reason", "typo")

    assert said.code == 2
    assert "node 'c1' is not known; known: c01; --new writes it" in said.err
    assert words(fleet) == []


def test_new_writes_the_word_on_a_node_before_its_first_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)

    said = fleet.run(capsys, "node", "disable", "c77", "--reason", "not racked yet", "--new")
    fleet.audit("c77", {})

    assert (said.code, said.out) == (0, "c77: new -> disabled (not racked yet)\n")
    assert fleet.run(capsys, "nodes", "-o", "value", "-c", "status").out == "disabled\n"


def test_a_node_that_is_reported_but_not_carried_yet_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {}, carry=False)

    said = fleet.run(capsys, "node", "disable", "c01", "--reason", "x")

    assert (said.code, said.out) == (0, "c01: new -> disabled (x)\n")


@pytest.mark.parametrize("verb", ["disable", "drain", "withdraw"])
def test_a_node_is_not_taken_out_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})

    said = fleet.run(capsys, "node", verb, "c01", "--reason", " ")

    assert (said.code, said.out) == (2, "")
    assert "say why" in said.err
    assert fleet.run(capsys, "nodes", "-o", "json").json["items"][0]["status"] == "enabled"


def test_show_prints_only_the_columns_that_were_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1204}, memory_mib=8192)

    said = fleet.run(capsys, "node", "show", "c01", "-c", "node_id", "-c", "memory_mib.free")

    assert [line.split() for line in said.out.splitlines()] == [["node_id", "memory_mib.free"], ["c01", str(8192 - 1204)]]


@pytest.mark.parametrize("verb", [("node", "show", "c01"), ("leaks", "--explain"), ("what-if", "--vcpus", "1")])
@pytest.mark.parametrize("flag", ["-c", "--sort"])
def test_a_column_that_is_not_there_is_refused_by_verbs_that_answer_in_words(
    verb: tuple[str, ...], flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1204})

    said = fleet.run(capsys, *verb, flag, "nosuch")

    assert said.code == 2
    assert "there is no column 'nosuch'" in said.err


def test_a_device_is_had_by_whoever_holds_it_and_by_whom_its_host_shows_with_it() -> None:
    devices = tuple(PciDevice(address=f"gpu{n}", vendor_id="10de") for n in range(3))
    history = History()
    shown = InstanceReport(instance_id="shown", resources=ObservedResources(vcpus=1), pci_addresses=("gpu1",))
    history.audit({"shown": shown}, at_s=0, hypervisor=Hypervisor(vcpus=8, memory_mib=4096, pci_devices=devices))
    history.claims(item("c", "held", 0, pci=(PciWant(alias="gpu", specs=({"vendor_id": "10de"},)),)), at_s=1)

    found = {each["address"]: (each["instances"], each["free"]) for each in device_items(history.node())}

    assert found == {"gpu0": (["held"], False), "gpu1": (["shown"], False), "gpu2": ([], True)}


def test_a_host_that_fails_after_its_audit_is_unknown_in_the_table_whatever_it_told_in_between(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Producers say since when nothing is known by the last audit that told something: the very time of that audit."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    taken_ms = fleet.run(capsys, "nodes", "-o", "json").json["items"][0]["audit_taken_at_ms"]
    at: dict[str, Any] = {"node_id": "c01", "producer": "audits", "epoch": 1, "mono_ms": 0}
    failed = AuditFailed(counter=100, reason="refused", unknown_since_ms=taken_ms, taken_at_ms=taken_ms + 1_000, **at)
    partly: dict[str, Any] = {"hypervisor": Hypervisor(), "instances": (), "digest": "d", "complete": False, "counter": 101}

    said = []
    for record in (
        failed,
        HypervisorAudited(taken_at_ms=taken_ms + 2_000, **partly, **at),
        structs.replace(failed, counter=102, taken_at_ms=taken_ms + 3_000),
    ):
        fleet.append(AUDITS, record)
        fleet.carry()
        said.append(fleet.run(capsys, "nodes", "-c", "audit_age_ms", "-o", "table").out.splitlines()[-1].split()[-1])

    assert said == ["unknown", "incomplete", "unknown"]
    assert fleet.run(capsys, "nodes", "-o", "json").json["items"][0]["audits_fail"] is True
