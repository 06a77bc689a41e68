"""What `--hypervisors` lists, told on the log, and told again while its owner goes on reading; other producers' nodes are left to them."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from producers.openstack import PRODUCER
from producers.openstack_hosts import ListedHost, Listing
from producers.source import epoch_after, said
from projections.reading import between
from schemas.codec import Unreadable, decode_keyed
from schemas.few import few
from schemas.topics import AUDITS
from streams.cli.printed.printable import say
from streams.cli.produce.publishing import BATCH_RECORDS, TAIL_RECORDS, Persistent, last_epochs, message
from streams.clock import Clock
from streams.log.base import Log
from streams.log.reading import places


class Listed:
    """The nodes of a list, as long as nobody else reports them."""

    def __init__(self, log: Log, hosts: Sequence[ListedHost], clock: Clock, persistent: Persistent, *, interval_ms: int) -> None:
        self._log, self._hosts, self._clock, self._persistent = log, hosts, clock, persistent
        used = persistent(lambda: last_epochs(log, PRODUCER, AUDITS, [each.node_id for each in hosts]))
        epochs = {node_id: epoch_after(last, clock.wall_ms()) for node_id, last in used.items()}
        self._listing = Listing(hosts, producer=PRODUCER, epochs=epochs, interval_ms=interval_ms)
        self._others = OtherReports(log)
        self._left: set[str] = set()
        """Nodes of which it was said that they are left to others."""

    def tell(self) -> None:
        """Say what the list says, if it is time."""
        if not self._listing.is_due(self._clock.boot_ms()):
            return
        elsewhere = self._persistent(self._others.nodes)
        audits = self._listing.audits(self._clock.wall_ms(), self._clock.boot_ms(), elsewhere)
        if audits:
            messages = [message(said(AUDITS, audit)) for audit in audits]
            self._persistent(lambda: self._log.append(messages))
        if news := sorted({each.node_id for each in self._hosts} & elsewhere - self._left):
            self._left.update(news)
            say(f"another producer audits {few(news)}: what --hypervisors says there is left out, also when that one falls silent")


class OtherReports:
    """Which nodes another producer audits, as the newest records of the log say, and those that follow."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next = {place: log.end(*place) - TAIL_RECORDS for place in places(log, AUDITS)}
        self._nodes: set[str] = set()

    def nodes(self) -> AbstractSet[str]:
        """All of them until now. If it raises, the same are read again."""
        for place, offset in self._next.items():
            for record in between(self._log, *place, max(offset, self._log.start(*place)), self._log.end(*place), BATCH_RECORDS):
                self._next[place] = record.offset + 1
                audit = decode_keyed(AUDITS, record.key, record.value)
                if not isinstance(audit, Unreadable) and audit.producer != PRODUCER:
                    self._nodes.add(audit.node_id)
        return self._nodes
