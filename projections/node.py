"""A node's row: what the operator set, what audits and events showed, and which claims are held there.

Rows are the fold's own and change in place. `used` is the only sum that is kept rather than derived on demand: `Node.recount` derives it
anew for one instance whenever something about that instance changed, and a property test holds it to the full sum.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import UNSET, Struct, field

from schemas.audits import InstanceReport
from schemas.claims import GroupMember, NodeStatus
from schemas.inventory import Aggregate, HugePages, Hypervisor, OperatorFields, ResourceRule
from schemas.requests import NumaWant, PciWant
from schemas.resources import RESOURCES, ObservedResources, Resources
from schemas.results import CellGrant

Amounts = tuple[int, int, int, int]
"""vcpus, pcpus, memory_mib, disk_mib: a vector in the order of `RESOURCES`."""
NOTHING: Amounts = (0, 0, 0, 0)
ObservedAmounts = tuple[int | None, int | None, int | None, int | None]
"""The same of an observation: None where it does not report."""
NO_LIMIT = 1 << 62
"""Above every use: nothing reaches it."""
NO_TOTAL = -(1 << 62)
"""Below every use: nothing fits under it."""
NO_TOTALS: Amounts = (NO_TOTAL, NO_TOTAL, NO_TOTAL, NO_TOTAL)


def amounts_of(resources: Resources) -> Amounts:
    """The vector of whole amounts."""
    return (resources.vcpus, resources.pcpus, resources.memory_mib, resources.disk_mib)


def observed_amounts(resources: ObservedResources) -> ObservedAmounts:
    """The vector of an observation; None where it does not report."""
    return (resources.vcpus, resources.pcpus, resources.memory_mib, resources.disk_mib)


def largest(left: Amounts, right: Amounts) -> Amounts:
    """The larger of two vectors, resource by resource."""
    return (max(left[0], right[0]), max(left[1], right[1]), max(left[2], right[2]), max(left[3], right[3]))


def cut_to(claimed: Amounts, shown: ObservedAmounts) -> Amounts:
    """What is claimed, cut to what is shown where that is known."""
    cut = [most if known is None else min(most, known) for most, known in zip(claimed, shown, strict=True)]
    return (cut[0], cut[1], cut[2], cut[3])


class Claim(Struct, gc=False, array_like=True):
    """One held claim.

    Times in ms: `since_ms` is the append time of the grant or the last renewal, `seen_ms` the newest showing (-1: never shown),
    `gone_ms` the newest departure of its instance (-1: none), `departed_ms` the departure that closes it sooner (rule 6), if there is one.
    `run_epoch`, `run_mono_ms`, `run_since_ms` (append time): where the run of evidence against it started, None if there is none.
    `cells`, `pinned_cpus` (all that it holds) and `pci_addresses` are what it got for its `numa` and `pci`.
    `granted_ms` (append time) and `confirmed_by` (type of the record that confirmed it) are for explanations; no rule reads them.
    """

    claim_id: str
    request_id: str
    instance_id: str
    node_id: str
    owner: str
    offset: int
    amounts: Amounts
    since_ms: int
    deadline_ms: int
    ttl_ms: int
    resize: bool = False
    forced: bool = False
    renewed: bool = False
    confirmed_ms: int | None = None
    seen_ms: int = -1
    gone_ms: int = -1
    departed_ms: int | None = None
    run_epoch: int | None = None
    run_mono_ms: int = 0
    group: GroupMember | None = None
    project_id: str = ""
    numa: tuple[NumaWant, ...] = ()
    pci: tuple[PciWant, ...] = ()
    pinned_cpus: tuple[int, ...] = ()
    pci_addresses: tuple[str, ...] = ()
    confirmed_offset: int | None = None
    confirmed_by: str = ""
    granted_ms: int = -1
    run_since_ms: int = 0
    cells: tuple[CellGrant, ...] = ()
    keep: bool = False
    flavor: str = ""

    @property
    def resources(self) -> Resources:
        """The claimed amounts as a record has them."""
        vcpus, pcpus, memory_mib, disk_mib = self.amounts
        return Resources(vcpus=vcpus, pcpus=pcpus, memory_mib=memory_mib, disk_mib=disk_mib)


class Shown(Struct, gc=False, array_like=True):
    """An instance that observations show on the node. `seen_ms` is the newest showing, `event_ms` the newest event among them (-1: none).

    `group_id` outlives the claim it came from: a guest whose claim closed is still a member on this node. Who sets it calls `Node.recount`.
    """

    report: InstanceReport
    amounts: ObservedAmounts
    seen_ms: int
    event_ms: int = -1
    offset: int = 0
    group_id: str = ""


class Audit(Struct, gc=False, array_like=True):
    """The last applied audit of the node (full or unchanged, not failed)."""

    producer: str
    epoch: int
    counter: int
    taken_at_ms: int
    complete: bool
    offset: int


class FullAudit(Struct, gc=False, array_like=True):
    """The last complete full audit applied: what an unchanged one stands for, kept apart from what events changed since."""

    digest: str
    epoch: int
    hypervisor: Hypervisor
    instances: tuple[InstanceReport, ...]
    offset: int


class Home(Struct, gc=False, array_like=True):
    """An affinity group's home as proposals made it: the highest epoch and its node."""

    epoch: int
    node_id: str


