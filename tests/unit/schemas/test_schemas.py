"""Every record type: golden bytes that only a deliberate change may move, and a JSON Schema that others can generate code from.

After such a change: `CLAIMLOG_GOLDEN=write pytest tests/unit/schemas/test_schemas.py`, and a line in CHANGELOG.md that says why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import audits, claims, findings, lifecycle, requests, results
from schemas.audits import InstanceReport
from schemas.codec import Unreadable, decode, decode_keyed, encode, event_type, key_of, known_types, record_types
from schemas.export import as_json, export, schema, schemas, unit_of
from schemas.inventory import (
    Aggregate,
    CellMemory,
    CpuInfo,
    HugePages,
    Hypervisor,
    Metric,
    NumaCell,
    OperatorFields,
    PciDevice,
    PciPool,
    Physical,
    ResourceRule,
    SupportedGuest,
)
from schemas.resources import Limits, ObservedResources, Resources, Shortfall
from schemas.topics import TOPICS

GOLDEN = Path(__file__).parents[2] / "golden" / "records.jsonl"

HYPERVISOR = Hypervisor(
    vcpus=16,
    pcpus=4,
    memory_mib=65_536,
    disk_mib=1_048_576,
    host_uuid="8a1f",
    host_ip="192.0.2.7",
    hypervisor_type="QEMU",
    hypervisor_version=9_000_000,
    cpu_info=CpuInfo(
        architecture="x86_64",
        model="Skylake",
        vendor="Intel",
        cells=2,
        sockets=1,
        cores=4,
        threads=2,
        maxphysaddr_bits=46,
        features=("aes", "vmx"),
    ),
    supported_guests=(SupportedGuest(architecture="x86_64", hypervisor_type="kvm", vm_mode="hvm"),),
    numa_cells=(
        NumaCell(
            cell_id=0,
            cpus=(0, 1, 2, 3),
            dedicated_cpus=(2, 3),
            siblings=((0, 1), (2, 3)),
            memory_mib=32_768,
            socket=0,
            pages=(HugePages(size_kib=2048, total=512, reserved=2, free=500),),
        ),
    ),
    pci_devices=(
        PciDevice(
            address="0000:81:00.1",
            vendor_id="8086",
            product_id="1520",
            device_type="type-VF",
            numa_cell=0,
            physical_function="0000:81:00.0",
            tags={"net": "a"},
        ),
    ),
    pci_pools=(PciPool(vendor_id="8086", product_id="1520", device_type="type-VF", numa_cell=0, tags={"net": "a"}, count=7),),
    traits=("HW_CPU_X86_AVX2",),
    metrics=(Metric(name="cpu.percent", value_milli=412),),
    io_workload=1,
    failed_builds=2,
    physical=Physical(
        memory_mib_total=65_000,
        memory_mib_free=9_000,
        disk_mib_free=-1,
        disk_mib_available_least=-2_048,
        vcpus_used=3,
        memory_mib_used=56_000,
        disk_mib_used=4_096,
        instances_running=2,
        workload=1,
        cells=(CellMemory(cell_id=0, memory_mib_free=4_500),),
    ),
)
INSTANCE = InstanceReport(
    instance_id="i-1",
    resources=ObservedResources(vcpus=2, pcpus=0, memory_mib=4_096, disk_mib=20_480),
    name="web-1",
    power_state="paused",
    task_state="resize_prep",
    project_id="p-1",
    image_properties={"hw_architecture": "x86_64"},
    numa_cells=(0,),
    pinned_cpus=(2, 3),
    pci_addresses=("0000:81:00.1",),
    unknown_since_ms=1_700_000_000_000,
)
SHORT = Shortfall(resource="memory_mib", needed=4_096, free=-2_048)
GROUP = claims.GroupMember(group_id="g-1", policy="anti-affinity", max_per_node=2, epoch=3)
NUMA = requests.NumaWant(
    cell_id=0,
    cpus=(0, 1),
    pinned_cpus=(2, 3),
    memory_mib=2_048,
    page_size_kib=2_048,
    cpu_policy="mixed",
    thread_policy="isolate",
    emulator_threads="share",
)
PCI = requests.PciWant(alias="nic", count=2, specs=({"vendor_id": "8086"},), numa_policy="preferred")
DECISION = results.Decision(
    instance_id="i-1",
    cut=(12, 40),
    overlay=("r-0/0/s1-7.1@n2",),
    seed=42,
    policy_digest="pd",
    engine="profiles",
    nodes_known=3,
    rejections=(results.Rejection(filter="ram", entered=3, rejected=1, node_id="n3", reason="memory_mib: 4096 needed of 2048"),),
    passed=2,
    chosen="n1",
    alternates=("n2",),
    nearest_miss=results.NearestMiss(node_id="n3", filter="ram", shortfalls=(SHORT,)),
    best=(results.Weighed(node_id="n1", score=1.5, weights=(results.Weight(weigher="ram", raw=4096.0, normalised=1.0, multiplied=1.5),)),),
    attempt=2,
    refused=(SHORT,),
)
ROW = results.ResourceRow(
    total=65_536,
    reserved=512,
    ratio_milli=1_500,
    limit=97_536,
    reported=4_096,
    tracked=8_192,
    claimed=4_096,
    used=8_192,
    free=89_344,
    gap=4_096,
)
AUDIT: dict[str, Any] = {
    "node_id": "n1",
    "producer": "libvirt@n1",
    "epoch": 1_700_000_000_000,
    "counter": 5,
    "taken_at_ms": 1_700_000_000_500,
}
FINDING: dict[str, Any] = {
    "finding_id": "orphan-claim/c-1",
    "kind": "orphan-claim",
    "node_id": "n1",
    "partition": 3,
    "offset": 17,
    "time_ms": 1_700_000_009_000,
    "since_ms": 1_700_000_001_000,
    "suspected_ms": 1_700_000_002_000,
    "instance_id": "i-1",
    "claim_id": "r-1/0/s1-7.1",
    "held": Resources(vcpus=2, memory_mib=4_096),
    "causes": (
        findings.Cause(topic="claims", partition=3, offset=9, time_ms=1_700_000_000_900, event="claim-requested", summary="held on n1"),
    ),
    "missing": "instance-deleted",
    "fix": "claimlog claims release r-1/0/s1-7.1",
    "note": "second look",
}


def examples() -> Iterator[Any]:
    """One record of every type, with as many of its fields as can stand together, and a second where a type has two shapes."""
    yield audits.HypervisorAudited(
        **AUDIT, mono_ms=77, digest="d1", complete=False, hypervisor=HYPERVISOR, instances=(INSTANCE,), unknown_instances=("i-2",)
    )
    yield audits.HypervisorAudited(**AUDIT, mono_ms=77, digest="d1")
    yield audits.AuditFailed(**AUDIT, mono_ms=77, reason="libvirt: no answer in 5 s", unknown_since_ms=1_699_999_999_000)
    for cls in lifecycle.LifecycleRecord.__args__:
        yield cls(
            node_id="n1",
            producer="libvirt@n1",
            epoch=1,
            counter=6,
            event_time_ms=1_700_000_000_700,
            instance=INSTANCE,
            claim_id="c-1",
            resync=True,
        )
    yield from claims_examples()
    yield requests.PlacementRequested(
        request_id="r-1",
        flavor=requests.Flavor(
            name="m1", vcpus=2, pcpus=1, memory_mib=4_096, root_gib=20, ephemeral_gib=1, swap_mib=64, extra_specs={"hw:cpu_policy": "mixed"}
        ),
        count=2,
        instance_ids=("i-1", "i-2"),
        action="migrate",
        source_node="n0",
        live=True,
        image=requests.Image(image_id="img", properties={"os_type": "linux"}),
        hints=requests.Hints(
            same_host=("i-7",), different_host=("i-8",), build_near_host_ip="192.0.2.1", cidr="/24", query='["=","$x",1]', other={"k": "v"}
        ),
        group=requests.ServerGroup(group_id="g-1", policy="soft-affinity", max_per_node=3),
        availability_zone="az1",
        project_id="p-1",
        user_id="u-1",
        forced_nodes=("n1",),
        ignored_nodes=("n2",),
        requested_nodes=("n3",),
        retry_nodes=("n4",),
        numa=(NUMA,),
        pci=(PCI,),
        traits_required=("T1",),
        traits_forbidden=("T2",),
        limits=Limits(vcpus=8, pcpus=1, memory_mib=9_000, disk_mib=1, instances_max=50, io_ops_max=8),
        boot_from_volume=True,
        dry_run=True,
        ttl_ms=60_000,
    )
    yield requests.PlacementRequested(request_id="r-3", flavor=requests.Flavor(vcpus=1), requested_hosts=("h1",), retry_hosts=("h2",))
    yield requests.PlacementCancelled(request_id="r-1", record_id="x-1", reason="no longer wanted")
    yield from results_examples()
    for finding in (findings.LeakSuspected, findings.LeakConfirmed, findings.LeakResolved):
        yield finding(**FINDING)


def claims_examples() -> Iterator[Any]:
    yield claims.PartitionOpened(ledger_id="l-1", partition=3, partitions=8)
    yield claims.NodeObserved(
        **AUDIT, mono_ms=77, digest="d1", complete=False, hypervisor=HYPERVISOR, instances=(INSTANCE,), unknown_instances=("i-2",)
    )
    yield claims.NodeObserved(**AUDIT, mono_ms=77, complete=False, failed="no answer", unknown_since_ms=1_699_999_999_000)
    yield claims.InstanceObserved(
        node_id="n1",
        producer="p",
        epoch=1,
        counter=6,
        change="arrived",
        event_time_ms=1_700_000_000_700,
        instance=INSTANCE,
        claim_id="c-1",
        resync=True,
    )
    yield claims.FindingIgnored(node_id="n1", record_id="x-9", finding_id="ghost-instance/n1/vm", reason="the operator's own")
    yield claims.NodeSilent(node_id="n1", record_id="x-2", producer="p", epoch=1, counter=6, silent_since_ms=1_700_000_000_700)
    yield claims.NodeConfigured(
        node_id="n1",
        record_id="x-3",
        fields=OperatorFields(
            vcpus=ResourceRule(reserved=1, ratio_milli=16_000, min_unit=2, max_unit=64, step_size=2),
            memory_mib=ResourceRule(ratio_milli=None),
            zone="az1",
            aggregates=(Aggregate(name="ssd", metadata={"ssd": "true"}),),
            traits=(),
            pages_reserved=(HugePages(size_kib=2_048, total=4),),
        ),
        status="draining",
        reason="new firmware",
    )
    item = claims.ClaimItem(
        claim_id="r-1/0/s1-7.1",
        instance_id="i-1",
        nodes=("n1", "n2"),
        resources=Resources(vcpus=2, pcpus=1, memory_mib=4_096, disk_mib=20_480),
        resize=True,
        forced=True,
        keep=True,
        limits=Limits(instances_max=50),
        group=GROUP,
        numa=(NUMA,),
        pci=(PCI,),
        project_id="p-1",
    )
    yield claims.ClaimRequested(request_id="r-1", owner="s1", basis=-1, ttl_ms=600_000, items=(item,))
    named = claims.ClaimItem(claim_id="r-2/0/s1-7.2", instance_id="i-2", nodes=("n1",), resources=Resources(vcpus=1), flavor="m1.small")
    yield claims.ClaimRequested(request_id="r-2", owner="s1", basis=-1, ttl_ms=600_000, items=(named,))
    yield claims.InstanceObserved(
        node_id="n1",
        producer="p",
        epoch=1,
        counter=7,
        change="started",
        event_time_ms=1_700_000_000_800,
        instance=InstanceReport(instance_id="i-2", flavor="m1.small"),
    )
    yield claims.ClaimRenewed(node_id="n1", record_id="x-4", claim_id="r-1/0/s1-7.1", ttl_ms=600_000)
    yield claims.ClaimReleased(node_id="n1", record_id="x-5", claim_id="r-1/0/s1-7.1", reason="cancelled", note="by hand")
    yield claims.GroupHomeProposed(group_id="g-1", record_id="x-6", epoch=3, node_id="n1")
    yield claims.GroupHomeClosed(node_id="n1", record_id="x-7", group_id="g-1", epoch=3, unconditional=True)
    yield claims.RulesChanged(record_id="x-8", rules_version=2)


def results_examples() -> Iterator[Any]:
    placement = results.Placement(
        instance_id="i-1", claim_id="c-1", partition=3, node_id="n1", resources=Resources(vcpus=2, memory_mib=4_096)
    )
    answer: dict[str, Any] = {"request_id": "r-1", "owner": "s1", "taken_up_ms": 1_700_000_001_000, "decisions": (DECISION,)}
    yield results.InstancesPlaced(**answer, commit_by_ms=1_700_000_151_000, placements=(placement,), kept=(placement,))
    yield results.PlacementFailed(**answer, reason="no-valid-node", message="0 of 3 nodes")
    yield results.SchedulerStarted(
        owner="s1", started_ms=1_700_000_000_000, policy_digest="pd", policy="filters = ['ram']", version="0.1.0"
    )
    yield results.ClaimOutcome(
        outcome="refused",
        claim_id="c-1",
        request_id="r-1",
        instance_id="i-1",
        node_id="n1",
        partition=3,
        offset=18,
        tried=("n1",),
        shortfalls=((SHORT, Shortfall(resource="status", detail="disabled")),),
        overrun=(SHORT,),
    )
    yield results.ClaimOutcome(
        outcome="granted",
        claim_id="c-1",
        node_id="n1",
        granted=results.Granted(
            cells=(
                results.CellGrant(
                    guest_cell_id=1,
                    cell_id=1,
                    vcpus=2,
                    memory_mib=2_048,
                    page_size_kib=2_048,
                    guest_cpus=(2, 3),
                    pinned_cpus=(8, 9),
                    emulator_cpus=(10,),
                    held_cpus=(8, 9, 10),
                ),
            ),
            pci_addresses=("0000:81:00.1",),
        ),
    )
    yield results.NodeResources(
        node_id="n1",
        partition=3,
        offset=18,
        status="disabled",
        status_reason="new firmware",
        zone="az1",
        aggregates=(Aggregate(name="ssd"),),
        traits=("T1",),
        host_uuid="8a1f",
        hypervisor_type="QEMU",
        hypervisor_version=9_000_000,
        memory_mib=ROW,
        instances=2,
        claims=1,
        claims_unconfirmed=1,
        audit_taken_at_ms=1_700_000_000_500,
        audit_complete=True,
        unknown_since_ms=1,
        silent_since_ms=2,
        leaks=1,
    )
    yield results.RequestsAnswered(
        partition=3,
        previous="ab",
        last_offset=18,
        last_request_id="r-1",
        last_time_ms=1_700_000_000_000,
        numbers="AAECAwQFBgc=",
        digest="cd",
    )
    yield results.SnapshotChunk(
        ledger_id="l-1", partition=3, offset=18, index=0, chunks=2, rules_version=1, state_version=1, digest="ab", data="AAECAw=="
    )
    yield results.LedgerDigest(ledger_id="l-1", partition=3, process="s1", offset=18, digest="ab", rules_version=1, version="0.1.0")


def topic_of(record: Any) -> str:
    return next(name for name in TOPICS if type(record) in record_types(name))


def golden_line(record: Any) -> bytes:
    """The value stands as text inside the line, so that one changed byte is one changed character of a diff."""
    line = {"topic": topic_of(record), "type": event_type(record), "value": encode(record).decode()}
    return msgspec.json.encode(line)


def test_every_type_of_every_topic_has_an_example() -> None:
    shown = {(topic_of(record), event_type(record)) for record in examples()}

    assert shown == {(name, kind) for name in TOPICS for kind in known_types(name)}


def test_every_field_of_every_type_is_used_by_some_example() -> None:
    """A field without an example has no golden bytes. `disk_mib` and `pcpus` of NodeConfigured show that a field may be left out."""
    used: dict[Any, set[str]] = {}
    for record in examples():
        fields = {name for name in record.__struct_fields__ if getattr(record, name) not in (None, msgspec.UNSET)}
        used.setdefault(type(record), set()).update(fields)

    unused = {(cls.__name__, name) for cls, seen in used.items() for name in set(cls.__struct_fields__) - seen}
    assert unused == set()


def test_records_have_their_golden_bytes() -> None:
    lines = [golden_line(record) for record in examples()]
    if os.environ.get("CLAIMLOG_GOLDEN") == "write":
        GOLDEN.write_bytes(b"\n".join(lines) + b"\n")

    golden = GOLDEN.read_bytes().splitlines()
    assert lines == golden, (
        "bytes of records changed: readers of old logs see it; CLAIMLOG_GOLDEN=write makes them anew, say why in CHANGELOG.md"
    )


def test_golden_bytes_are_read_back_as_the_examples() -> None:
    golden = [msgspec.json.decode(line) for line in GOLDEN.read_bytes().splitlines()]

    for line, record in zip(golden, examples(), strict=True):
        assert decode_keyed(line["topic"], key_of(record) or b"any", line["value"].encode()) == record


def test_each_type_has_one_schema_named_after_it(tmp_path: Path) -> None:
    written = export(tmp_path / "new" / "folder")

    assert [path.name for path in written] == sorted(f"{kind}.json" for name in TOPICS for kind in known_types(name))
    assert (tmp_path / "new" / "folder" / "claim-requested.json").read_bytes() == as_json(schema("claim-requested")) + b"\n"
    assert as_json(schema("claim-requested")).startswith(
        b'{\n  "$schema": "http://json-schema.org/draft-07/schema#",\n  "$id": "urn:claimlog:'
    )


KEYWORDS = {
    "$schema", "$id", "$ref", "title", "description", "type", "properties", "items", "required", "additionalProperties", "enum", "anyOf",
    "definitions", "default", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "x-topic", "x-key", "x-unit",
}  # fmt: skip


def keywords(document: Any) -> Iterator[str]:
    """Every keyword in a schema, not the names of properties or definitions."""
    if isinstance(document, dict):
        for word, value in document.items():
            yield word
            if word in {"properties", "definitions"}:
                for inner in value.values():
                    yield from keywords(inner)
            elif word in {"items", "additionalProperties", "anyOf"}:
                yield from keywords(value)
    elif isinstance(document, list):
        for value in document:
            yield from keywords(value)


@pytest.mark.parametrize("kind", sorted(schemas()))
def test_a_schema_keeps_to_what_generators_agree_on(kind: str) -> None:
    document = schema(kind)

    assert set(keywords(document)) <= KEYWORDS
    assert (document["type"], document["properties"]["type"], document["additionalProperties"]) == ("object", {"enum": [kind]}, False)
    assert document["description"]
    assert "\n    " not in document["description"]


def mismatch(document: Any, value: Any, root: Any) -> str:
    """Why a value does not fit a schema, by the few keywords that ours use; empty if it fits."""
    if "$ref" in document:
        return mismatch(root["definitions"][document["$ref"].rpartition("/")[2]], value, root)
    if "anyOf" in document:
        return "" if any(not mismatch(each, value, root) for each in document["anyOf"]) else f"{value!r} fits nothing of {document}"
    if "enum" in document:
        return "" if value in document["enum"] else f"{value!r} is not in {document['enum']}"
    if document["type"] == "object":
        extra = document.get("additionalProperties", True)
        known = document.get("properties", {})
        missing = set(document.get("required", ())) - set(value)
        if missing or (extra is False and set(value) - set(known)):
            return f"{value!r}: missing {missing}, unknown {set(value) - set(known)}"
        return "".join(mismatch(known.get(name, extra), inner, root) for name, inner in value.items())
    if document["type"] == "array":
        if not document.get("minItems", 0) <= len(value) <= document.get("maxItems", len(value)):
            return f"{len(value)} items do not fit {document}"
        return "".join(mismatch(document["items"], inner, root) for inner in value)
    if value is None or document["type"] == "null":
        return "" if value is None and document["type"] == "null" else f"{value!r} does not fit {document}"
    types = {"integer": int, "string": str, "boolean": bool, "number": float}
    right = isinstance(value, types[document["type"]]) and document.get("minimum", value) <= value <= document.get("maximum", value)
    return "" if right else f"{value!r} does not fit {document}"


def test_every_example_fits_its_schema() -> None:
    for record in examples():
        document = schema(event_type(record))
        value = msgspec.json.decode(encode(record))

        assert mismatch(document, value, document) == ""
        assert mismatch(document, {**value, "surprise": 1}, document) != ""


@pytest.mark.parametrize(
    ("kind", "path", "wrong"),
    [
        ("claim-requested", ("items",), []),
        ("claim-requested", ("items", 0, "nodes"), []),
        ("claim-requested", ("items", 0, "nodes"), ["n1"] * 17),
        ("placement-requested", ("count",), 0),
        ("placement-requested", ("count",), 1001),
    ],
)
def test_what_no_reader_takes_fits_no_schema(kind: str, path: tuple[str | int, ...], wrong: object) -> None:
    record = next(each for each in examples() if event_type(each) == kind)
    document, value = schema(kind), msgspec.json.decode(encode(record))
    where = value
    for step in path[:-1]:
        where = where[step]
    where[path[-1]] = wrong

    topic = document["x-topic"]

    assert isinstance(decode(topic, msgspec.json.encode(value)), Unreadable)
    assert mismatch(document, value, document) != ""


def test_numbers_say_their_unit() -> None:
    resources = schema("claim-requested")["definitions"]["Resources"]["properties"]

    assert (resources["memory_mib"]["x-unit"], resources["vcpus"]["x-unit"]) == ("MiB", "virtual CPUs")
    assert schema("claim-requested")["properties"]["ttl_ms"]["description"] == "In milliseconds."
    assert schema("hypervisor-audited")["properties"]["taken_at_ms"]["description"] == "Point in time, in milliseconds since 1970, UTC."
    assert unit_of("node_id") == ""


def test_an_unknown_type_is_answered_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"type 'claim' is not known; known: audit-failed, claim-outcome"):
        schema("claim")
