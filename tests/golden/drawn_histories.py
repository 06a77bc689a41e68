"""The histories behind `drawn_v1.jsonl`: drawn by chance, and the same for ever.

The story in `ledger_story` meets every rule; these meet the edges of the rules and what comes of many rules at once. A guest starts, grows
and leaves in a world of its own, its claims come and go beside it, and records are late, doubled, lost. No draw looks at the fold, so an
outcome that changes does not change the records that follow. Times are whole seconds that often differ by just the skew, the grace or a
TTL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

from schemas.audits import InstanceReport
from schemas.claims import (
    Change,
    ClaimItem,
    GroupHomeClosed,
    GroupHomeProposed,
    GroupMember,
    NodeObserved,
    PartitionOpened,
    ReleaseReason,
)
from schemas.codec import encode
from schemas.inventory import HugePages, Hypervisor, NumaCell, PciDevice, ResourceRule
from schemas.requests import NumaWant, PciWant
from schemas.resources import Limits, ObservedResources, Resources
from tests.ledger_history import START_MS, UNREPORTED, History, item

T = TypeVar("T")

FILE = Path(__file__).with_name("drawn_v1.jsonl")
HISTORIES = 240
RECORDS = 120
"""Of one history."""

NODES = ("n1", "n2")
GUESTS = ("vm1", "vm2", "vm3", "vm4", "vm5")
WAITS_S = (0, 0, 1, 1, 4, 5, 6, 10, 15, 16, 20, 30, 60)
LAGS_S = (0, 0, 0, 0, 1, 4, 5, 6, 15, 30, -3)

FUNCTION = PciDevice(address="d0", vendor_id="v", device_type="type-PF", numa_cell=1)
DEVICES = (
    FUNCTION,
    *[PciDevice(address=f"d{n}", vendor_id="v", device_type="type-VF", numa_cell=1, physical_function="d0") for n in (1, 2)],
    PciDevice(address="d3", vendor_id="v", numa_cell=0),
    PciDevice(address="d4", vendor_id="w", product_id="p"),
)
CELLS = tuple(
    NumaCell(
        cell_id=n,
        cpus=tuple(range(8 * n, 8 * n + 8)),
        dedicated_cpus=tuple(range(8 * n, 8 * n + 6 - 2 * n)),
        siblings=tuple((cpu, cpu + 1) for cpu in range(8 * n, 8 * n + 8, 2)),
        memory_mib=32,
        socket=n,
        pages=(HugePages(size_kib=2048, total=6, reserved=n, free=6 - 2 * n),),
    )
    for n in (0, 1)
)
HOSTS = (
    Hypervisor(vcpus=8, pcpus=4, memory_mib=16, disk_mib=12),
    Hypervisor(vcpus=8, memory_mib=16, io_workload=1),
    Hypervisor(vcpus=8, pcpus=10, memory_mib=64, disk_mib=12, numa_cells=CELLS, pci_devices=DEVICES),
    Hypervisor(vcpus=8, pcpus=10, memory_mib=64, disk_mib=12, numa_cells=CELLS[1:], pci_devices=DEVICES[2:]),
)
NUMA: tuple[tuple[NumaWant, ...], ...] = (
    (NumaWant(pinned_cpus=(0,), memory_mib=4, cpu_policy="dedicated"),),
    (NumaWant(pinned_cpus=(0, 1), memory_mib=4, cpu_policy="dedicated"),),
    (NumaWant(pinned_cpus=(0, 1), memory_mib=4, cpu_policy="dedicated", thread_policy="require"),),
    (NumaWant(pinned_cpus=(0, 1, 2), memory_mib=4, cpu_policy="dedicated", thread_policy="prefer"),),
    (NumaWant(pinned_cpus=(0,), memory_mib=4, cpu_policy="dedicated", thread_policy="isolate"),),
    (NumaWant(pinned_cpus=(0,), memory_mib=4, cpu_policy="dedicated", emulator_threads="isolate"),),
    (NumaWant(pinned_cpus=(0, 1, 2, 3, 4), memory_mib=4, cpu_policy="dedicated"),),
    (NumaWant(cpus=(0, 1), pinned_cpus=(2,), memory_mib=8, cpu_policy="mixed"),),
    (NumaWant(cpus=(0, 1), memory_mib=8),),
    (NumaWant(cpus=(0, 1, 2), memory_mib=16),),
    (NumaWant(cpus=(0,), memory_mib=4, page_size="large"),),
    (NumaWant(cpus=(0,), memory_mib=6, page_size_kib=2048),),
    (NumaWant(cpus=(0,), memory_mib=5, page_size_kib=2048),),
    (NumaWant(cpus=(0,), memory_mib=8), NumaWant(cell_id=1, cpus=(1,), memory_mib=8)),
    (NumaWant(pinned_cpus=(0,), memory_mib=2, cpu_policy="dedicated"), NumaWant(cell_id=1, cpus=(1,), memory_mib=8)),
)
PCI: tuple[tuple[PciWant, ...], ...] = (
    (PciWant(specs=({"vendor_id": "v"},), numa_policy="preferred"),),
    (PciWant(specs=({"dev_type": "type-VF"},), numa_policy="required"),),
    (PciWant(specs=({"dev_type": "type-PF"},), numa_policy="preferred"),),
    (PciWant(specs=({"vendor_id": "w"}, {"dev_type": "type-VF"}), numa_policy="legacy"),),
    (PciWant(specs=({"dev_type": "type-VF"},), count=2, numa_policy="socket"),),
)
GROUPS = (
    GroupMember(group_id="apart", policy="anti-affinity"),
    GroupMember(group_id="in twos", policy="anti-affinity", max_per_node=2),
    GroupMember(group_id="together", policy="affinity", epoch=1),
    GroupMember(group_id="together", policy="affinity", epoch=2),
    GroupMember(group_id="near", policy="soft-affinity"),
)
LIMITS = (
    Limits(memory_mib=10),
    Limits(vcpus=5, disk_mib=6),
    Limits(instances_max=2),
    Limits(instances_max=3, io_ops_max=2),
    Limits(io_ops_max=1),
    Limits(pcpus=2),
)
RULES = (
    ResourceRule(),
    ResourceRule(reserved=2),
    ResourceRule(ratio_milli=1500),
    ResourceRule(reserved=1, ratio_milli=333),
    ResourceRule(ratio_milli=None),
    ResourceRule(min_unit=2, max_unit=4, step_size=2),
)
SHOWN: tuple[Change, ...] = ("arrived", "started", "started", "stopped", "paused")
GONE: tuple[Change, ...] = ("departed", "departed", "departed", "deleted")
REASONS: tuple[ReleaseReason, ...] = ("loser", "cancelled", "cancelled", "failed", "operator", "deleted", "migrated")


class DrawnHistory:
    """One history; its number is its seed. Every third is about cells and devices."""

    def __init__(self, number: int) -> None:
        self.history = History()
        self._random = Random(number)
        self._with_cells = number % 3 == 2
        self._guests: dict[str, dict[str, InstanceReport]] = {node: {} for node in NODES}
        self._full: dict[str, tuple[str, dict[str, InstanceReport]]] = {}
        self._epochs = dict.fromkeys(NODES, 1)
        self._items: list[ClaimItem] = []
        self._next_id = "c0"
        self._kept_back: list[tuple[bytes, bytes]] = []
        self.history.say(PartitionOpened(ledger_id=f"drawn {number}", partition=0, partitions=1), at_s=0)
        hosts = HOSTS[2:] if self._with_cells else HOSTS
        self._hosts = {node: self._pick(hosts) for node in NODES}
        for node in NODES:
            self.history.audit(node=node, at_s=0, counter=0, producer=f"of {node}", hypervisor=self._hosts[node])
        while len(self.history.records) < RECORDS:
            self._pick(ACTIONS)(self)

    # What happens

    def _claim(self) -> None:
        """Up to three instances are claimed, each on the one node or with the other as its alternate."""
        items = [self._item() for _ in range(self._pick((1, 1, 1, 1, 2, 3)))]
        self._items += items
        basis = -2 if self._chance(40) else None
        request_id = f"r{self._below(4)}" if self._chance(3) else None
        self.history.claims(*items, at_s=self._later(), request_id=request_id, ttl_s=self._pick((30, 60, 60)), basis=basis)

    def _start(self) -> None:
        """A guest comes up as one of its claims has it, more or less; its event may come late, or never."""
        wanted = self._one_of_the_last()
        node = self._pick(wanted.nodes)
        report = self._report(wanted)
        self._guests[node][wanted.instance_id] = report
        if not self._chance(4):
            self._tell(self._pick(SHOWN), node, report)

    def _resize(self) -> None:
        """A guest gets another size, claimed before or not."""
        node = self._pick(NODES)
        if not (guests := self._guests[node]):
            return
        vm = self._pick(sorted(guests))
        claimed = [each for each in self._items if each.instance_id == vm and each.resize]
        report = self._report(claimed[-1] if claimed else self._item(vm))
        guests[vm] = report
        if not self._chance(4):
            self._tell("resized", node, report)

    def _leave(self) -> None:
        """A guest goes, and perhaps is back at once."""
        node = self._pick(NODES)
        vm = self._pick(sorted(self._guests[node]) or GUESTS)
        report = self._guests[node].pop(vm, InstanceReport(instance_id=vm))
        if not self._chance(4):
            self._tell(self._pick(GONE), node, InstanceReport(instance_id=vm, resources=UNREPORTED))
        if self._chance(4):
            self._guests[node][vm] = report
            self._tell("arrived", node, report)

    def _looks(self) -> None:
        """A producer looks at its node for a while."""
        node = self._pick(NODES)
        for _ in range(self._pick((1, 1, 1, 2, 4, 6))):
            self._look(node, self._pick(WAITS_S))

    def _new_epoch(self) -> None:
        """The producer of a node starts again, perhaps on another host."""
        node = self._pick(NODES)
        self._epochs[node] += 1
        if self._chance(4):
            self._hosts[node] = self._pick(HOSTS[2:] if self._with_cells else HOSTS)

    def _renew(self) -> None:
        wanted = self._one_of_the_last()
        self.history.renew(wanted.claim_id, node=self._pick(wanted.nodes), at_s=self._later(), ttl_s=self._pick((5, 30, 60)))

    def _release(self) -> None:
        """A claim is given back; now and then before it comes."""
        claim_id = self._next_id if self._chance(8) else self._one_of_the_last().claim_id
        self.history.release(claim_id, node=self._pick(NODES), at_s=self._later(), reason=self._pick(REASONS))

    def _configure(self) -> None:
        pages = (HugePages(size_kib=2048, total=self._below(3)),)
        match self._below(8):
            case 0:
                self.history.configure(self._pick(NODES), memory_mib=self._pick(RULES))
            case 1:
                self.history.configure(self._pick(NODES), vcpus=self._pick(RULES), disk_mib=self._pick(RULES))
            case 2:
                self.history.configure(self._pick(NODES), pages_reserved=pages, pcpus=self._pick(RULES))
            case 3:
                self.history.configure(self._pick(NODES), status="draining", reason=self._pick(("", "moves")))
            case _:
                self.history.configure(self._pick(NODES), status="enabled")

    def _home(self) -> None:
        node, record_id, epoch = self._pick(NODES), f"home {len(self.history.records)}", 1 + self._below(3)
        if self._chance(2):
            self.history.say(GroupHomeProposed(group_id="together", record_id=record_id, epoch=epoch, node_id=node))
        else:
            anyway = self._chance(3)
            self.history.say(GroupHomeClosed(node_id=node, record_id=record_id, group_id="together", epoch=epoch, unconditional=anyway))

    def _silence(self) -> None:
        node = self._pick(NODES)
        self.history.silent(
            at_s=self.history.now_s, epoch=self._epochs[node], counter=self._below(2 * RECORDS), producer=f"of {node}", node=node
        )

    def _copy(self) -> None:
        """A zombie, or somebody who was not acknowledged, appends a record again."""
        self.history.again(self._pick(self.history.steps[1:]), self._later())

    def _late(self) -> None:
        """A record that was kept back comes now."""
        if self._kept_back:
            key, value = self._kept_back.pop(0)
            self.history.append(key, value, self._later())

    # How it is said

    def _item(self, vm: str = "") -> ClaimItem:
        """What a claim asks for; to grow or to be kept is mostly asked for a guest that is there."""
        claim_id, self._next_id = self._next_id, f"c{self._below(1000)} {len(self.history.records)}"  # So that ids are in no order.
        resize, keep, device = self._chance(4), self._chance(10), self._with_cells and self._chance(4)
        nodes = self._pick((NODES, NODES[:1], NODES[:1], NODES[1:], (*NODES[1:], "n1")))
        memory_mib = self._pick((0, 1, 2, 2, 4, 4, 5, 6, 8))
        rooms = Resources(vcpus=self._below(4), pcpus=self._pick((0, 0, 0, 1, 2)), memory_mib=memory_mib, disk_mib=self._below(4))
        resources = Resources(memory_mib=memory_mib) if self._chance(2) else rooms
        guests = self._guests[nodes[0]]
        if (resize or keep) and guests and not self._chance(4):
            vm = vm or self._pick(sorted(guests))
            has = guests.get(vm, InstanceReport(instance_id=vm)).resources
            resources = Resources(vcpus=has.vcpus or 0, memory_mib=has.memory_mib or 1) if keep else resources
        return item(
            claim_id,
            vm or self._pick(GUESTS),
            0,
            nodes=nodes,
            resources=resources,
            resize=resize,
            forced=self._chance(8),
            keep=keep,
            limits=self._pick(LIMITS) if self._chance(6) else None,
            group=self._pick(GROUPS) if self._chance(4) else None,
            numa=self._pick(NUMA) if self._with_cells and not self._chance(4) else (),
            pci=self._pick(PCI) if device else (),
        )

    def _one_of_the_last(self) -> ClaimItem:
        if not self._items:
            self._claim()
        last = self._items[-6:]
        return self._pick(last)

    def _report(self, wanted: ClaimItem) -> InstanceReport:
        """A guest as wanted; now and then of another size, or one that is not reported."""
        has = wanted.resources
        size = ObservedResources(vcpus=has.vcpus, pcpus=has.pcpus, memory_mib=has.memory_mib, disk_mib=has.disk_mib)
        if self._chance(3):
            vcpus, disk_mib = self._pick((None, has.vcpus)), self._pick((None, has.disk_mib, has.disk_mib + 1))
            size = ObservedResources(vcpus=vcpus, memory_mib=self._pick((None, has.memory_mib, has.memory_mib + 1)), disk_mib=disk_mib)
        if not self._with_cells:
            return InstanceReport(instance_id=wanted.instance_id, resources=size)
        return InstanceReport(
            instance_id=wanted.instance_id,
            resources=size,
            numa_cells=self._pick(((), (), (0,), (1,), (0, 1))),
            pinned_cpus=self._pick(((), (), (0,), (1, 2), (8, 9), (5, 8))),
            pci_addresses=self._pick(((), (), ("d0",), ("d1",), ("d3", "d4"))),
        )

    def _tell(self, change: Change, node: str, report: InstanceReport) -> None:
        """A life-cycle event, mostly at once; now and then it names a claim, or comes from another producer."""
        at_s = self._later((0, 0, 1, 4, 5, 6, 15))
        claim_id = self._one_of_the_last().claim_id if self._chance(8) else None
        event_s, producer = at_s - self._pick(LAGS_S), self._pick(("libvirt", "libvirt", "nova"))
        self.history.event(
            change, report.instance_id, at_s=at_s, event_s=event_s, size=report, node=node, producer=producer, claim_id=claim_id
        )

    def _look(self, node: str, wait_s: int) -> None:
        """One audit: what is there in full or as before, a part of it, or a failure. Now and then it is kept back."""
        at_s, guests = self.history.now_s + wait_s, dict(self._guests[node])
        taken_s, counter = at_s - self._pick(LAGS_S), len(self.history.records)
        by_another, failed, complete = self._chance(25), self._chance(20), not self._chance(8)
        if not complete:
            guests = {vm: report for vm, report in guests.items() if self._chance(2)}
        digest, told = self._full.get(node, ("", {}))
        unchanged = (told == guests and not self._chance(3)) or self._chance(12)
        if not (unchanged or failed):
            digest = f"look {counter}"
            if complete:
                self._full[node] = digest, guests
        in_full = not (unchanged or failed)
        record = NodeObserved(
            node_id=node,
            producer=f"another of {node}" if by_another else f"of {node}",
            epoch=self._epochs[node],
            counter=counter,
            taken_at_ms=START_MS + taken_s * 1000,
            mono_ms=(5000 + taken_s + self._pick((0, 0, 0, 0, 1, -1))) * 1000,
            digest=digest,
            complete=complete and not failed,
            hypervisor=self._hosts[node] if in_full else None,
            instances=tuple(report for _, report in sorted(guests.items())) if in_full else None,
            failed="time-out" if failed else "",
        )
        if self._chance(12):
            self._kept_back.append((node.encode(), encode(record)))
        else:
            self.history.say(record, at_s)

    # Chance: of all that a `Random` can do, `random()` is what no version of Python draws otherwise.

    def _below(self, number: int) -> int:
        return int(self._random.random() * number)

    def _chance(self, of: int) -> bool:
        """One time in `of`."""
        return self._below(of) == 0

    def _pick(self, choices: Sequence[T]) -> T:
        return choices[self._below(len(choices))]

    def _later(self, waits_s: Sequence[int] = WAITS_S) -> int:
        return self.history.now_s + self._pick(waits_s)


_OFTEN: tuple[Callable[[DrawnHistory], None], ...] = (
    DrawnHistory._claim, DrawnHistory._start, DrawnHistory._looks,
)  # fmt: skip
ACTIONS: tuple[Callable[[DrawnHistory], None], ...] = (
    *_OFTEN, *_OFTEN, *_OFTEN, DrawnHistory._leave, DrawnHistory._leave, DrawnHistory._resize, DrawnHistory._renew, DrawnHistory._release,
    DrawnHistory._configure, DrawnHistory._home, DrawnHistory._silence, DrawnHistory._copy, DrawnHistory._late, DrawnHistory._new_epoch,
)  # fmt: skip
