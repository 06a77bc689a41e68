"""What is wrong on a node as it stands: where claims, life cycle and audits do not agree.

Asked at every record that touches the node, so it is quick to say that nothing is; why something is wrong is told by `explaining`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from projections.ledger_state import Step
from projections.node import NO_TOTAL, Claim, Node, ObservedAmounts, Shown, largest
from projections.observed import NodeView, Tracked
from projections.rules import GRACE_MS
from schemas.claims import NodeObserved
from schemas.findings import FindingKind
from schemas.requests import TTL_MS_DEFAULT
from schemas.results import OutcomeKind
from schemas.units import bounded_name

# An owner counts an instance from its claim on, a host lists it when it is defined. To fetch an image takes minutes: as long as a claim may
# wait for its guest.
BUILDING_MS = TTL_MS_DEFAULT
# A cold migration or resize defines the guest at its end only, when the disks are copied; an hour is 200 GiB at 60 MB/s.
MOVING_MS = 3_600_000


class Closed(Struct, gc=False):
    """A claim that is no longer held, and the record that closed it: what tells a missing claim from one that never was."""

    claim: Claim
    outcome: OutcomeKind
    offset: int
    time_ms: int
    event: str


class HomeClosed(Struct, frozen=True, array_like=True):
    """The operator's word that an affinity group does not live on a node any more, and where it stands: homes up to `epoch` are closed."""

    epoch: int
    offset: int
    time_ms: int


class Look(Struct):
    """What the difference is judged by: a node as one step left it.

    `homes` are the groups whose home the operator closed there. `closed` has the node's closed claims by instance; those up to
    `forgotten_offset` count no more, but for the instances in `kept`. `told` are the instances of open findings about no claim, on a
    withdrawn node. `listed_offset`, `listed_ms`: the complete audit before this step (-1: none).
    """

    partition: int
    node: Node
    view: NodeView
    closed: dict[str, Closed]
    step: Step
    listed_offset: int = -1
    listed_ms: int = -1
    forgotten_offset: int = -1
    kept: frozenset[str] = frozenset()
    homes: dict[str, HomeClosed] = {}
    told: frozenset[str] = frozenset()

    def gone(self, instance_id: str) -> Closed | None:
        """The instance's last closed claim here, as long as it is remembered: by its offset, not by whether a host still has it stored."""
        closed = self.closed.get(instance_id)
        if closed is None or (closed.offset <= self.forgotten_offset and instance_id not in self.kept):
            return None
        return closed


class FindingDifference(Struct, frozen=True):
    """Something is wrong: of what kind, about which instance or claim. `not_before_ms` is when a look may confirm it at the earliest."""

    kind: FindingKind
    instance_id: str = ""
    claim: Claim | None = None
    not_before_ms: int = 0

    def finding_id(self, node_id: str) -> str:
        """The same for the same difference in every replay: kind, node, and the claim or the instance it is about."""
        about = self.claim.claim_id if self.claim is not None else self.instance_id
        return bounded_name("/".join(part for part in (self.kind, node_id, about) if part))


def of_instances(look: Look, instances: Iterable[str]) -> list[FindingDifference]:
    """The differences about these instances on the node; the common case, that nothing is wrong, costs some comparisons each."""
    node, time_ms = look.node, look.step.time_ms
    claims_of, shown_of = node.claims.get, node.shown.get
    found: list[FindingDifference] = []
    if node.status == "withdrawn":
        for instance_id in sorted(instances):
            found += [_stranded(claim) for claim in sorted(claims_of(instance_id, ()), key=by_age)]
            # A host that was taken out and reports all the same has what it shows; what it showed before may have gone with it. What it
            # was found to show stands until it shows it no more.
            reports = (isinstance(look.step.event, NodeObserved) or instance_id in look.told) and instance_id not in node.claims
            if reports and (shown := shown_of(instance_id)) is not None:
                found += _unclaimed(look, instance_id, shown)
        return found
    for instance_id in instances:
        claims = claims_of(instance_id)
        if claims is not None and len(claims) == 1:
            claim = claims[0]
            if claim.confirmed_ms is None:
                if time_ms <= claim.deadline_ms:
                    continue
            elif claim.run_epoch is None:
                shown = shown_of(instance_id)
                if shown is None or (_alike(shown, claim) and not _has_left(node, look.view, instance_id)):
                    continue
        found += _of_instance(look, instance_id)
    return found


