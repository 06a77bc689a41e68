"""The ledger's records, on `claims`: all that can change a verdict on a node, in one partition (rules version 1).

What follows from them (granted, refused, confirmed, departed …) is never written here; it is computed by everybody who reads.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from schemas.audits import InstanceReport
from schemas.ids import ClaimId, GroupId, InstanceId, NodeId, ProducerId, RecordId, RequestId
from schemas.inventory import Hypervisor, OperatorFields
from schemas.requests import NumaWant, PciWant
from schemas.resources import Limits, Resources
from schemas.units import Count, DurationMs, Name, Offset, Text, TimeMs

NodeStatus = Literal["enabled", "disabled", "draining", "withdrawn"]
Change = Literal["arrived", "started", "stopped", "paused", "resized", "departed", "deleted"]
ReleaseReason = Literal["loser", "cancelled", "failed", "operator", "deleted", "migrated"]

ITEMS_MAX = 256
"""Most claims of one record: with the ids and nodes of each it stays under 256 KiB."""
NODES_MAX = 16
"""Most ordered nodes of one claim; a scheduler's use of alternates is far below."""


class PartitionOpened(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="partition-opened"):
    """Record 0 of each partition: which ledger this is and how keys find their partition."""

    ledger_id: Name
    partition: Count
    partitions: Count
    partitioner: Literal["murmur2"] = "murmur2"
    rules_version: Count = 1


class NodeObserved(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="node-observed"):
    """One hypervisor audit, as the reconciler carries it over: fields as in `HypervisorAudited`.

    `failed` is the reason of a failed audit: then nothing else is known but that nothing is.
    """

    node_id: NodeId
    producer: ProducerId
    epoch: Count
    counter: Count
    taken_at_ms: TimeMs
    mono_ms: DurationMs
    digest: Text = ""
    complete: bool = True
    hypervisor: Hypervisor | None = None
    instances: tuple[InstanceReport, ...] | None = None
    unknown_instances: tuple[InstanceId, ...] = ()
    failed: Text = ""
    unknown_since_ms: TimeMs | None = None

    def __post_init__(self) -> None:
        """Full or unchanged, nothing between. Raises ValueError."""
        if (self.hypervisor is None) != (self.instances is None):
            raise ValueError("hypervisor and instances: expected both (a full audit) or neither (unchanged since the last full one)")


class InstanceObserved(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="instance-observed"):
    """One life-cycle event, as the reconciler carries it over."""

    node_id: NodeId
    producer: ProducerId
    epoch: Count
    counter: Count
    change: Change
    event_time_ms: TimeMs
    instance: InstanceReport
    claim_id: ClaimId | None = None
    resync: bool = False


class NodeSilent(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="node-silent"):
    """No audit of this node told anything for too long; names the last one seen and is ignored if a newer one is applied."""

    node_id: NodeId
    record_id: RecordId
    producer: Text
    epoch: Count
    counter: Count
    silent_since_ms: TimeMs


class NodeConfigured(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="node-configured"):
    """The operator's word on a node. Fields left out stay as they are; no audit ever touches them."""

    node_id: NodeId
    record_id: RecordId
    fields: OperatorFields = OperatorFields()
    status: NodeStatus | UnsetType = UNSET
    reason: Text = ""


class GroupMember(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The claim's server group: anti-affinity allows `max_per_node` members on one node; affinity names its home's epoch."""

    group_id: GroupId
    policy: Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]
    max_per_node: Count = 1
    epoch: Count = 0


class ClaimItem(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One instance's claim: granted on the first of `nodes` (best first, all of this partition) where it fits.

    `resize`: `resources` is the whole new size of an instance already there. `forced`: ratio limits are skipped and the overrun is named.
    `keep`: it keeps what the instance has on a node that it is about to leave, until the move is confirmed (a release with reason
    `migrated`) or reverted: no departure closes it, and no showing before its deadline confirms it. `flavor` (the flavor's name) and
    `project_id` are for filters and readers; no verdict depends on them.
    """

    claim_id: ClaimId
    instance_id: InstanceId
    nodes: tuple[NodeId, ...]
    resources: Resources
    resize: bool = False
    forced: bool = False
    keep: bool = False
    limits: Limits | None = None
    group: GroupMember | None = None
    numa: tuple[NumaWant, ...] = ()
    pci: tuple[PciWant, ...] = ()
    project_id: Text = ""
    flavor: Text = ""


class ClaimRequested(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="claim-requested"):
    """Claims of one request in one partition: all granted, each on the first of its nodes where it fits, or all refused.

    `owner` is the scheduler process. `basis` is the last offset of this partition it had folded (-1: none). `ttl_ms` is how long the
    claims may stay unconfirmed after they are appended. Keyed by the first node of the first item.
    """

    request_id: RequestId
    owner: Name
    basis: Offset
    ttl_ms: DurationMs
    items: tuple[ClaimItem, ...]

    def __post_init__(self) -> None:
        """Refuse empty and oversized records. Raises ValueError."""
        if not 1 <= len(self.items) <= ITEMS_MAX:
            raise ValueError(f"items: expected 1 to {ITEMS_MAX} claims, got {len(self.items)}")
        for item in self.items:
            if not 1 <= len(item.nodes) <= NODES_MAX:
                raise ValueError(f"items.nodes: expected 1 to {NODES_MAX} nodes, got {len(item.nodes)}")


class ClaimRenewed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="claim-renewed"):
    """The starter is at work: the claim's deadline moves to this record's append time plus `ttl_ms`."""

    node_id: NodeId
    record_id: RecordId
    claim_id: ClaimId
    ttl_ms: DurationMs


class ClaimReleased(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="claim-released"):
    """The claim is given back. With reason `cancelled` only a claim neither confirmed nor renewed goes; else its outcome is `in-use`."""

    node_id: NodeId
    record_id: RecordId
    claim_id: ClaimId
    reason: ReleaseReason
    note: Text = ""


class GroupHomeProposed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="group-home-proposed"):
    """A home node for an affinity group; the first with the next epoch wins. Keyed by the group."""

    group_id: GroupId
    record_id: RecordId
    epoch: Count
    node_id: NodeId


class GroupHomeClosed(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="group-home-closed"):
    """This node stops being a group's home, if no member is held or shown there (`unconditional`: a dead node, by the operator)."""

    node_id: NodeId
    record_id: RecordId
    group_id: GroupId
    epoch: Count
    unconditional: bool = False


class FindingIgnored(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="finding-ignored"):
    """The operator's word that a finding about this node is known and may stay: it alarms nobody until it is resolved.

    `reason` empty takes the word back. No verdict on a node depends on it; it stands here because findings follow from these records.
    """

    node_id: NodeId
    record_id: RecordId
    finding_id: Name
    reason: Text = ""


class RulesChanged(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="rules-changed"):
    """From the next record on the rules are those of `rules_version`, which is one above the present one."""

    record_id: RecordId
    rules_version: Count


ClaimsRecord = (
    PartitionOpened
    | NodeObserved
    | InstanceObserved
    | NodeSilent
    | NodeConfigured
    | ClaimRequested
    | ClaimRenewed
    | ClaimReleased
    | GroupHomeProposed
    | GroupHomeClosed
    | FindingIgnored
    | RulesChanged
)
