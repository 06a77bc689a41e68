"""A simulated fleet: nodes with totals, guests that come and go, and what their hypervisors would report of it. No clock, no I/O.

What happens with `silently=True` leaves no event: the next audit shows it all the same, which is how a leak arises on real hosts.
The requests that drive it are in `workload`, large ready-made ledgers in `ledger_load`; all three are seeded and exactly repeatable.
"""

from __future__ import annotations

from itertools import accumulate
from random import Random

from msgspec import Struct, structs

from producers.source import FULL_EVERY, AuditSource, EventSource
from schemas.audits import HypervisorAudited, InstanceReport, PowerState
from schemas.inventory import CpuInfo, Hypervisor, NumaCell, Physical, SupportedGuest
from schemas.lifecycle import (
    InstanceArrived,
    InstanceDeleted,
    InstanceDeparted,
    InstanceStarted,
    LifecycleEvent,
)
from schemas.resources import ObservedResources, Resources
from schemas.units import GIB

Events = tuple[LifecycleEvent, ...]

PRODUCER = "load"
HYPERVISOR_VERSION = 9_000_000
"""libvirt's way to write 9.0.0."""


class NodeKind(Struct, frozen=True, kw_only=True):
    """One kind of host; `share` is its weight among the fleet's nodes."""

    name: str
    vcpus: int
    memory_mib: int
    disk_mib: int
    cpu_model: str = "Skylake-Server"
    features: tuple[str, ...] = ("aes", "avx2", "avx512f")
    share: int = 1


KINDS = (
    NodeKind(name="general", vcpus=64, memory_mib=256 * GIB, disk_mib=4 * GIB * GIB, share=5),
    NodeKind(
        name="compute", vcpus=96, memory_mib=192 * GIB, disk_mib=2 * GIB * GIB, cpu_model="EPYC-Rome", features=("aes", "avx2"), share=3
    ),
    NodeKind(name="memory", vcpus=64, memory_mib=1024 * GIB, disk_mib=8 * GIB * GIB, share=1),
    NodeKind(name="old", vcpus=32, memory_mib=128 * GIB, disk_mib=2 * GIB * GIB, cpu_model="Haswell", features=("aes",), share=1),
)
"""Four kinds, as fleets that grew over years have; the largest flavor of the workload (16 vCPUs, 112 GiB) fits on each."""


class Guest(Struct, frozen=True, kw_only=True):
    """One guest where it is now; `claim_id` is the claim it was started under, if its starter knew one."""

    instance_id: str
    node_id: str
    resources: Resources
    name: str = ""
    project_id: str = ""
    power_state: PowerState = "running"
    claim_id: str | None = None

    @property
    def report(self) -> InstanceReport:
        """The guest as its hypervisor reports it."""
        size = self.resources
        return InstanceReport(
            instance_id=self.instance_id,
            resources=ObservedResources(vcpus=size.vcpus, pcpus=size.pcpus or None, memory_mib=size.memory_mib, disk_mib=size.disk_mib),
            name=self.name,
            power_state=self.power_state,
            project_id=self.project_id,
        )


