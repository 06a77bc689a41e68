"""The story behind `ledger_v1.jsonl`: a fixed log that meets every rule and every outcome of rules version 1.

The file pins what rules version 1 says, for ever; the story only explains it. After a change of the rules that is meant (allowed until
the scheduler issue closes, each with a line in the CHANGELOG): `CLAIMLOG_GOLDEN=write pytest tests/golden`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from projections.ledger import Ledger
from projections.ledger_state import Step
from schemas.audits import InstanceReport
from schemas.claims import FindingIgnored, GroupHomeClosed, GroupHomeProposed, GroupMember, NodeConfigured, PartitionOpened, RulesChanged
from schemas.codec import encode
from schemas.inventory import HugePages, Hypervisor, NumaCell, PciDevice, ResourceRule
from schemas.partitioner import partition_of
from schemas.requests import NumaWant, PciWant
from schemas.resources import Limits, ObservedResources, Resources
from tests.ledger_history import History, Written, digest_of, item

FILE = Path(__file__).with_name("ledger_v1.jsonl")
PARTITION, PARTITIONS = 0, 2


def mine(stem: str, partition: int = PARTITION) -> str:
    """A name that begins with `stem` and belongs to the story's partition."""
    return next(name for name in (f"{stem}-{number}" for number in range(100)) if partition_of(name.encode(), PARTITIONS) == partition)


def claims(history: History) -> None:
    """Rules 2 and 8: granted, alternates, refused with every kind of shortfall, all or none, copies, forced."""
    first, second = mine("claims"), mine("alternate")
    for node in (first, second):
        history.audit(node=node, at_s=1, producer=f"audits of {node}")
    granted = history.claim("granted", "vm1", 6, nodes=(first,), at_s=2)
    history.again(granted)
    history.claim("on its alternate", "vm2", 5, nodes=(first, second), at_s=3)
    refused = history.claim("refused", "vm3", 4, nodes=(first, second, mine("unheard of")), at_s=3)
    history.again(refused)
    history.claims(item("one", "vm4", 2, nodes=(first,)), item("of two", "vm5", 9, nodes=(first,)), at_s=4)
    history.claims(item("both", "vm4", 1, nodes=(first,)), item("granted together", "vm5", 2, nodes=(first, second)), at_s=5)
    history.claims(item("twice", "vm6", 1, nodes=(first,)), item("twice", "vm7", 1, nodes=(first,)), at_s=5)
    history.claim("from the future", "vm6", 1, nodes=(first,), basis=1_000_000, at_s=5)
    forced = (item("forced", "vm8", 3, nodes=(first,), forced=True), item("forced too", "vm9", 4, nodes=(first,), forced=True))
    history.claims(*forced, at_s=6)
    history.claims(item("no total of it", "vm10", 0, nodes=(first,), resources=Resources(pcpus=1)), at_s=7)
    history.audit(node=first, hypervisor=Hypervisor(memory_mib=4), producer=f"audits of {first}", at_s=8)
    history.claims(item("not reported", "vm10", 0, nodes=(first,), resources=Resources(disk_mib=1), forced=True), at_s=9)
    history.claim("over already", "vm11", 1, nodes=(first,), at_s=9)
    history.claim("no more than there is", "vm1", 6, nodes=(first,), at_s=9)


def operators(history: History) -> None:
    """The operator's fields: ratios, reserve, units, status; an audit touches none of them."""
    node = mine("operated")
    enabled = history.configure(node, status="enabled", zone="east", vcpus=ResourceRule(ratio_milli=None), at_s=20)
    history.claim("not audited", "vm1", 1, nodes=(node,), at_s=20)
    history.audit(node=node, at_s=21)
    history.configure(node, memory_mib=ResourceRule(reserved=1, ratio_milli=1500, min_unit=2, max_unit=8, step_size=2))
    for size in (1, 3, 10, 8, 2, 2):
        history.claim(f"of {size} after {len(history.records)}", f"vm of {size}", size, nodes=(node,), at_s=22)
    history.claims(item("unlimited", "vm2", 0, nodes=(node,), resources=Resources(vcpus=10_000)), at_s=22)
    history.configure(node, status="draining", reason="new disks")
    history.claim("not while draining", "vm3", 2, nodes=(node,), at_s=23)
    history.again(enabled)
    history.claim("still draining", "vm4", 2, nodes=(node,), at_s=24)
    history.configure(node, status="enabled", memory_mib=ResourceRule())
    history.silent(node=node, epoch=1, counter=1, at_s=30)
    history.audit(node=node, at_s=31)
    history.silent(node=node, epoch=1, counter=1, at_s=32)


