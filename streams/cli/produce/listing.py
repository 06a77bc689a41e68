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
from streams.cli.produce.publishing import BATCH_RECORDS, Persistent, last_epochs, message
from streams.cli.reading.state_at import state_at
from streams.clock import Clock
from streams.log.base import Log
from streams.reconciler import CARRIERS


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
    """Which nodes another producer has ever audited, as the ledger knows, and the audits that it does not have yet."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next: dict[int, int] = {}
        self._nodes: set[str] = set()

    def nodes(self) -> AbstractSet[str]:
        """All of them until now; the ledger is asked once. If it raises, the same are read again."""
        if not self._next:
            self._ask_the_ledger()
        for number, offset in self._next.items():
            first, end = max(offset, self._log.start(AUDITS, number)), self._log.end(AUDITS, number)
            for record in between(self._log, AUDITS, number, first, end, BATCH_RECORDS):
                self._next[number] = record.offset + 1
                audit = decode_keyed(AUDITS, record.key, record.value)
                if not isinstance(audit, Unreadable) and audit.producer != PRODUCER:
                    self._nodes.add(audit.node_id)
        return self._nodes

    def _ask_the_ledger(self) -> None:
        carried = self._log.committed(CARRIERS, AUDITS)  # Before the fold, which has all of these then.
        for ledger in state_at(self._log, views=False, pending=False).ledgers.values():
            self._nodes.update(node_id for node_id, node in ledger.nodes.items() if node.last_audits().keys() - {PRODUCER})
        self._next = {number: carried.get(number, 0) for number in self._log.ends(AUDITS)}