class SimulatedFleet:
    """Nodes and guests. Every change returns the life-cycle events it causes, in order; times are wall-clock milliseconds."""

    def __init__(
        self,
        nodes: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        kinds: tuple[NodeKind, ...] = KINDS,
        full_every: int = FULL_EVERY,
        name: str = "node-{:05d}",
        producer: str = PRODUCER,
    ) -> None:
        """`epoch` is that of all its producers; `name` has a place for the node's number; kinds are drawn by share from the seed."""
        random = Random(seed)
        weights = list(accumulate(kind.share for kind in kinds))
        self.kinds: dict[str, NodeKind] = {name.format(number): random.choices(kinds, cum_weights=weights)[0] for number in range(nodes)}
        self.guests: dict[str, Guest] = {}
        self._on: dict[str, dict[str, Guest]] = {node_id: {} for node_id in self.kinds}
        self._hosts = {kind.name: hypervisor(kind) for kind in kinds}
        self._producer = producer
        self._full_every = full_every
        self._audits: dict[str, AuditSource] = {}
        self._events: dict[str, EventSource] = {}
        for node_id in self.kinds:
            self.restart_producers(node_id, epoch)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, by number."""
        return tuple(self.kinds)

    def on(self, node_id: str) -> tuple[Guest, ...]:
        """The guests of a node, by id. Raises KeyError for a node that is not in the fleet."""
        return tuple(guest for _, guest in sorted(self._on[node_id].items()))

    def restart_producers(self, node_id: str, epoch: int) -> None:
        """Both producers of the node start anew, as after a crash of theirs; `epoch` must be above the last (rule 4)."""
        self._audits[node_id] = AuditSource(node_id, self._producer, epoch, self._full_every)
        self._events[node_id] = EventSource(node_id, self._producer, epoch)

    def resync(self, node_id: str, time_ms: int) -> Events:
        """What a producer of life-cycle events sends at its start: everything it finds."""
        return tuple(self._events[node_id].event(InstanceArrived, guest.report, time_ms, resync=True) for guest in self.on(node_id))

    def audit(self, node_id: str, taken_at_ms: int, mono_ms: int) -> HypervisorAudited:
        """One look at a node: in full, or unchanged."""
        host = self._hosts[self.kinds[node_id].name]
        used_mib = sum(guest.resources.memory_mib for guest in self._on[node_id].values())
        free_mib = max(0, (host.memory_mib or 0) - used_mib)
        host = structs.replace(
            host, host_uuid=f"host-{node_id}", physical=Physical(memory_mib_total=host.memory_mib, memory_mib_free=free_mib)
        )
        reports = [guest.report for guest in self._on[node_id].values()]
        return self._audits[node_id].audited(host, reports, taken_at_ms=taken_at_ms, mono_ms=mono_ms)

    def start_guest(
        self,
        node_id: str,
        instance_id: str,
        resources: Resources,
        time_ms: int,
        *,
        name: str = "",
        project_id: str = "",
        claim_id: str | None = None,
        silently: bool = False,
    ) -> Events:
        """A new guest arrives and runs. Raises ValueError if it is somewhere already."""
        if instance_id in self.guests:
            raise ValueError(f"guest {instance_id} is on {self.guests[instance_id].node_id} already; destroy it first")
        guest = Guest(instance_id=instance_id, node_id=node_id, resources=resources, name=name, project_id=project_id, claim_id=claim_id)
        self._put(guest)
        return self._said(node_id, (InstanceArrived, InstanceStarted), guest, time_ms, claim_id=claim_id, silently=silently)

    def adopt(self, guest: Guest) -> None:
        """A guest runs there already, of an earlier run. Nothing happened, so nothing is said: `resync` tells of it as of all others."""
        self._put(guest)

    def destroy(self, instance_id: str, time_ms: int, *, deleted: bool = True, silently: bool = False) -> Events:
        """It is gone from its node; `deleted` adds the owner's final word.

        Both name the claim where it is known: then it closes at once, and not only when audits have shown for some time that it is gone.
        """
        guest = self.guests[instance_id]
        self._remove(guest)
        kinds = (InstanceDeparted, InstanceDeleted) if deleted else (InstanceDeparted,)
        return self._said(guest.node_id, kinds, guest, time_ms, claim_id=guest.claim_id, silently=silently)

    def _said(
        self,
        node_id: str,
        kinds: tuple[type[LifecycleEvent], ...],
        guest: Guest,
        time_ms: int,
        *,
        claim_id: str | None = None,
        silently: bool = False,
    ) -> Events:
        if silently:
            return ()
        return tuple(self._events[node_id].event(kind, guest.report, time_ms, claim_id=claim_id) for kind in kinds)

    def _put(self, guest: Guest) -> None:
        self._on[guest.node_id][guest.instance_id] = guest
        self.guests[guest.instance_id] = guest

    def _remove(self, guest: Guest) -> None:
        del self._on[guest.node_id][guest.instance_id]
        del self.guests[guest.instance_id]


def hypervisor(kind: NodeKind) -> Hypervisor:
    """What an audit finds of a host of this kind: two NUMA cells, everything else as libvirt would say it."""
    half = kind.vcpus // 2
    cells = tuple(
        NumaCell(cell_id=cell, cpus=tuple(range(cell * half, (cell + 1) * half)), memory_mib=kind.memory_mib // 2, socket=cell)
        for cell in (0, 1)
    )
    return Hypervisor(
        vcpus=kind.vcpus,
        memory_mib=kind.memory_mib,
        disk_mib=kind.disk_mib,
        hypervisor_type="QEMU",
        hypervisor_version=HYPERVISOR_VERSION,
        cpu_info=CpuInfo(
            architecture="x86_64", model=kind.cpu_model, cells=2, sockets=1, cores=half // 2, threads=2, features=kind.features
        ),
        supported_guests=(SupportedGuest(architecture="x86_64", hypervisor_type="kvm", vm_mode="hvm"),),
        numa_cells=cells,
        traits=tuple(f"HW_CPU_X86_{feature.upper()}" for feature in kind.features),
    )