def limits(history: History) -> None:
    """What a claim carries: limits of use, instances and I/O, and its group."""
    node, group = mine("limited"), mine("apart")
    history.audit({"there": 2}, node=node, hypervisor=Hypervisor(memory_mib=20, io_workload=1), at_s=40)
    for name, carried in (
        ("memory", Limits(memory_mib=3)),
        ("instances", Limits(instances_max=1)),
        ("io", Limits(io_ops_max=1)),
        ("none", Limits(memory_mib=4, instances_max=2, io_ops_max=2)),
    ):
        history.claim(f"limits {name}", f"vm {name}", 2, nodes=(node,), limits=carried, at_s=41)
    for number, policy in enumerate(("anti-affinity", "anti-affinity", "soft-anti-affinity")):
        member = GroupMember(group_id=group, policy=msgspec.convert(policy, Any))
        history.claim(f"member {number}", f"vm{number}", 1, nodes=(node,), group=member, at_s=42)
    history.event("started", "vm0", size=1, node=node, at_s=43)
    history.release("member 0", node=node, at_s=44)
    history.claim("still a member", "vm3", 1, nodes=(node,), group=GroupMember(group_id=group, policy="anti-affinity"), at_s=45)


def observations(history: History) -> None:
    """Rules 4 and 5: order, zombies, audit against event, unchanged, failed and incomplete audits."""
    node = mine("observed")
    history.audit({"vm1": 2, "vm2": 1}, node=node, at_s=100)
    history.event("started", "vm3", size=2, node=node, at_s=112)
    history.audit({"vm1": 2, "vm2": 1}, node=node, taken_s=111, at_s=113)
    zombie = history.event("resized", "vm1", size=4, node=node, at_s=114)
    history.audit({"vm1": 2, "vm2": 1, "vm3": 2}, node=node, taken_s=115, at_s=116)
    history.again(zombie)
    history.audit({"vm1": 2}, node=node, epoch=0, counter=9, at_s=117)
    history.event("departed", "vm2", node=node, at_s=125)
    history.event("started", "vm9", size=1, event_s=110, node=node, at_s=126)
    history.audit(node=node, unchanged=digest_of({"vm1": 2, "vm2": 1, "vm3": 2}), at_s=140)
    history.audit(node=node, unchanged="never said", at_s=150)
    history.audit(node=node, failed="time-out", at_s=160)
    history.audit({"vm1": 2}, node=node, memory_mib=None, complete=False, at_s=170)
    history.audit(node=node, unchanged=digest_of({"vm1": 2, "vm2": 1, "vm3": 2}), at_s=180)
    history.audit(node=node, unchanged=digest_of({"vm1": 2, "vm2": 1, "vm3": 2}), at_s=200)
    history.claim("of what is left", "vm4", 3, nodes=(node,), at_s=201)
    reinstalled = Hypervisor(memory_mib=9, host_uuid="2")
    history.audit({"vm1": ObservedResources(vcpus=1), "vm4": 3}, node=node, hypervisor=reinstalled, epoch=2, at_s=220)
    history.event("stopped", "vm4", node=node, producer="nova", at_s=230)
    history.event("paused", "vm4", size=3, node=node, producer="nova", at_s=231)


