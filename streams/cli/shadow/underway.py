"""Which requests of the other scheduler are under way, by instance: from the request until its build or move is over."""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

from producers.openstack_payloads import InstanceFact
from producers.openstack_places import knows_task

T = TypeVar("T")
REBUILD = "instance.rebuild"


class _Course(Struct):
    """How far it has come."""

    had_task: bool
    is_evacuated: bool = False


class Underway(Generic[T]):
    """Each with something of the caller's that belongs to it."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[T, _Course]] = {}
        self._busy: set[str] = set()
        """Instances whose last message names a task: that of a move is set before it is asked for."""

    def begin(self, instance_id: str, of: T) -> None:
        """Something is asked for the instance; what was asked before is over."""
        self._open[instance_id] = (of, _Course(instance_id in self._busy))

    def get(self, instance_id: str) -> T | None:
        """What is under way for an instance."""
        found = self._open.get(instance_id)
        return None if found is None else found[0]

    def end(self, instance_id: str) -> T | None:
        """It is over; returns what was under way."""
        found = self._open.pop(instance_id, None)
        return None if found is None else found[0]

    def told(self, fact: InstanceFact) -> T | None:
        """Take what a message says of an instance; returns what is over with it.

        That is so once the instance is deleted, its task is done, or its build is. An evacuation is over when its service says so: before
        that its record names the old host, without a task in the end.
        """
        if knows_task(fact):
            (self._busy.add if fact.task else self._busy.discard)(fact.instance_id)
        found = self._open.get(fact.instance_id)
        return self.end(fact.instance_id) if found is not None and _is_over(fact, found[1]) else None


def _is_over(fact: InstanceFact, course: _Course) -> bool:
    if fact.action == REBUILD and fact.compute not in {"", fact.host}:
        course.is_evacuated = True
    if course.is_evacuated:
        return fact.is_deleted or (fact.action == REBUILD and fact.phase in {"end", "error"})
    is_built = (fact.action, fact.phase) == ("instance.create", "end")
    is_done = is_built or fact.state == "error" or (course.had_task and fact.state != "building")
    course.had_task |= bool(fact.task)
    return fact.is_deleted or (is_done and not fact.task)
