"""What is kept beside a ledger, node by node: its views and findings, and the doubles that span partitions.

Tables write the rows of the nodes that a batch touched, snapshots carry all of them; both give them back to `taken`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from projections.differences import Closed, HomeClosed
from projections.leaks import Leaks, Mark
from projections.observed import NodeView, Observed
from projections.open_finding import OpenFinding
from projections.state import StateError

Rows = Iterable[tuple[bytes, bytes]]


class _OfNode(msgspec.Struct, array_like=True):
    """Views and findings of one node."""

    view: NodeView | None
    mark: Mark | None
    open: dict[str, OpenFinding]
    closed: dict[str, Closed]
    homes: dict[str, HomeClosed]


class Doubles(msgspec.Struct, array_like=True):
    """Open double claims by instance, and the operator's last word on each with its time, which may have come before the double was seen.

    They span partitions, so each partition's rows have them, and the highest `changes` is the newest. Who does not see to doubles keeps the
    words alone, with no `changes`.
    """

    changes: int = 0
    open: dict[str, OpenFinding] = {}
    words: dict[str, tuple[str, int]] = {}


def newest(kept: Sequence[Doubles]) -> Doubles:
    """The newest ones, with the words of all: who kept one partition's rows may have heard what another did not."""
    found = max(kept, key=lambda doubles: doubles.changes, default=Doubles())
    words: dict[str, tuple[str, int]] = {}
    for finding_id, word in chain.from_iterable(doubles.words.items() for doubles in kept):
        words[finding_id] = max(words.get(finding_id, word), word, key=_later)
    return Doubles(found.changes, found.open, words)


def _later(word: tuple[str, int]) -> tuple[int, bool, str]:
    """By time. Of one time, as many have while a log's clock stands, what was taken back: an alarm too many rather than one too few."""
    reason, time_ms = word
    return time_ms, not reason, reason


_NODE, _DOUBLES = b"n", b"d"
"""The keys: of a node, by its id, and of the doubles."""
_encode = msgspec.msgpack.Encoder().encode
_decode_node = msgspec.msgpack.Decoder(_OfNode).decode
_decode_doubles = msgspec.msgpack.Decoder(Doubles).decode


def node_row(observed: Observed, leaks: Leaks, node_id: str) -> tuple[bytes, bytes]:
    """The row of one node."""
    kept = _OfNode(
        observed.nodes.get(node_id),
        leaks.marks.get(node_id),
        leaks.open.get(node_id, {}),
        leaks.closed.get(node_id, {}),
        leaks.homes.get(node_id, {}),
    )
    return _NODE + node_id.encode(), _encode(kept)


def doubles_row(doubles: Doubles) -> tuple[bytes, bytes]:
    """The row of the doubles."""
    return _DOUBLES, _encode(doubles)


def all_rows(observed: Observed, leaks: Leaks, doubles: Doubles) -> list[tuple[bytes, bytes]]:
    """Every row, in order of the keys."""
    names = sorted({*observed.nodes, *leaks.marks, *leaks.open, *leaks.closed, *leaks.homes})
    return [doubles_row(doubles), *(node_row(observed, leaks, node_id) for node_id in names)]


def taken(partition: int, rows: Rows) -> tuple[Observed, Leaks, Doubles | None]:
    """What the rows say; None for the doubles where no row has them. Raises StateError."""
    observed, leaks, doubles = Observed(partition), Leaks(partition), None
    for key, row in rows:
        try:
            if key == _DOUBLES:
                doubles = _decode_doubles(row)
                continue
            kept, node_id = _decode_node(row), key.removeprefix(_NODE).decode()
        except (msgspec.DecodeError, ValueError) as problem:
            raise StateError(f"its views and findings cannot be read: {problem}") from problem
        if kept.view is not None:
            observed.nodes[node_id] = kept.view
        if kept.mark is not None:
            leaks.marks[node_id] = kept.mark
        if kept.open:
            leaks.open[node_id] = kept.open
        if kept.closed:
            leaks.closed[node_id] = kept.closed
        if kept.homes:
            leaks.homes[node_id] = kept.homes
    return observed, leaks, doubles
