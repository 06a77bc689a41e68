"""The republisher: mends `node-resources` after a zombie, a worker that lost its partitions and published once more before it noticed.

Its older row comes to stand behind the owner's newer one, and compaction would keep it for good. So the owner reads back what stands in
its partitions, from the beginning when it takes them over and on from there, and publishes rows anew that are not the fold's,
and those of nodes that have none: where the topic was lost, or nobody had published anything before a snapshot was written.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from projections.rows import node_resources
from schemas import topics
from schemas.codec import decode_keyed, event_type
from schemas.results import NodeResources
from streams.fold import Fold
from streams.folder import Folder
from streams.log.base import Log, Message, Partition, Record, read_at_hand
from streams.message import message_of

BATCH_RECORDS = 2000


class _Stamp(Struct):
    """What of a row is read once the takeover is done."""

    node_id: str
    offset: int


_stamp = msgspec.json.Decoder(_Stamp).decode


class _Seen:
    """What stands in one partition of `node-resources`, as far as it is read."""

    def __init__(self, position: int, claims_end: int) -> None:
        self.position, self.claims_end = position, claims_end
        self.found: dict[str, NodeResources] | None = {}
        """The last row of each node, until they are compared with the fold; None afterwards."""
        self.highest: dict[str, int] = {}
        self.stale: set[str] = set()

    def take(self, record: Record) -> None:
        """One more row. What cannot be read is the watcher's to report, but a node whose last row it is needs another."""
        self.position = record.offset + 1
        try:
            stamp = _stamp(record.value)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.stale.add(record.key.decode(errors="replace"))
            return
        if stamp.offset < self.highest.get(stamp.node_id, -1):
            self.stale.add(stamp.node_id)
        else:
            self.highest[stamp.node_id] = stamp.offset
            self.stale.discard(stamp.node_id)
        if self.found is not None:
            row = decode_keyed(record.topic, record.key, record.value)
            if isinstance(row, NodeResources):
                self.found[row.node_id] = row
            else:
                self.stale.add(stamp.node_id)


class Republisher:
    """See the module. Works on the folds of `folder`, so it is hosted behind it."""

    name = "republisher"

    def __init__(self, log: Log, folder: Folder) -> None:
        self._log, self._folder = log, folder
        self._seen: dict[int, _Seen] = {}

    def turn(self, partitions: frozenset[int]) -> int:
        """One batch of each owned partition, and at its end the rows that are to be mended; returns how many rows were read."""
        owned = partitions & self._folder.folds.keys()
        for lost in self._seen.keys() - owned:
            del self._seen[lost]
        count = 0
        for partition in sorted(owned):
            seen = self._seen.get(partition)
            if seen is None:
                start, end = self._log.start(topics.NODE_RESOURCES, partition), self._log.end(topics.CLAIMS, partition)
                seen = self._seen[partition] = _Seen(start, end)
            records = self._read(partition, seen)
            count += len(records)
            for record in records:
                seen.take(record)
            if self._is_read(partition, seen, len(records)):
                self._mend(self._folder.folds[partition], seen)
        return count

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        """See `Engine`."""
        return {Partition(topics.NODE_RESOURCES, number): self._seen[number].position for number in partitions & self._seen.keys()}

    def close(self) -> None:
        """Nothing is held."""

    def _read(self, partition: int, seen: _Seen) -> list[Record]:
        # Of rows that were dropped newer ones of the same nodes stand above.
        seen.position, records = read_at_hand(self._log, Partition(topics.NODE_RESOURCES, partition), seen.position, BATCH_RECORDS)
        return records

    def _is_read(self, partition: int, seen: _Seen, count: int) -> bool:
        """Whether nothing stands behind what was read. Of a takeover, in which what is missing is published, the log itself says it."""
        if seen.found is None:
            return count < BATCH_RECORDS
        return seen.position >= self._log.end(topics.NODE_RESOURCES, partition)

    def _mend(self, fold: Fold, seen: _Seen) -> None:
        """Publish the fold's row of each node whose last row in the log is an older one.

        That row is right in any case, so one that was published already and is not read back yet does no harm.
        """
        folded = fold.ledger.next_offset
        if seen.found is not None:
            if folded < seen.claims_end:
                # The fold still catches up: what others published from further on is newer.
                return
            seen.stale |= {node_id for node_id, row in seen.found.items() if _differs(fold, row)}
            # A fold that begins at a snapshot publishes only what changes from there on, and nobody may have published the rest.
            seen.stale |= fold.ledger.nodes.keys() - seen.found.keys()
            seen.found = None
        # Whoever is ahead of us is the owner; then we are the zombie, and have nothing to mend.
        stale = sorted(node_id for node_id in seen.stale & fold.ledger.nodes.keys() if seen.highest.get(node_id, -1) < folded)
        if stale:
            self._log.append([_message(_row(fold, node_id)) for node_id in stale])
            self._folder.metrics.republished.inc(len(stale))
            seen.stale.difference_update(stale)


def _row(fold: Fold, node_id: str) -> NodeResources:
    return node_resources(fold.ledger, node_id, fold.observed, fold.audit.leaks.count(node_id))


def _differs(fold: Fold, row: NodeResources) -> bool:
    """Whether a row says something else than the fold; the offset alone is no difference, since it moves with every record."""
    return row.node_id in fold.ledger.nodes and replace(_row(fold, row.node_id), offset=row.offset) != row


def _message(row: NodeResources) -> Message:
    origin = f"{topics.CLAIMS}/{row.partition}@{row.offset}"
    event_id, source = f"{origin}/{event_type(row)}/again", "claimlog/republisher"
    return message_of(topics.NODE_RESOURCES, row, event_id=event_id, source=source, causation_id=origin, partition=row.partition)