def nothing_wrong(node: Node, instances: Iterable[str], time_ms: int, view: NodeView | None, closed: Mapping[str, Closed] | None) -> bool:
    """Whether the common case of `of_instances` and `of_node` holds: then there is no difference, and no look is needed to say so.

    An instance has one claim and is as claimed, or it is gone in every respect: `view` is what life cycles say of the node, `closed` has
    its closed claims by instance.
    """
    claims_of, shown_of = node.claims.get, node.shown.get
    for instance_id in instances:
        claims = claims_of(instance_id)
        if claims is None:
            if shown_of(instance_id) is not None or (view is not None and view.tracked is not None and instance_id in view.tracked):
                return False
            if closed is not None and (gone := closed.get(instance_id)) is not None and gone.outcome == "vanished":
                return False
            continue
        if len(claims) != 1:
            return False
        claim = claims[0]
        if claim.confirmed_ms is None:
            if time_ms > claim.deadline_ms:
                return False
        elif claim.run_epoch is not None or (
            (shown := shown_of(instance_id)) is not None
            and (not _alike(shown, claim) or (view is not None and _has_left(node, view, instance_id)))
        ):
            return False
    return node.status != "withdrawn" and node.silent_since_ms is None and node.unknown_since_ms is None and not _is_over(node)


def too_old_for(look: Look, instances: Iterable[str]) -> bool:
    """Whether the audit is not newer than the last event or departure of one of these that is shown: a newer one may say more of it."""
    node, gone_ms = look.node, look.view.gone_ms
    for instance_id in instances:
        shown = node.shown.get(instance_id)
        if shown is not None and (node.complete_ms <= shown.event_ms or node.seen_ms(instance_id) <= gone_ms(instance_id)):
            return True
    return False


def _of_instance(look: Look, instance_id: str) -> list[FindingDifference]:
    node = look.node
    claims, shown = node.claims.get(instance_id), node.shown.get(instance_id)
    if claims is None:
        return _unclaimed(look, instance_id, shown)
    found: list[FindingDifference] = []
    for claim in sorted(claims, key=by_age):
        if claim.confirmed_ms is None:
            if look.step.time_ms > claim.deadline_ms:
                # Evidence closes a claim within about a TTL and two audits of its deadline; a producer's restart begins the run anew once.
                late_ms = claim.deadline_ms + 2 * claim.ttl_ms + GRACE_MS
                found.append(FindingDifference("expired-claim", instance_id, claim, late_ms))
        elif claim.run_epoch is not None and claim.departed_ms is None:
            found.append(FindingDifference("orphan-claim", instance_id, claim, _patience_ms(look, instance_id, claim.seen_ms)))
    if shown is not None and all(claim.confirmed_ms is not None for claim in claims):
        # A resize leaves the claim of before it: the guest is as one of them says, or else of a size that nobody claimed.
        newest = newest_claim(claims)
        if fitting_claim(node, instance_id) is None:
            found.append(FindingDifference("size-drift", instance_id, newest))
        larger = outlived(node, instance_id)
        found += [FindingDifference("size-drift", instance_id, claim) for claim in larger]
        if _has_left(node, look.view, instance_id):
            found.append(FindingDifference("ghost-instance", instance_id))
        if fitting_claim(node, instance_id, devices=True) is None:
            found.append(FindingDifference("device-drift", instance_id, newest))
        idle = [claim for claim in outlived(node, instance_id, devices=True) if claim not in larger]
        found += [FindingDifference("device-drift", instance_id, claim) for claim in idle]
    return found


def outlived(node: Node, instance_id: str, *, devices: bool = False) -> list[Claim]:
    """Claims that have outlived the guest or the size that they were for, in order of their age: the guest is as another one says.

    What is shown is another size, or lacks `devices` of it, and the claim stands for more. None as long as one is unconfirmed: a move or a
    resize is under way then. What a confirmed resize takes the place of stands for no more than it does (rule 7).
    """
    shown, claims = node.shown.get(instance_id), node.claims.get(instance_id, ())
    if shown is None or len(claims) < 2 or any(claim.confirmed_ms is None for claim in claims):
        return []
    fitting = fitting_claim(node, instance_id, devices=devices)
    if fitting is None:
        return []
    return [
        claim
        for claim in sorted(claims, key=by_age)
        if (_is_of_another_guest(claim, fitting) or is_undone(claim, fitting))
        and claim.departed_ms is None
        and (devices_apart(node, claim)[0] if devices else _is_larger(shown, claim, fitting))
    ]


