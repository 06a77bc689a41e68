"""Amounts of what an instance uses and a node has.

Disk is counted in MiB because Nova's swap is: rounding it to GiB, up or down, would be a wrong number somewhere (decision 0003).
"""

from msgspec import Struct

from schemas.units import Amount, Count

RESOURCES = ("vcpus", "pcpus", "memory_mib", "disk_mib")
"""The resource classes, in the order in which every table and shortfall names them."""


class Resources(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Whole amounts. As a demand, 0 means: not asked for, not tested."""

    vcpus: Amount = 0
    pcpus: Amount = 0
    memory_mib: Amount = 0
    disk_mib: Amount = 0


class ObservedResources(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What an observation says an instance uses; None is "does not report it", never zero."""

    vcpus: Amount | None = None
    pcpus: Amount | None = None
    memory_mib: Amount | None = None
    disk_mib: Amount | None = None


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Upper bounds of a node's use that one claim carries (Nova's `limits`); None is unlimited.

    `instances_max` and `io_ops_max` bound the node's number of instances and of builds, moves and snapshots after the claim
    (Nova's NumInstancesFilter and IoOpsFilter).
    """

    vcpus: Amount | None = None
    pcpus: Amount | None = None
    memory_mib: Amount | None = None
    disk_mib: Amount | None = None
    instances_max: Count | None = None
    io_ops_max: Count | None = None


class Shortfall(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One thing a claim lacks on one node.

    `resource` is a resource class, or what else is tested: `status`, `node`, `group`, `instances`, `io_ops`, `resize`, `basis`,
    `released`, `request`, `step_size`, `min_unit`, `max_unit`, `numa_cells`, `numa_vcpus`, `numa_pcpus`, `numa_threads`,
    `numa_memory_mib`, `pages_2048_kib` (of any size), `pci`.
    `needed` of `free`: both in the resource's unit; `free` may be negative. `detail` says what numbers cannot.
    """

    resource: str
    needed: int = 0
    free: int = 0
    detail: str = ""

    @property
    def missing(self) -> int:
        """How much more would have been enough."""
        return self.needed - self.free

    def __str__(self) -> str:
        """The sentence an operator reads: `memory_mib: 4096 needed of 2048`."""
        if self.detail:
            return f"{self.resource}: {self.detail}"
        return f"{self.resource}: {self.needed} needed of {self.free}"


def addition(left: Resources, right: Resources) -> Resources:
    """The sum, resource by resource."""
    return Resources(
        vcpus=left.vcpus + right.vcpus,
        pcpus=left.pcpus + right.pcpus,
        memory_mib=left.memory_mib + right.memory_mib,
        disk_mib=left.disk_mib + right.disk_mib,
    )
