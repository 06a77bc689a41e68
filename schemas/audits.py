"""What producers report of whole hypervisors, on `hypervisor-audits`."""

from typing import Literal

from msgspec import Struct

from schemas.ids import InstanceId, NodeId, ProducerId
from schemas.inventory import Hypervisor
from schemas.resources import ObservedResources
from schemas.units import Count, DurationMs, Name, Text, TimeMs

PowerState = Literal["running", "paused", "stopped", "suspended", "crashed", "unknown"]


class InstanceReport(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One domain on a hypervisor: its defined size (stopped ones count) and what filters read of it; `flavor` is the flavor's name.

    `unknown_since_ms` (wall clock) is set while the guest is listed but does not answer: what is said of it is what was last known.
    """

    instance_id: InstanceId
    resources: ObservedResources = ObservedResources()
    name: Text = ""
    power_state: PowerState = "running"
    task_state: Text = ""
    project_id: Text = ""
    flavor: Text = ""
    image_properties: dict[Name, Text] = {}
    numa_cells: tuple[Count, ...] = ()
    pinned_cpus: tuple[Count, ...] = ()
    pci_addresses: tuple[Name, ...] = ()
    unknown_since_ms: TimeMs | None = None


class HypervisorAudited(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="hypervisor-audited"):
    """One look at one hypervisor. `taken_at_ms` (wall clock) and `mono_ms` (the producer's monotonic clock) are read before the first call.

    In full: `hypervisor` and `instances` (sorted by id) are there and `digest` is theirs. Unchanged: both are None and `digest` names
    the last full one. `complete` False means that something could not be asked (`unknown_instances`): what is missing says nothing.
    """

    node_id: NodeId
    producer: ProducerId
    epoch: Count
    counter: Count
    taken_at_ms: TimeMs
    mono_ms: DurationMs
    digest: Name
    complete: bool = True
    hypervisor: Hypervisor | None = None
    instances: tuple[InstanceReport, ...] | None = None
    unknown_instances: tuple[InstanceId, ...] = ()

    def __post_init__(self) -> None:
        """Full or unchanged, nothing between. Raises ValueError."""
        if (self.hypervisor is None) != (self.instances is None):
            raise ValueError("hypervisor and instances: expected both (a full audit) or neither (unchanged since the last full one)")


class AuditFailed(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="audit-failed"):
    """A hypervisor could not be asked: its state is unknown since `unknown_since_ms`, which is not an empty list."""

    node_id: NodeId
    producer: ProducerId
    epoch: Count
    counter: Count
    taken_at_ms: TimeMs
    mono_ms: DurationMs
    reason: Text
    unknown_since_ms: TimeMs


AuditRecord = HypervisorAudited | AuditFailed