def _is_of_another_guest(claim: Claim, fitting: Claim) -> bool:
    """Whether the guest of a claim is known to have left, and a later request made the one that is there."""
    return claim.offset < fitting.offset and claim.request_id != fitting.request_id and claim.gone_ms >= 0


def is_undone(claim: Claim, fitting: Claim) -> bool:
    """Whether a claim is that of a resize, and the guest is again as one of before it says."""
    return claim.resize and claim.offset > fitting.offset


def _is_larger(shown: Shown, claim: Claim, fitting: Claim) -> bool:
    return not _same(shown, claim) and largest(claim.amounts, fitting.amounts) != fitting.amounts


def fitting_claim(node: Node, instance_id: str, *, devices: bool = False) -> Claim | None:
    """The newest claim of a guest that it is as in size, or in its `devices`; None if it is as none of them says."""
    shown = node.shown[instance_id]
    claims = _telling(node.claims.get(instance_id, ()))
    fitting = [claim for claim in claims if (not any(devices_apart(node, claim)) if devices else _same(shown, claim))]
    return max(fitting, key=by_age, default=None)


def newest_claim(claims: Sequence[Claim]) -> Claim:
    """The claim that says what an instance is to be now."""
    return max(_telling(claims), key=by_age)


def _telling(claims: Sequence[Claim]) -> Sequence[Claim]:
    """Without those that keep a place beside an older claim: such a one takes what is shown, so that it agrees proves nothing."""
    oldest = min(claims, key=by_age)
    return [claim for claim in claims if not claim.keep or claim is oldest]


def _stranded(claim: Claim) -> FindingDifference:
    return FindingDifference("stranded-claim", claim.instance_id, claim)


def devices_apart(node: Node, claim: Claim) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The devices that a claim holds and its guest does not have, and those that the guest has beyond its claim; in order.

    Nothing is said before an audit newer than the guest's last event has shown it, nor of a host that reports no devices: an event need not
    name any.
    """
    shown, host = node.shown.get(claim.instance_id), node.hypervisor
    if shown is None or host is None or node.complete_ms <= shown.event_ms or not (host.pci_devices or shown.report.pci_addresses):
        return (), ()
    claimed, attached = set(claim.pci_addresses), set(shown.report.pci_addresses)
    return tuple(sorted(claimed - attached)), tuple(sorted(attached - claimed))


def _patience_ms(look: Look, instance_id: str, seen_ms: int = -1) -> int:
    """Until when an instance that its owner counts here may be on no audit: it is being built, or on its way.

    Not one that was seen after its owner's last word (`seen_ms`, if that is known): it was there, and is not.
    """
    word = look.view.vouched(instance_id)
    if word is None or seen_ms > word.event_ms:
        return 0
    return word.event_ms + (MOVING_MS if word.moving else BUILDING_MS)


def of_node(look: Look) -> list[FindingDifference]:
    """The differences about the node itself."""
    node = look.node
    found: list[FindingDifference] = []
    if _is_over(node):
        found.append(FindingDifference("negative-free"))
    if (node.silent_since_ms is not None or node.audits_fail) and node.status != "withdrawn":
        found.append(FindingDifference("silent-node"))
    if look.homes and node.status != "withdrawn":
        found += _left_behind(node, look.homes)
    return found


def _left_behind(node: Node, homes: dict[str, HomeClosed]) -> list[FindingDifference]:
    """Members of affinity groups whose home here the operator closed, but for those on their way out (rule 10).

    None of a group that has come back: a claim under a later epoch says that its home is here again.
    """
    found: list[FindingDifference] = []
    for group_id, home in homes.items():
        claims = [claim for claim in node.held() if claim.group is not None and claim.group.group_id == group_id]
        if any(claim.group is not None and claim.group.epoch > home.epoch for claim in claims):
            continue
        newest = {claim.instance_id: claim for claim in sorted(claims, key=by_age)}
        left = {instance_id: newest.get(instance_id) for instance_id in sorted(node.members(group_id))}
        found += [
            FindingDifference("stranded-member", instance_id, claim)
            for instance_id, claim in left.items()
            if claim is None or claim.departed_ms is None
        ]
    return found


def _is_over(node: Node) -> bool:
    """Whether more of a resource is used than its limit."""
    vcpus, pcpus, memory_mib, disk_mib = node.used
    vcpus_max, pcpus_max, memory_mib_max, disk_mib_max = node.limits
    return (
        vcpus > vcpus_max > NO_TOTAL
        or pcpus > pcpus_max > NO_TOTAL
        or memory_mib > memory_mib_max > NO_TOTAL
        or disk_mib > disk_mib_max > NO_TOTAL
    )


def by_age(claim: Claim) -> tuple[int, str]:
    """Order of an instance's claims: as they were granted."""
    return (claim.offset, claim.claim_id)


