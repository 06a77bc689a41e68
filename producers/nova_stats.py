"""What Nova's compute counts of its instances besides their sizes: for `openstack_stats`, and for producers of one's own on Nova's hosts.

The rules are those of Nova's resource tracker (release 34): an instance counts unless it is deleted, or shelved and offloaded and not on
its way back; `io_workload` are the builds, moves, rebuilds and snapshots that filters and weighers call I/O operations.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

IO_TASKS = frozenset({"resize_migrating", "rebuilding", "resize_prep", "image_snapshot", "image_backup", "rescuing", "unshelving"})
"""Task states that keep a host's disks and network busy."""
GONE, OFFLOADED, BUILDING = "deleted", "shelved_offloaded", "building"


class InstanceState(Struct, frozen=True, kw_only=True):
    """What Nova says of one instance; a task of None is "nothing going on", a state of None "none yet"."""

    instance_id: str
    vm_state: str | None
    task_state: str | None = None
    os_type: str | None = None
    project_id: str | None = None

    @property
    def counts(self) -> bool:
        """Whether the instance takes anything of the host."""
        return self.vm_state != GONE and (self.vm_state != OFFLOADED or self.task_state == "spawning")


def latest(updates: Iterable[InstanceState]) -> dict[str, InstanceState]:
    """The last word on each instance, by id; those that count for nothing any more are left out."""
    known = {update.instance_id: update for update in updates}
    return {instance_id: state for instance_id, state in known.items() if state.counts}


def io_workload(states: Iterable[InstanceState]) -> int:
    """The I/O operations on the host: instances being built, and those with one of `IO_TASKS`."""
    return sum((state.vm_state == BUILDING) + (state.task_state in IO_TASKS) for state in states)


def workload(states: Iterable[InstanceState]) -> int:
    """How many instances have a task at all."""
    return sum(state.task_state is not None for state in states)


def failed_builds(before: int, *, succeeded: bool) -> int:
    """Failed builds in a row: a build that succeeds ends the row."""
    return 0 if succeeded else before + 1
