"""What the leak audit finds, on `leak-findings`: suspected by one look, confirmed by the next, resolved when it is mended."""

from typing import Literal

from msgspec import Struct

from schemas.ids import NodeId
from schemas.resources import Resources
from schemas.units import Count, Name, Offset, Text, TimeMs

FindingKind = Literal[
    "orphan-claim",
    "double-claim",
    "ghost-instance",
    "stale-instance",
    "missing-claim",
    "size-drift",
    "device-drift",
    "expired-claim",
    "stranded-claim",
    "stranded-member",
    "silent-node",
    "negative-free",
    "vanished-claim",
]


class Cause(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One event that made the difference: where it stands in `claims` and what it says."""

    topic: Name
    partition: Count
    offset: Offset
    time_ms: TimeMs
    event: Name
    summary: Text = ""


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One difference between what is claimed, tracked and reported.

    `held` is what it keeps from others here, `devices` the addresses of PCI devices among that. `counted` is what the life cycle counts for
    an instance that no audit lists: its share of the gap, which keeps nothing from anybody here, but from those who believe the tracker.
    `causes` are the events that made it, oldest first; `missing` is the event that should be there and is not; `fix` is the command that
    mends it; `ignored` the operator's reason to let it stand. `since_ms` is when the difference arose, `suspected_ms` when a look first
    showed it.
    """

    finding_id: Name
    kind: FindingKind
    node_id: NodeId
    partition: Count
    offset: Offset
    time_ms: TimeMs
    since_ms: TimeMs
    suspected_ms: TimeMs
    instance_id: Text = ""
    claim_id: Text = ""
    held: Resources = Resources()
    counted: Resources = Resources()
    devices: tuple[Name, ...] = ()
    causes: tuple[Cause, ...] = ()
    missing: Text = ""
    fix: Text = ""
    note: Text = ""
    ignored: Text = ""


class LeakSuspected(Finding, frozen=True, kw_only=True, tag="leak-suspected"):
    """One look shows it; an event may still be on its way. Said once, with what it held then."""


class LeakConfirmed(Finding, frozen=True, kw_only=True, tag="leak-confirmed"):
    """A second, later audit shows it again; said once more whenever it holds something else or is to be mended otherwise."""


class LeakResolved(Finding, frozen=True, kw_only=True, tag="leak-resolved"):
    """It is gone; the last of `causes` is the event that mended it."""


FindingRecord = LeakSuspected | LeakConfirmed | LeakResolved
