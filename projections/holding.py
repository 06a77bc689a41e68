"""One side of a double claim: an instance as one of the nodes holds and shows it."""

from __future__ import annotations

from typing import NamedTuple

from projections.description import beyond
from projections.node import Amounts, Claim, Node


class Holding(NamedTuple):
    """One side of a double: the newest confirmed claim of the instance on a node."""

    partition: int
    node: Node
    claim: Claim

    @property
    def shown(self) -> bool:
        """Whether observations show the instance there now."""
        return self.claim.instance_id in self.node.shown

    @property
    def is_withdrawn(self) -> bool:
        """Whether the operator said that the host is no more: no audit of it will ever come."""
        return self.node.status == "withdrawn"

    @property
    def is_known(self) -> bool:
        """Whether the host's audits say now what is there."""
        return not is_dead(self.node) and self.node.unknown_since_ms is None

    @property
    def order(self) -> tuple[int, bool, int, str]:
        """Whose claim is to go first: a host that is no more, one that does not show the guest, one of which nobody knows, the older."""
        trust = 0 if self.is_withdrawn else 1 if self.is_known and not self.shown else 3 if self.is_known else 2
        return trust, self.shown, self.claim.confirmed_ms or 0, self.node.node_id

    @property
    def held(self) -> Amounts:
        """What the node has more for others once the guest has left it and the claim was given back; its other claims stay."""
        node, instance_id = self.node, self.claim.instance_id
        return beyond(node.use_of(instance_id), (other for other in node.claims[instance_id] if other is not self.claim))


def is_dead(node: Node) -> bool:
    """Whether no audit of the node is to be waited for."""
    return node.silent_since_ms is not None or node.status == "withdrawn"
