"""The room that the other scheduler's choices take, as Placement's allocations do, from the request until the build or move is over."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from producers.openstack_payloads import InstanceFact
from schemas.lifecycle import InstanceArrived, InstanceDeleted, InstanceDeparted, InstanceResized, LifecycleEvent
from streams.cli.shadow.underway import Underway
from streams.scheduling.ask import Ask
from streams.scheduling.fleet import Fleet

OWNER = "shadow"
FAILED = frozenset({("instance.create", "error"), ("instance.resize", "error")})
"""Nova gives the allocation of such a host back, and may try another one of the answer."""


class _Choice(Struct):
    """What was asked for, and the node that is to have it; none between a try that failed and the next one elsewhere."""

    ask: Ask
    node_id: str = ""
    is_laid: bool = False
    """Whether it takes room by itself; not while the instance does."""


class Choices:
    """Those that are open, by instance. At any time either the choice takes room on its node, or the instance does."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._open: Underway[_Choice] = Underway()

    def take(self, instance_id: str, ask: Ask, node_id: str | None) -> None:
        """The other's answer to a request: None where nobody knows it, empty for none."""
        self.give_back(instance_id)
        if node_id and self._fleet.is_known(node_id):
            choice = _Choice(ask)
            self._open.begin(instance_id, choice)
            self._put(choice, node_id)

    def shown(self, event: LifecycleEvent) -> None:
        """The instance takes room by itself on a node, or no longer. What is said of it where it comes from changes nothing."""
        choice = self._open.get(event.instance.instance_id)
        is_retried = choice is not None and not choice.node_id and isinstance(event, InstanceArrived)
        if choice is None or not (is_retried or event.node_id == choice.node_id):
            return
        if isinstance(event, InstanceArrived | InstanceResized):
            self._lift(choice)
            choice.node_id = event.node_id
        elif isinstance(event, InstanceDeparted | InstanceDeleted):
            self._put(choice, choice.node_id)

    def told(self, fact: InstanceFact, node_id: str) -> None:
        """What a message says of the instance; `node_id` is the node of the service that said it.

        What failed may be tried on another of the hosts that the answer named: a build takes room there as soon as it begins.
        """
        over = self._open.told(fact)
        if over is not None:
            self._lift(over)
        choice = self._open.get(fact.instance_id)
        if choice is None:
            return
        if (fact.action, fact.phase) in FAILED:
            self._put(choice, "")
        elif (fact.action, fact.phase) == ("instance.create", "start") and self._fleet.is_known(node_id):
            self._put(choice, node_id)

    def give_back(self, instance_id: str) -> None:
        """The choice is over."""
        choice = self._open.end(instance_id)
        if choice is not None:
            self._lift(choice)

    def _put(self, choice: _Choice, node_id: str) -> None:
        self._lift(choice)
        choice.node_id = node_id
        if node_id:
            self._fleet.lay(replace(choice.ask.item, claim_id=_claim_id(choice)), node_id, 0)
            choice.is_laid = True

    def _lift(self, choice: _Choice) -> None:
        if choice.is_laid:
            self._fleet.lift(_claim_id(choice))
            choice.is_laid = False


def _claim_id(choice: _Choice) -> str:
    return f"{OWNER}/{choice.ask.request.request_id}"
