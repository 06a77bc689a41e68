"""What became of things: placement results with their evidence, verdicts of claims, node rows, snapshots and digests."""

from typing import Literal

from msgspec import Struct

from schemas.ids import ClaimId, InstanceId, NodeId, RequestId
from schemas.inventory import Aggregate
from schemas.resources import Resources, Shortfall
from schemas.units import Amount, Count, Difference, Name, Offset, RatioMilli, Text, TimeMs

OutcomeKind = Literal[
    "granted", "refused", "confirmed", "renewed", "not-held", "in-use", "released", "departed", "deleted", "expired", "vanished"
]
"""`granted … in-use` leave or find a claim as it is; `released … vanished` close it."""

FailureReason = Literal["no-valid-node", "cancelled", "gave-up", "refused", "invalid"]


class Rejection(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One filter's work in one decision: how many nodes came, how many it rejected, and the first of them with the reason."""

    filter: Name
    entered: Count
    rejected: Count
    node_id: Text = ""
    reason: Text = ""


class NearestMiss(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The rejected node that lacked least: the only obstacle are these shortfalls."""

    node_id: NodeId
    filter: Name
    shortfalls: tuple[Shortfall, ...]


class Weight(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One weigher's share of a node's score. Floats are evidence only; nothing in the ledger is decided by them."""

    weigher: Name
    raw: float
    normalised: float
    multiplied: float


class Weighed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One of the best few nodes with its score and where the score comes from."""

    node_id: NodeId
    score: float
    weights: tuple[Weight, ...]


class Decision(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Why one instance went where it went, or nowhere. With the log it can be run again and gives the same choice.

    `cut` is the offset vector of `claims` (next offsets, by partition) it was made on, `overlay` the decider's own claims laid over it:
    `process-epoch.17-40,43@` are those with these counters, each on its claim's first node (`claim id@node` each in earlier versions, and
    of claims that were never made). It is left out where it is that of the decision before, on the same cut, and that one's own claim.
    `nodes_known` = the sum of all `rejected` + `passed`. `chosen` and then `alternates`, best first. In a result that would be too large
    for its topic all but the first decisions, and the one that found nothing, lack `best`, then their counts, then `alternates`.
    `attempt` 0 is no instance's place but the home of its affinity group: chosen and read back before the first member was decided.
    """

    instance_id: InstanceId
    cut: tuple[Count, ...]
    overlay: tuple[Text, ...] = ()
    seed: Count = 0
    policy_digest: Text = ""
    engine: Text = "reference"
    nodes_known: Count = 0
    rejections: tuple[Rejection, ...] = ()
    passed: Count = 0
    chosen: Text = ""
    alternates: tuple[NodeId, ...] = ()
    nearest_miss: NearestMiss | None = None
    best: tuple[Weighed, ...] = ()
    attempt: Count = 1
    refused: tuple[Shortfall, ...] = ()


class Placement(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One instance's place: the claim that holds it, its partition of `claims`, and the node."""

    instance_id: InstanceId
    claim_id: ClaimId
    partition: Count
    node_id: NodeId
    resources: Resources


class InstancesPlaced(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="instances-placed"):
    """All instances of the request hold a claim. Counts if it is the request's first result, appended up to `commit_by_ms`.

    `kept` are the places that the instances of a migration leave: each is to be released with reason `migrated` when the move is confirmed
    or reverted.
    """

    request_id: RequestId
    owner: Name
    taken_up_ms: TimeMs
    commit_by_ms: TimeMs
    placements: tuple[Placement, ...]
    decisions: tuple[Decision, ...] = ()
    kept: tuple[Placement, ...] = ()


class PlacementFailed(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="placement-failed"):
    """The request will not be placed: why, in words and in evidence. Counts if it is the first counting result of the request."""

    request_id: RequestId
    owner: Name
    taken_up_ms: TimeMs
    reason: FailureReason
    message: Text = ""
    decisions: tuple[Decision, ...] = ()


class SchedulerStarted(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="scheduler-started"):
    """A scheduler process came up with this policy: the text that `policy_digest` in its decisions stands for."""

    owner: Name
    started_ms: TimeMs
    policy_digest: Name
    policy: str
    version: Text = ""


ResultRecord = InstancesPlaced | PlacementFailed | SchedulerStarted


class CellGrant(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Where one guest cell of a granted claim goes: the host cell, and what it takes of it.

    `vcpus` float over the cell's shared CPUs. `guest_cpus` are pinned to the host's `pinned_cpus`, in this order; `emulator_cpus` are set
    aside for the emulator's threads; `held_cpus` are all dedicated CPUs that nobody else may have: with thread policy `isolate` the
    siblings as well. `page_size_kib` is 0 for ordinary memory.
    """

    guest_cell_id: Count = 0
    cell_id: Count = 0
    vcpus: Count = 0
    memory_mib: Amount = 0
    page_size_kib: Count = 0
    guest_cpus: tuple[Count, ...] = ()
    pinned_cpus: tuple[Count, ...] = ()
    emulator_cpus: tuple[Count, ...] = ()
    held_cpus: tuple[Count, ...] = ()


class Granted(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What a claim with NUMA or PCI wants got of its node besides amounts: a place for each guest cell, and devices in the wants' order."""

    cells: tuple[CellGrant, ...] = ()
    pci_addresses: tuple[Name, ...] = ()


class ClaimOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False, tag="claim-outcome"):
    """What the fold of one record of `claims` did to one claim, published to `claim-verdicts`.

    `overrun` names what a forced claim takes beyond the limits. `shortfalls` has, for a refusal, every shortfall of every node tried, in
    order, each under its node in `tried`. `granted` names the cells, CPUs, pages and devices of a claim that wants some.
    """

    outcome: OutcomeKind
    claim_id: ClaimId
    request_id: Text = ""
    instance_id: Text = ""
    node_id: Text = ""
    partition: Count = 0
    offset: Count = 0
    tried: tuple[NodeId, ...] = ()
    shortfalls: tuple[tuple[Shortfall, ...], ...] = ()
    overrun: tuple[Shortfall, ...] = ()
    granted: Granted | None = None


class ResourceRow(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One resource of one node. `limit` = ⌊(total − reserved) × ratio_milli / 1000⌋, None without a ratio or a total.

    `reported`, `tracked`, `claimed` are the three views (None: no source, which is not 0); `used` is what counts (rule 3);
    `free` = limit − used and `gap` = tracked − reported.
    """

    total: Amount | None = None
    reserved: Amount = 0
    ratio_milli: RatioMilli | None = None
    limit: Difference | None = None
    reported: Amount | None = None
    tracked: Amount | None = None
    claimed: Amount = 0
    used: Amount = 0
    free: Difference | None = None
    gap: Difference | None = None


class NodeResources(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="node-resources"):
    """One node's row as of `offset` of its partition of `claims`, for readers who don't decide. The highest offset is the truth."""

    node_id: NodeId
    partition: Count
    offset: Offset
    status: Text = "enabled"
    status_reason: Text = ""
    zone: Text = ""
    aggregates: tuple[Aggregate, ...] = ()
    traits: tuple[Name, ...] = ()
    host_uuid: Text = ""
    hypervisor_type: Text = ""
    hypervisor_version: Count = 0
    vcpus: ResourceRow = ResourceRow()
    pcpus: ResourceRow = ResourceRow()
    memory_mib: ResourceRow = ResourceRow()
    disk_mib: ResourceRow = ResourceRow()
    instances: Count = 0
    claims: Count = 0
    claims_unconfirmed: Count = 0
    audit_taken_at_ms: TimeMs | None = None
    audit_complete: bool = False
    unknown_since_ms: TimeMs | None = None
    silent_since_ms: TimeMs | None = None
    leaks: Count = 0


class SnapshotChunk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="snapshot-chunk"):
    """Part `index` of `chunks` of a whole partition's state after `offset`: base64 of a part of the compressed state."""

    ledger_id: Name
    partition: Count
    offset: Offset
    index: Count
    chunks: Count
    rules_version: Count
    state_version: Count
    digest: Name
    data: str


class LedgerDigest(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="ledger-digest"):
    """What one process computed for one partition up to and with `offset`."""

    ledger_id: Name
    partition: Count
    process: Name
    offset: Offset
    digest: Name
    rules_version: Count
    version: Text = ""


class RequestsAnswered(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="requests-answered"):
    """Requests whose results have long been read, so that who takes their partition over need not read these: `previous` names the rest.

    `last_offset`, `last_request_id`, `last_time_ms`: the newest of their results. `numbers`: base64 of 8 bytes for each id, its blake2b.
    `digest` is over all other fields, `previous` that of the record before, empty in the first. `lost_ms`: results up to that time had left
    the log before they were read by those who say this, so their requests are not all among these; 0: none had.
    """

    partition: Count
    previous: Text
    last_offset: Offset
    last_request_id: RequestId
    last_time_ms: TimeMs
    numbers: str
    lost_ms: TimeMs = 0
    digest: Text = ""