def endings(history: History) -> None:
    """Rules 6 and 9: every way in which a claim ends, or does not."""
    node = mine("ending")
    history.audit(node=node, memory_mib=100, at_s=300)
    names = ("expires", "departs", "vanishes", "deleted", "named", "released", "in use", "renewed", "reboots")
    for name in names:
        history.claim(name, f"vm {name}", 1, nodes=(node,), at_s=300)
    for name in names[1:-2]:
        history.event("started", f"vm {name}", size=1, node=node, at_s=301)
    history.event("arrived", "vm reboots", size=1, node=node, event_s=290, at_s=301)
    history.renew("renewed", node=node, ttl_s=120, at_s=302)
    history.renew("never", node=node, at_s=302)
    history.release("in use", reason="cancelled", node=node, at_s=303)
    history.release("renewed", reason="cancelled", node=node, at_s=303)
    early = history.release("released early", reason="failed", node=node, at_s=303)
    history.claim("released early", "vm", 1, nodes=(node,), at_s=304)
    history.again(early)
    history.release("released", node=node, at_s=304)
    history.renew("released", node=node, at_s=305)
    listed = {f"vm {name}": 1 for name in ("departs", "vanishes", "deleted", "named", "released", "in use", "reboots")}
    history.audit(listed, node=node, memory_mib=100, at_s=310)
    history.event("departed", "vm departs", node=node, at_s=316)
    history.event("departed", "vm reboots", node=node, at_s=316)
    history.event("deleted", "vm deleted", node=node, at_s=316)
    history.event("deleted", "vm in use", node=node, at_s=314, producer="nova")
    history.event("deleted", "vm named", node=node, at_s=312, claim_id="named", producer="nova", epoch=2)
    history.event("arrived", "vm reboots", size=1, node=node, at_s=318)
    for second in (320, 325, 340, 345, 370, 405, 430):
        history.audit({"vm reboots": 1}, node=node, memory_mib=100, mono_s=second, at_s=second)
    history.audit({"vm reboots": 1}, node=node, memory_mib=100, epoch=2, at_s=431)
    history.audit({"vm reboots": 1}, node=node, memory_mib=100, epoch=2, at_s=552)
    again = item("expires", "vm expires", 1, nodes=(node,))
    history.claims(again, at_s=553)


def resizes(history: History) -> None:
    """Rule 7: confirmed by exactly its size, one at a time, and abandoned ones expire though the guest is listed."""
    node = mine("resized")
    history.audit(node=node, at_s=600)
    history.claim("small", "vm", 2, nodes=(node,), at_s=601)
    history.audit({"vm": 2}, node=node, at_s=610)
    history.claim("larger", "vm", 6, nodes=(node,), resize=True, at_s=611)
    history.claim("at the same time", "vm", 4, nodes=(node,), resize=True, at_s=612)
    history.event("resized", "vm", size=5, node=node, at_s=613)
    history.event("resized", "vm", size=6, node=node, at_s=614)
    history.claim("abandoned", "vm", 8, nodes=(node,), resize=True, at_s=630)
    for second in (640, 660, 700):
        history.audit({"vm": 6}, node=node, at_s=second)
    history.claim("smaller", "vm", 1, nodes=(node,), resize=True, at_s=701)
    history.event("resized", "vm", size=1, node=node, at_s=710)


def homes(history: History) -> None:
    """Rule 10: proposed once an epoch, closed when empty or by the operator's word, then no member of that epoch."""
    node, group = mine("home"), mine("together")
    history.audit(node=node, at_s=800)
    proposals = ((1, node), (1, mine("claims")), (3, node))
    for number, (epoch, proposed) in enumerate(proposals):
        history.say(GroupHomeProposed(group_id=group, record_id=f"propose {number}", epoch=epoch, node_id=proposed), at_s=801)
    member = GroupMember(group_id=group, policy="affinity", epoch=1)
    history.claim("at home", "vm1", 1, nodes=(node,), group=member, at_s=802)
    for record_id, unconditional in (("close", False), ("close anyway", True), ("close again", True)):
        history.say(GroupHomeClosed(node_id=node, record_id=record_id, group_id=group, epoch=1, unconditional=unconditional), at_s=803)
    history.claim("late for home", "vm2", 1, nodes=(node,), group=member, at_s=804)
    history.say(GroupHomeProposed(group_id=group, record_id="propose 9", epoch=2, node_id=node), at_s=805)
    history.claim("next home", "vm3", 1, nodes=(node,), group=msgspec.structs.replace(member, epoch=2), at_s=806)


