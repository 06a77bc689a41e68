"""The room that the other scheduler's choices take, as Placement's allocations do, from the request until the instance itself takes it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from producers.openstack_payloads import InstanceFact
from schemas.lifecycle import InstanceArrived, InstanceDeleted, InstanceDeparted, InstanceResized, LifecycleEvent
from streams.scheduling.ask import Ask
from streams.scheduling.fleet import Fleet

OWNER = "shadow"


class _Choice(Struct):
    """What was asked for, and where it takes room; nowhere between a build that failed and the next one elsewhere."""

    ask: Ask
    node_id: str = ""
    had_task: bool = False


class Choices:
    """Those that are open, by instance."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._open: dict[str, _Choice] = {}
        self._busy: set[str] = set()
        """Instances whose last message names a task: that of a move is set before it is asked for."""

    def take(self, instance_id: str, ask: Ask, node_id: str | None) -> None:
        """The other's answer to a request: None where nobody knows it, empty for none."""
        self.give_back(instance_id)
        if node_id and self._fleet.is_known(node_id):
            choice = self._open[instance_id] = _Choice(ask, had_task=instance_id in self._busy)
            self._put(choice, node_id)

    def shown(self, event: LifecycleEvent) -> None:
        """The instance takes room by itself, or has left. What is said of it where it comes from does not end a move."""
        choice = self._open.get(event.instance.instance_id)
        ends = isinstance(event, InstanceArrived | InstanceDeleted)
        if choice is not None and (ends or (isinstance(event, InstanceResized | InstanceDeparted) and event.node_id == choice.node_id)):
            self.give_back(event.instance.instance_id)

    def told(self, fact: InstanceFact, node_id: str) -> None:
        """What a message says of the instance; `node_id` is the node of the service that said it.

        A build that failed may be tried on another of the hosts that the answer named: it takes room there as soon as it begins.
        """
        (self._busy.add if fact.task else self._busy.discard)(fact.instance_id)
        choice = self._open.get(fact.instance_id)
        if choice is None:
            return
        if _is_over(fact, choice):
            self.give_back(fact.instance_id)
        elif (fact.action, fact.phase) == ("instance.create", "error"):
            self._put(choice, "")
        elif (fact.action, fact.phase) == ("instance.create", "start") and self._fleet.is_known(node_id):
            self._put(choice, node_id)
        choice.had_task |= bool(fact.task)

    def give_back(self, instance_id: str) -> None:
        """The choice is over."""
        choice = self._open.pop(instance_id, None)
        if choice is not None:
            self._put(choice, "")

    def _put(self, choice: _Choice, node_id: str) -> None:
        claim_id = f"{OWNER}/{choice.ask.request.request_id}"
        if choice.node_id:
            self._fleet.lift(claim_id)
        if node_id:
            self._fleet.lay(replace(choice.ask.item, claim_id=claim_id), node_id, 0)
        choice.node_id = node_id


def _is_over(fact: InstanceFact, choice: _Choice) -> bool:
    """Whether nothing is under way any more: deleted, failed, or the task of a move is over. Of a build no task is said once it begins."""
    has_ended = fact.state == "error" or (choice.had_task and fact.state != "building")
    return fact.is_deleted or (has_ended and not fact.task)