class Node(Struct, gc=False):
    """One hypervisor.

    `sources` keeps the highest (epoch, counter) per `source topic|producer`. `complete_ms` is `taken_at_ms` of the last complete audit.
    `settled_ms`, if it is not None, stands for the `seen_ms` of all that is shown and held here but for the instances in `loose`, unless
    theirs is larger (see `evidence`).
    """

    node_id: str
    status: NodeStatus = "enabled"
    status_reason: str = ""
    vcpus: ResourceRule = ResourceRule()
    pcpus: ResourceRule = ResourceRule()
    memory_mib: ResourceRule = ResourceRule()
    disk_mib: ResourceRule = ResourceRule()
    zone: str = ""
    aggregates: tuple[Aggregate, ...] = ()
    traits: tuple[str, ...] = ()
    pages_reserved: tuple[HugePages, ...] = ()
    hypervisor: Hypervisor | None = None
    shown: dict[str, Shown] = field(default_factory=dict)
    sources: dict[str, tuple[int, int]] = field(default_factory=dict)
    audit: Audit | None = None
    full: FullAudit | None = None
    complete_ms: int = -1
    unknown_since_ms: int | None = None
    unknown_reason: str = ""
    unknown_instances: tuple[str, ...] = ()
    silent_since_ms: int | None = None
    homes_closed: dict[str, int] = field(default_factory=dict)
    settled_ms: int | None = None
    loose: set[str] = field(default_factory=set)

    claims: dict[str, list[Claim]] = field(default_factory=dict)
    """Held claims by instance; restored from the claims themselves, not part of the stored row."""
    uses: dict[str, Amounts] = field(default_factory=dict)
    """Use by instance (rule 3); derived."""
    used: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    """The sum of `uses`; derived."""
    groups_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The server groups of each instance here that is in one; derived."""
    io_claims: int = 0
    """Unconfirmed claims here: builds, moves and resizes on their way; derived."""
    limits: Amounts = NO_TOTALS
    """The most that may be used, by resource: `NO_LIMIT` without a ratio, `NO_TOTAL` without a total; derived by `refresh`."""
    whole_units: bool = True
    """No min_unit, max_unit or step_size of any resource asks for a closer look; derived by `refresh`."""
    key: bytes = b""
    """`node_id` as bytes; derived by `refresh`."""

    def __post_init__(self) -> None:
        """What is derived holds from the beginning."""
        self.refresh()

    def refresh(self) -> None:
        """Derive `limits`, `whole_units` and `key` anew, after the operator's fields or the host's totals changed."""
        self.limits = (self._bound("vcpus"), self._bound("pcpus"), self._bound("memory_mib"), self._bound("disk_mib"))
        rules = (self.vcpus, self.pcpus, self.memory_mib, self.disk_mib)
        self.whole_units = all(rule.min_unit <= 1 and rule.max_unit is None and rule.step_size <= 1 for rule in rules)
        self.key = self.node_id.encode()

    def _bound(self, resource: str) -> int:
        if self.total(resource) is None:
            return NO_TOTAL
        limit = self.limit(resource)
        return NO_LIMIT if limit is None else limit

    def configure(self, fields: OperatorFields) -> None:
        """Take over what the operator set; what is UNSET stays."""
        for name in (*RESOURCES, "zone", "aggregates", "traits", "pages_reserved"):
            value = getattr(fields, name)
            if value is not UNSET:
                setattr(self, name, value)
        self.refresh()

    def last_audits(self) -> dict[str, tuple[int, int]]:
        """Epoch and counter of the last audit by each producer that ever audited the node, or tried to: a failed one counts as well."""
        return {source.removeprefix("audits|"): seen for source, seen in self.sources.items() if source.startswith("audits|")}

    @property
    def audits_fail(self) -> bool:
        """Whether the newest audit told nothing. One that told something may still leave unknown what a failed one before it did."""
        if self.unknown_since_ms is None:
            return False
        return self.audit is None or any(seen > (self.audit.epoch, self.audit.counter) for seen in self.last_audits().values())

    def rule(self, resource: str) -> ResourceRule:
        """The operator's rule for a resource."""
        rule: ResourceRule = getattr(self, resource)
        return rule

    def total(self, resource: str) -> int | None:
        """The node's total of a resource; None if no audit reported one."""
        if self.hypervisor is None:
            return None
        total: int | None = getattr(self.hypervisor, resource)
        return total

    def limit(self, resource: str) -> int | None:
        """⌊(total − reserved) × ratio_milli / 1000⌋: the most that fits; None without a ratio or a total. May be negative."""
        total, rule = self.total(resource), self.rule(resource)
        if total is None or rule.ratio_milli is None:
            return None
        return (total - rule.reserved) * rule.ratio_milli // 1000

    def free(self, resource: str) -> int | None:
        """limit − used; negative when the node is over; None where there is no limit."""
        limit = self.limit(resource)
        return None if limit is None else limit - self.used[RESOURCES.index(resource)]

    def instance_count(self) -> int:
        """Instances shown or claimed here."""
        return len(self.uses)

    def io_ops(self) -> int:
        """Builds, moves and snapshots: what the host reports, and the claims on their way (Nova's num_io_ops)."""
        return (self.hypervisor.io_workload if self.hypervisor is not None else 0) + self.io_claims

    def held(self) -> list[Claim]:
        """The held claims, in no particular order."""
        return [claim for claims in self.claims.values() for claim in claims]

    def members(self, group_id: str) -> set[str]:
        """The instances of a server group held or shown here."""
        return {instance_id for instance_id, groups in self.groups_of.items() if group_id in groups}

    def seen_ms(self, instance_id: str) -> int:
        """When an instance was last shown here, as what shows or holds it here knows; -1: never."""
        shown = self.shown.get(instance_id)
        if shown is None:
            return max((claim.seen_ms for claim in self.claims.get(instance_id, ())), default=-1)
        settled_ms = -1 if self.settled_ms is None or instance_id in self.loose else self.settled_ms
        return max(shown.seen_ms, settled_ms)

    def groups_among(self, instance_id: str) -> tuple[str, ...]:
        """The server groups of one instance: those of its claims here, and the one that it is shown as a member of, in order of names."""
        groups = {claim.group.group_id for claim in self.claims.get(instance_id, ()) if claim.group is not None}
        shown = self.shown.get(instance_id)
        if shown is not None and shown.group_id:
            groups.add(shown.group_id)
        return tuple(sorted(groups))

    def flavors(self, instance_id: str) -> frozenset[str]:
        """The flavors of one instance by name, as its claims and what shows it have them: two while it is resized, none if nobody says."""
        found = {claim.flavor for claim in self.claims.get(instance_id, ())}
        shown = self.shown.get(instance_id)
        if shown is not None:
            found.add(shown.report.flavor)
        return frozenset(found - {""})

    def use_of(self, instance_id: str, with_amounts: Amounts | None = None, without: Collection[str] = ()) -> Amounts:
        """Use of one instance (rule 3), with one more unconfirmed claim of `with_amounts` laid over it, or `without` some of its claims."""
        shown = self.shown.get(instance_id)
        vector = [0, 0, 0, 0] if with_amounts is None else list(with_amounts)
        for claim in self.claims.get(instance_id, ()):
            if claim.claim_id in without:
                continue
            superseded = shown is not None and claim.confirmed_ms is not None
            for r, amount in enumerate(claim.amounts):
                if amount > vector[r] and not (superseded and shown is not None and shown.amounts[r] is not None):
                    vector[r] = amount
        if shown is not None:
            for r, observed in enumerate(shown.amounts):
                if observed is not None and observed > vector[r]:
                    vector[r] = observed
        return (vector[0], vector[1], vector[2], vector[3])

    def recount(self, instance_id: str) -> None:
        """Derive `uses` and `groups_of` of one instance and `used` of the node anew."""
        uses = self.uses
        shown, claims = self.shown.get(instance_id), self.claims.get(instance_id)
        if (
            instance_id in self.groups_of
            or (claims is not None and (claims[0].group is not None or len(claims) > 1))
            or (shown is not None and shown.group_id)
        ):
            self._regroup(instance_id)
        if shown is None and claims is None:
            before, after = uses.pop(instance_id, NOTHING), NOTHING
        else:
            before = uses.get(instance_id, NOTHING)
            if claims is None and shown is not None:
                vcpus, pcpus, memory_mib, disk_mib = shown.amounts
                after = (vcpus or 0, pcpus or 0, memory_mib or 0, disk_mib or 0)
            elif claims is not None and len(claims) == 1:
                after = claims[0].amounts if shown is None else _shown_use(shown.amounts, claims[0])
            else:
                after = self.use_of(instance_id)
            uses[instance_id] = after
        if after is not before and after != before:
            used = self.used
            used[0] += after[0] - before[0]
            used[1] += after[1] - before[1]
            used[2] += after[2] - before[2]
            used[3] += after[3] - before[3]

    def _regroup(self, instance_id: str) -> None:
        groups = self.groups_among(instance_id)
        if groups:
            self.groups_of[instance_id] = groups
        else:
            self.groups_of.pop(instance_id, None)


def minus(amounts: Amounts, others: Amounts) -> Amounts:
    """Of each resource what is left of these amounts without the others."""
    return (amounts[0] - others[0], amounts[1] - others[1], amounts[2] - others[2], amounts[3] - others[3])


def _shown_use(observed: ObservedAmounts, claim: Claim) -> Amounts:
    """`Node.use_of` an instance that is shown and has one claim: the common case, in a third of the time."""
    claimed = claim.amounts
    if observed == claimed:
        return claimed
    vcpus, pcpus, memory_mib, disk_mib = observed
    if claim.confirmed_ms is not None:
        use = (
            claimed[0] if vcpus is None else vcpus,
            claimed[1] if pcpus is None else pcpus,
            claimed[2] if memory_mib is None else memory_mib,
            claimed[3] if disk_mib is None else disk_mib,
        )
    else:
        use = (
            claimed[0] if vcpus is None or vcpus < claimed[0] else vcpus,
            claimed[1] if pcpus is None or pcpus < claimed[1] else pcpus,
            claimed[2] if memory_mib is None or memory_mib < claimed[2] else memory_mib,
            claimed[3] if disk_mib is None or disk_mib < claimed[3] else disk_mib,
        )
    return claimed if use == claimed else use  # One object for all of a size.