def garbage(history: History) -> None:
    """Rule 11: what does not count, and rules that do not follow."""
    node, theirs = mine("garbled"), mine("theirs", partition=1)
    key = node.encode()
    word = NodeConfigured(node_id=node, record_id="garbled")
    values = (
        b"", b"null", b"[]", b"\xff\xfe", b'{"type":7}', b'{"type":"from-the-future"}', b"[" * 3000, b"[" * 500 + b"]" * 500,
        encode(word)[:-1], encode(word)[:-1] + b',"surprise":1}', encode(word) + b"{}",
        b'{"type":"rules-changed","record_id":"r","rules_version":1.5}',
        b'{"type":"rules-changed","record_id":"","rules_version":1}', encode(PartitionOpened(ledger_id="L", partition=0, partitions=2)),
    )  # fmt: skip
    for value in values:
        history.append(key, value, 900)
    history.append(b"\xff", encode(word), 901)
    history.append(theirs.encode(), encode(NodeConfigured(node_id=theirs, record_id="garbled")), 901)
    history.claim("far away", "vm", 1, nodes=(mine("home"), theirs), at_s=902)
    for version in (0, 1, 3):
        history.say(RulesChanged(record_id=f"rules {version}", rules_version=version), at_s=903)


def devices(history: History) -> None:
    """Rules 2 and 3: cells, pinned CPUs, pages and PCI devices, with every holder, in every way of asking."""
    node = mine("devices")
    function = PciDevice(address="0000:81:00.0", vendor_id="8086", device_type="type-PF", numa_cell=1)
    parts = tuple(
        PciDevice(address=f"0000:81:00.{n}", vendor_id="8086", device_type="type-VF", numa_cell=1, physical_function=function.address)
        for n in (1, 2)
    )
    cells = tuple(
        NumaCell(
            cell_id=n,
            cpus=tuple(range(8 * n, 8 * n + 8)),
            dedicated_cpus=tuple(range(8 * n, 8 * n + 4)),
            siblings=tuple((cpu, cpu + 1) for cpu in range(8 * n, 8 * n + 8, 2)),
            memory_mib=4096,
            socket=n,
            pages=(HugePages(size_kib=2048, total=512, reserved=64 * n, free=None if n else 400),),
        )
        for n in (0, 1)
    )
    host = Hypervisor(vcpus=8, pcpus=8, memory_mib=8192, numa_cells=cells, pci_devices=(function, *parts))
    history.claims(item("before any audit", "vm0", 1, nodes=(node,), numa=(NumaWant(cpus=(0,), memory_mib=1),)), at_s=1000)
    history.audit(node=node, at_s=1000)
    history.claims(item("no cells", "vm0", 1, nodes=(node,), numa=(NumaWant(cpus=(0,), memory_mib=1),)), at_s=1000)
    stranger = InstanceReport(instance_id="stranger", resources=ObservedResources(pcpus=1, memory_mib=512), pinned_cpus=(9,))
    history.audit({"stranger": stranger}, node=node, hypervisor=host, at_s=1001)
    history.configure(node, memory_mib=ResourceRule(ratio_milli=1500), pages_reserved=(HugePages(size_kib=2048, total=128),), at_s=1001)
    function_want = (PciWant(alias="pf", specs=({"dev_type": "type-PF"},)),)
    part_want = (PciWant(alias="vf", specs=({"dev_type": "type-VF"},), numa_policy="required"),)

    def ask(name: str, want: NumaWant | None, *, pci: tuple[PciWant, ...] = (), vm: str = "", forced: bool = False) -> None:
        numa = () if want is None else (want,)
        history.claims(item(name, vm or f"vm {name}", 1, nodes=(node,), numa=numa, pci=pci, forced=forced), at_s=1002)

    two = NumaWant(pinned_cpus=(0, 1), memory_mib=512, cpu_policy="dedicated")
    ask("pinned", two)
    ask("pinned with a device", two, pci=part_want)
    ask("the same again", two, vm="vm pinned")
    ask("threads", NumaWant(pinned_cpus=(0,), memory_mib=64, cpu_policy="dedicated", thread_policy="isolate"))
    ask("function", None, pci=function_want)
    ask("pages", NumaWant(cpus=(0,), memory_mib=512, page_size="large"))
    ask("more pages", NumaWant(cpus=(0,), memory_mib=512, page_size_kib=2048), forced=True)
    ask("too many pages", NumaWant(cpus=(0,), memory_mib=2048, page_size_kib=2048), forced=True)
    ask("emulator", NumaWant(pinned_cpus=(0,), memory_mib=64, cpu_policy="dedicated", emulator_threads="isolate"))
    ask("mixed", NumaWant(cpus=(0,), pinned_cpus=(1,), memory_mib=64, cpu_policy="mixed"))
    ask("too many", NumaWant(pinned_cpus=tuple(range(4)), memory_mib=64, cpu_policy="dedicated"), forced=True)
    ask("crowded", NumaWant(cpus=tuple(range(4)), memory_mib=1000))
    ask("crowded too", NumaWant(cpus=tuple(range(4)), memory_mib=1000))
    ask("over", NumaWant(cpus=tuple(range(4)), memory_mib=1000), forced=True)
    history.claims(item("three cells", "vm c", 1, nodes=(node,), numa=(NumaWant(memory_mib=1),) * 3), at_s=1002)
    history.claims(
        item("of two one", "vm a", 1, nodes=(node,), numa=(NumaWant(cpus=(0,), memory_mib=64),), pci=part_want),
        item("of two two", "vm b", 1, nodes=(node,), numa=(NumaWant(cpus=(0,), memory_mib=64),), pci=part_want),
        at_s=1003,
    )
    shown = InstanceReport(instance_id="vm pinned", resources=ObservedResources(memory_mib=1), pinned_cpus=(0, 1), numa_cells=(0,))
    history.audit({"vm pinned": shown, "stranger": stranger}, node=node, hypervisor=host, at_s=1010)
    history.event("stopped", "vm pinned", node=node, at_s=1011)
    history.release("pinned", node=node, at_s=1012)
    history.release("the same again", node=node, at_s=1012)
    ask("held by the guest", NumaWant(pinned_cpus=tuple(range(4)), memory_mib=64, cpu_policy="dedicated"))
    history.audit(node=node, hypervisor=host, at_s=1040)
    ask("free again", NumaWant(pinned_cpus=(0, 1), memory_mib=64, cpu_policy="dedicated", thread_policy="require"))


