"""What happens to instances, one event each, on `instance-lifecycle`."""

from msgspec import Struct

from schemas.audits import InstanceReport
from schemas.ids import ClaimId, NodeId, ProducerId
from schemas.units import Count, TimeMs


class LifecycleEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What all of them say. `event_time_ms` is when it happened, by its producer's clock; `claim_id` if the event knows it.

    `resync` marks what a producer found at its start: true now, but nobody saw it happen.
    """

    node_id: NodeId
    producer: ProducerId
    epoch: Count
    counter: Count
    event_time_ms: TimeMs
    instance: InstanceReport
    claim_id: ClaimId | None = None
    resync: bool = False


class InstanceArrived(LifecycleEvent, frozen=True, kw_only=True, tag="instance-arrived"):
    """The instance is on this node now: defined, migrated in, or found."""


class InstanceStarted(LifecycleEvent, frozen=True, kw_only=True, tag="instance-started"):
    """The instance runs (or runs again); it is on this node."""


class InstanceStopped(LifecycleEvent, frozen=True, kw_only=True, tag="instance-stopped"):
    """The instance no longer runs but stays defined here: it keeps what it uses."""


class InstancePaused(LifecycleEvent, frozen=True, kw_only=True, tag="instance-paused"):
    """The instance is paused or suspended: it keeps what it uses."""


class InstanceResized(LifecycleEvent, frozen=True, kw_only=True, tag="instance-resized"):
    """The instance has another size from now on."""


class InstanceDeparted(LifecycleEvent, frozen=True, kw_only=True, tag="instance-departed"):
    """The instance is no longer on this node: migrated away, undefined, or a transient domain that stopped. It may be back (a reboot)."""


class InstanceDeleted(LifecycleEvent, frozen=True, kw_only=True, tag="instance-deleted"):
    """The owner's final word: the instance is gone for good."""


LifecycleRecord = (
    InstanceArrived | InstanceStarted | InstanceStopped | InstancePaused | InstanceResized | InstanceDeparted | InstanceDeleted
)
