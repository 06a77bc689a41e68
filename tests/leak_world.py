"""A cloud that is followed, its hypervisors' audits and our own claims, on one ledger with the leak audit beside it.

`nova` says what happens in the cloud, `domains` is what really is on each host. Both go the way that they go in production: notifications
through the follower and the reconciler, audits through their source and the reconciler.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from producers.openstack import OpenStack
from producers.source import AuditSource, said
from projections.doubles import DoubleClaims
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.observed import Observed
from schemas.audits import AuditRecord, InstanceReport
from schemas.codec import Unreadable, encode, key_of
from schemas.findings import FindingRecord, LeakConfirmed, LeakSuspected
from schemas.inventory import Hypervisor
from schemas.lifecycle import LifecycleEvent
from schemas.resources import RESOURCES, ObservedResources
from schemas.topics import AUDITS, LIFECYCLE
from streams.leak_audit import LeakAudit
from streams.log.base import Message, Record
from streams.reconciler import reconcile
from tests.nova_cloud import SMALL, NovaCloud, Sent, Size, node_of
from tests.nova_following import parsed

HOST = Hypervisor(vcpus=64, memory_mib=65_536, disk_mib=1 << 20)
AUDIT_MS = 60_000
Found = dict[tuple[str, str, str], dict[str, int]]
"""By kind, node and instance or claim: what is held, or else counted."""


class World:
    """Hosts `h1` to `h3`, Nova above them, and everything that was found so far in `records`."""

    def __init__(self) -> None:
        self.nova = NovaCloud()
        self.domains: dict[str, dict[str, InstanceReport]] = {node_of(f"h{number}"): {} for number in (1, 2, 3)}
        self.away: set[str] = set()
        """Nodes that nobody audits now."""
        self.ledger, self.observed, self.leaks = Ledger(0, 1), Observed(0), Leaks(0)
        self.doubles = DoubleClaims({0: self.ledger})
        self.records: list[FindingRecord] = []
        self.values: list[bytes] = []
        self._follower = OpenStack(lambda _: 1)
        self._audits: dict[str, AuditSource] = {}

    @property
    def now_ms(self) -> int:
        """The cloud's clock."""
        return self.nova.now_us // 1000

    def defined(self, host: str, instance: str, size: Size = SMALL) -> None:
        """A guest is on the host, whoever knows of it."""
        amounts = ObservedResources(
            vcpus=size.vcpus, pcpus=0, memory_mib=size.memory_mb, disk_mib=(size.root_gb + size.ephemeral_gb) * 1024 + size.swap
        )
        self.domains[node_of(host)][instance] = InstanceReport(instance_id=instance, resources=amounts)

    def undefined(self, host: str, instance: str) -> None:
        """It is there no more."""
        del self.domains[node_of(host)][instance]

    def notified(self, *operations: Iterable[Sent], lost: Iterable[str] = ()) -> None:
        """What Nova does, and says but for the messages of these event types."""
        for sent in (sent for operation in operations for sent in operation):
            notification = parsed(sent.value)
            if notification.event not in lost:
                events = self._follower.took(notification)
                assert not isinstance(events, Unreadable), events
                for event in events:
                    self._observed(LIFECYCLE, event)

    def audited(self, times: int = 2) -> None:
        """Every host that is not away is audited, a minute apart."""
        for _ in range(times):
            self.nova.now_us += AUDIT_MS * 1000
            for node_id, there in self.domains.items():
                if node_id not in self.away:
                    source = self._audits.setdefault(node_id, AuditSource(node_id, "libvirt", 1))
                    record = source.audited(HOST, there.values(), taken_at_ms=self.now_ms, mono_ms=self.now_ms)
                    self._observed(AUDITS, record)

    def ticked(self) -> None:
        """The timer looks for silent nodes."""
        for message in LeakAudit(0, self.leaks).silences(self.ledger, self.now_ms, AUDIT_MS):
            self._apply(message.key, message.value)

    def said(self, record: Struct) -> None:
        """A record of `claims` by a scheduler or an operator."""
        self._apply(key_of(record) or b"", encode(record))

    def found(self) -> Found:
        """The open findings that are confirmed."""
        return {key: amounts for key, amounts, is_confirmed in self._open() if is_confirmed}

    def suspected(self) -> Found:
        """The others."""
        return {key: amounts for key, amounts, is_confirmed in self._open() if not is_confirmed}

    def finding(self, kind: str) -> LeakSuspected | LeakConfirmed:
        """The only open finding of a kind."""
        (found,) = [record for record in self._records() if record.kind == kind]
        return found

    def gap(self, host: str) -> list[int | None]:
        """tracked - reported of a node, by resource."""
        view = self.observed.view(node_of(host))
        pairs = zip(view.tracked_amounts(), view.reported or (None,) * len(RESOURCES), strict=True)
        return [None if tracked is None or reported is None else tracked - reported for tracked, reported in pairs]

    def _records(self) -> list[LeakSuspected | LeakConfirmed]:
        return [*self.leaks.open_findings(), *self.doubles.open_findings()]

    def _open(self) -> Iterable[tuple[tuple[str, str, str], dict[str, int], bool]]:
        for record in self._records():
            amounts = {name: getattr(record.held, name) or getattr(record.counted, name) for name in RESOURCES}
            about = record.claim_id or record.instance_id
            yield (record.kind, record.node_id, about), {n: a for n, a in amounts.items() if a}, isinstance(record, LeakConfirmed)

    def _observed(self, topic: str, record: AuditRecord | LifecycleEvent) -> None:
        message = said(topic, record)
        carried = reconcile(Record(topic, 0, 0, self.now_ms, message.key, message.value), 1)
        assert isinstance(carried, Message), carried
        self._apply(carried.key, carried.value)

    def _apply(self, key: bytes, value: bytes) -> None:
        step = self.ledger.apply(self.ledger.next_offset, self.now_ms, key, value)
        assert step is not None
        assert step.dead is None, step.dead
        self.values.append(value)
        self.observed.apply(self.ledger, step)
        self.records += self.leaks.apply(self.ledger, self.observed, step)
        self.records += self.doubles.apply(0, step)


def amounts(size: Size) -> dict[str, int]:
    """What a flavor takes."""
    return {"vcpus": size.vcpus, "memory_mib": size.memory_mb, "disk_mib": (size.root_gb + size.ephemeral_gb) * 1024 + size.swap}