def moves(history: History) -> None:
    """Rule 7: what a guest keeps on the node that it leaves, until the move is confirmed, reverted or forgotten."""
    node, group = mine("left"), mine("apart")
    member = GroupMember(group_id=group, policy="anti-affinity")
    pinned = (NumaWant(pinned_cpus=(0, 1), memory_mib=1, cpu_policy="dedicated"),)
    cells = (NumaCell(cell_id=0, cpus=(0, 1, 2, 3), dedicated_cpus=(0, 1), memory_mib=64),)
    host = Hypervisor(vcpus=8, pcpus=2, memory_mib=64, numa_cells=cells)
    history.audit(node=node, hypervisor=host, at_s=1100)
    guests = ("confirmed", "reverted", "forgotten", "deleted")
    for name in guests:
        history.claim(f"start {name}", f"vm {name}", 4, nodes=(node,), at_s=1101)
    history.claim("start pinned", "vm pinned", 1, nodes=(node,), numa=pinned, group=member, at_s=1101)
    listed = {f"vm {name}": 4 for name in guests} | {"vm pinned": 1}
    history.audit(listed, node=node, hypervisor=host, at_s=1110)
    history.configure(node, status="draining", reason="moves", at_s=1111)
    history.claim("too much", "vm confirmed", 5, nodes=(node,), keep=True, at_s=1111)
    history.claim("a stranger", "vm never", 1, nodes=(node,), keep=True, at_s=1111)
    history.claims(*[item(f"keep {name}", f"vm {name}", 4, nodes=(node,), keep=True) for name in guests], at_s=1112)
    history.claim("keep pinned", "vm pinned", 1, nodes=(node,), keep=True, group=member, at_s=1112)
    history.configure(node, status="enabled", at_s=1113)
    history.audit(listed, node=node, hypervisor=host, at_s=1115)
    for name in (*guests, "pinned"):
        history.event("departed", f"vm {name}", node=node, at_s=1120)
    for second in (1130, 1150):
        history.audit(node=node, hypervisor=host, at_s=second)
    history.claim("beside", "vm beside", 1, nodes=(node,), group=member, at_s=1151)
    history.claim("its CPUs", "vm other", 1, nodes=(node,), numa=pinned, at_s=1151)
    history.release("keep confirmed", reason="migrated", node=node, at_s=1152)
    history.renew("keep reverted", node=node, ttl_s=30, at_s=1152)
    history.event("deleted", "vm deleted", node=node, at_s=1153)
    history.event("started", "vm reverted", size=3, node=node, at_s=1160)
    history.audit({"vm reverted": 3}, node=node, hypervisor=host, at_s=1185)
    for second in (1200, 1260):
        history.audit({"vm reverted": 3}, node=node, hypervisor=host, at_s=second)
    history.claim("beside now", "vm beside", 1, nodes=(node,), group=member, at_s=1261)


