"""Copies of the nodes that code from outside is asked about: what it writes there is written nowhere else.

A scheduler judges its own claims on the very nodes that filters look at. One that wrote into them, by mistake or to remember something,
would have it grant what the ledger refuses.
"""

from __future__ import annotations

from copy import copy

from msgspec import msgpack
from msgspec.structs import replace

from projections.node import NO_TOTALS, Node
from projections.room import Room, with_real_figures

# A node is copied by way of its bytes, in a tenth of the time: it consists of what rows of a table have.
_encode, _decode = msgpack.Encoder().encode, msgpack.Decoder(Node).decode


class Copies:
    """For one filter or weigher: of each node the copy that it was given last. Another is made when the node is another room."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Room, Room]] = {}

    def of(self, room: Room) -> Room:
        """The copy of a room; what was written into it before still stands there."""
        known = self._known.get(room.node_id)
        if known is None or known[0] is not room:
            known = self._known[room.node_id] = (room, _copied(room))
        return known[1]


def _copied(room: Room) -> Room:
    node = copy(room.node)
    node.limits = NO_TOTALS  # They may have more than 64 bits, and are derived anew.
    return replace(with_real_figures(room), node=_decode(_encode(node)), instances=dict.fromkeys(room.instances), groups={}, stood=None)
