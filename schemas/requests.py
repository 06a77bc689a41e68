"""What is asked for: placements and their cancellation, on `placement-requests`."""

from typing import Literal

from msgspec import Struct

from schemas.guests import Flavor, Image, NumaWant, PciWant
from schemas.ids import GroupId, InstanceId, NodeId, RecordId, RequestId
from schemas.ids import instance_id as derived_instance_id
from schemas.pinning import Wants, counted
from schemas.resources import Limits, Resources
from schemas.units import Count, DurationMs, Name, Text

__all__ = [
    "INSTANCES_MAX",
    "TTL_MS_DEFAULT",
    "Flavor",
    "Hints",
    "Image",
    "NumaWant",
    "PciWant",
    "PlacementCancelled",
    "PlacementRequested",
    "RequestRecord",
    "ServerGroup",
]

TTL_MS_DEFAULT = 10 * 60 * 1000
"""How long a claim may stay unconfirmed: Nova's builds mostly take under a minute, images on slow links some minutes."""
INSTANCES_MAX = 1000
"""Most instances of one request: keeps one result, evidence included, under 900 kB."""


class Hints(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Scheduler hints by Nova's names."""

    same_host: tuple[InstanceId, ...] = ()
    different_host: tuple[InstanceId, ...] = ()
    build_near_host_ip: Text = ""
    cidr: Text = ""
    query: Text = ""
    other: dict[Name, Text] = {}


class ServerGroup(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A server group and its policy; `max_per_node` is Nova's max_server_per_host."""

    group_id: GroupId
    policy: Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]
    max_per_node: Count = 1


class PlacementRequested(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="placement-requested"):
    """Somebody wants `count` instances placed, all or none. `instance_ids` may be left out: they follow from the request's id.

    `…_hosts` name compute services' hosts, those that are forced or ignored in any case of letters; `…_nodes` name nodes. A move between
    cells (`cross_cell_move`) prefers the nodes of `preferred_cell`.

    A `resize` gives the whole new size of instances and stays on their node. A `migrate` leaves `source_node`, with a new size if the
    flavor is another one, and keeps the room there until the move is confirmed or reverted; one that is `live` cannot be reverted and keeps
    nothing. An `evacuate` leaves a node that is dead. The instances of all three are named.

    `ttl_ms` is how long its claims may stay unconfirmed; a scheduler gives up after a quarter of it.
    """

    request_id: RequestId
    flavor: Flavor
    count: Count = 1
    instance_ids: tuple[InstanceId, ...] = ()
    action: Literal["create", "resize", "migrate", "evacuate"] = "create"
    source_node: Text = ""
    live: bool = False
    image: Image = Image()
    hints: Hints = Hints()
    group: ServerGroup | None = None
    availability_zone: Text = ""
    project_id: Text = ""
    user_id: Text = ""
    forced_nodes: tuple[NodeId, ...] = ()
    ignored_nodes: tuple[NodeId, ...] = ()
    requested_nodes: tuple[NodeId, ...] = ()
    retry_nodes: tuple[NodeId, ...] = ()
    forced_hosts: tuple[Name, ...] = ()
    ignored_hosts: tuple[Name, ...] = ()
    requested_hosts: tuple[Name, ...] = ()
    retry_hosts: tuple[Name, ...] = ()
    preferred_cell: Text = ""
    cross_cell_move: bool = False
    numa: tuple[NumaWant, ...] = ()
    pci: tuple[PciWant, ...] = ()
    traits_required: tuple[Name, ...] = ()
    traits_forbidden: tuple[Name, ...] = ()
    limits: Limits | None = None
    boot_from_volume: bool = False
    dry_run: bool = False
    ttl_ms: DurationMs = TTL_MS_DEFAULT

    def __post_init__(self) -> None:
        """Refuse what no reader could act on. Raises ValueError, which makes the message unreadable."""
        if not 1 <= self.count <= INSTANCES_MAX:
            raise ValueError(f"count: expected 1 to {INSTANCES_MAX} instances, got {self.count}; split the request")
        if self.instance_ids and (len(self.instance_ids) != self.count or len(set(self.instance_ids)) != self.count):
            raise ValueError(f"instance_ids: expected {self.count} different ids (or none), got {len(set(self.instance_ids))}")

    @property
    def resources(self) -> Resources:
        """What one instance takes on its node: root and ephemeral disk and swap; a root on a volume takes none (Nova's tracker).

        CPUs that extra specs or image properties want dedicated count as such (`pinning.wants`).
        """
        return self.sized(counted(self.flavor, self.image))

    def sized(self, cpus: Wants) -> Resources:
        """`resources`, where it is known already which CPUs are wanted."""
        flavor = self.flavor
        root_gib = 0 if self.boot_from_volume else flavor.root_gib
        disk_mib = (root_gib + flavor.ephemeral_gib) * 1024 + flavor.swap_mib
        return Resources(
            vcpus=cpus.vcpus,
            pcpus=cpus.pcpus,
            memory_mib=flavor.memory_mib if cpus.memory_mib is None else cpus.memory_mib,
            disk_mib=disk_mib if cpus.disk_gib is None else cpus.disk_gib * 1024,
        )

    @property
    def forced(self) -> bool:
        """Whether it names the only nodes or hosts to be taken, whatever filters say."""
        return bool(self.forced_nodes or self.forced_hosts)

    def instance(self, index: int) -> str:
        """The id of instance number `index`, named or derived."""
        return self.instance_ids[index] if self.instance_ids else derived_instance_id(self.request_id, index)


class PlacementCancelled(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="placement-cancelled"):
    """The requester no longer wants it. Acts only by becoming the counting result, or after a placement as a release."""

    request_id: RequestId
    record_id: RecordId
    reason: Text = ""


RequestRecord = PlacementRequested | PlacementCancelled