def words(history: History) -> None:
    """What the operator says of findings, which no verdict depends on: of a node that is known, again, and of one that is not."""
    node = mine("words")
    history.audit({"stranger": 1}, node=node, at_s=1300)
    said = history.say(FindingIgnored(node_id=node, record_id="word 1", finding_id=f"ghost-instance/{node}/stranger", reason="ours"), 1301)
    history.again(said, at_s=1302)
    history.say(FindingIgnored(node_id=mine("nobody's"), record_id="word 2", finding_id="any"), 1303)


CHAPTERS: tuple[Callable[[History], None], ...] = (
    claims, operators, limits, observations, endings, resizes, homes, garbage, devices, moves, words,
)  # fmt: skip


def told() -> History:
    """The whole story, folded."""
    history = History(PARTITION, PARTITIONS)
    history.say(PartitionOpened(ledger_id="golden", partition=PARTITION, partitions=PARTITIONS), at_s=0)
    for chapter in CHAPTERS:
        chapter(history)
    return history


def lines_of(records: Iterable[Written]) -> list[dict[str, Any]]:
    """The lines of the file: each record, and what the fold makes of it."""
    ledger, lines = Ledger(PARTITION, PARTITIONS), []
    for written in records:
        step = ledger.apply(*written)
        assert step is not None
        lines.append(line_of(written, step, ledger))
    return lines


def line_of(written: Written, step: Step, ledger: Ledger) -> dict[str, Any]:
    """One line of the file: the record, and what the fold made of it. Bytes that are not UTF-8 stand in base64."""
    try:
        value = {"value": written.value.decode()}
    except UnicodeDecodeError:
        value = {"value_base64": base64.b64encode(written.value).decode()}
    return {
        "offset": written.offset,
        "time_ms": written.time_ms,
        "key_base64": base64.b64encode(written.key).decode(),
        **value,
        "dead": step.dead is not None,
        "ignored": bool(step.ignored),
        "outcomes": [msgspec.json.decode(encode(outcome)) for outcome in step.outcomes],
        "digest": ledger.digest.hex(),
    }