def _alike(shown: Shown, claim: Claim) -> bool:
    """Whether it is plain at once that the instance is as claimed; where there are devices it takes a closer look."""
    return not (claim.pci_addresses or shown.report.pci_addresses) and _same(shown, claim)


def _same(shown: Shown, claim: Claim) -> bool:
    """Whether everything that is reported of the instance is as claimed."""
    observed, claimed = shown.amounts, claim.amounts
    if observed == claimed:
        return True
    vcpus, pcpus, memory_mib, disk_mib = observed
    return (
        (memory_mib is None or memory_mib == claimed[2])
        and (vcpus is None or vcpus == claimed[0])
        and (disk_mib is None or disk_mib == claimed[3])
        and (pcpus is None or pcpus == claimed[1])
    )


def _unclaimed(look: Look, instance_id: str, shown: Shown | None) -> list[FindingDifference]:
    """An instance without a claim: it never had one, or has lost it."""
    gone = look.gone(instance_id)
    if shown is None:
        if gone is not None and gone.outcome == "vanished":
            return [FindingDifference("vanished-claim", instance_id, gone.claim)]
        if instance_id not in (look.view.tracked or ()):
            return []
        return [FindingDifference("stale-instance", instance_id, not_before_ms=_patience_ms(look, instance_id))]
    if look.node.seen_ms(instance_id) <= look.view.gone_ms(instance_id):
        return []  # An audit from before it left, which came late.
    if gone is not None:
        return [FindingDifference("missing-claim", instance_id)]
    # What an owner counts is adopted usage: a cloud that is followed claims nothing here.
    word = look.view.vouched(instance_id)
    if word is None:
        return [FindingDifference("ghost-instance", instance_id)]
    return [] if word.moving or counted_apart(look.node, shown, word) is None else [FindingDifference("size-drift", instance_id)]


def _has_left(node: Node, view: NodeView, instance_id: str) -> bool:
    """Whether its owner said that an instance left, and its host has shown it since."""
    return instance_id in view.left and node.seen_ms(instance_id) > view.gone_ms(instance_id)


def counted_apart(node: Node, shown: Shown, word: Tracked) -> ObservedAmounts | None:
    """By how much a guest is larger than its owner counts it, in CPUs and memory; None if it is not known to be of another size.

    Not before an audit newer than its last event has shown it. Disk is left out: an owner counts what it asked for, a host what is there.
    """
    if node.complete_ms <= shown.event_ms:
        return None
    cpus, memory_mib = apart(shown.amounts, word.amounts)
    return (cpus, 0, memory_mib, 0) if cpus or memory_mib else None


def apart(shown: ObservedAmounts, counted: ObservedAmounts) -> tuple[int, int]:
    """By how much more is shown than counted, in CPUs and in MiB; 0 where that is not known."""
    return _less(_cpus(shown), _cpus(counted)), _less(shown[2], counted[2])


def _cpus(amounts: ObservedAmounts) -> int | None:
    """Shared and dedicated CPUs together: hosts tell them apart in other ways than owners."""
    return None if amounts[0] is None else amounts[0] + (amounts[1] or 0)


def _less(shown: int | None, counted: int | None) -> int:
    return 0 if shown is None or counted is None else shown - counted
