"""What `--hypervisors` lists, told on the log, and told again while its owner goes on reading; other producers' nodes are left to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from producers.openstack import PRODUCER
from producers.openstack_hosts import ListedHost, Listing, read_hypervisors
from producers.source import epoch_after, said
from schemas.codec import Unreadable, decode_keyed
from schemas.few import few
from schemas.topics import AUDITS
from streams.cli.given.documents import file_bytes
from streams.cli.printed.printable import say
from streams.cli.problems import UsageProblem
from streams.cli.produce.publishing import Persistent, last_epochs, message
from streams.cli.reading.state_at import state_at
from streams.clock import Clock, wall_clock_ms
from streams.log.base import Log
from streams.log.reading import newer
from streams.reconciler import CARRIERS


class ListFile:
    """Nova's list of hypervisors in a file, which may be written anew while a cloud is followed. Raises UsageProblem."""

    def __init__(self, path: Path) -> None:
        self._path, self._says = path, f"--hypervisors {path}"
        self._text = file_bytes(path, self._says)
        self._problem = ""
        self.hosts = self._read(self._text)
        self.written_us = self._written_us()
        """When it was written: what it says was so then."""

    def newer(self) -> list[ListedHost] | None:
        """What it lists if that is not what it was; None also where it cannot be read now, which is said once."""
        if self._path.exists() and not self._path.is_file():
            return None  # A pipe, which says it once.
        try:
            text = file_bytes(self._path, self._says)
            if text == self._text:
                self._problem = ""
                return None
            hosts = self._read(text)
        except UsageProblem as problem:
            if self._problem != str(problem):
                self._problem = str(problem)
                say(f"{problem}; what it listed before is said again until this is mended")
            return None
        self._text, self._problem, self.written_us = text, "", self._written_us()
        return hosts

    def _written_us(self) -> int:
        return self._path.stat().st_mtime_ns // 1000 if self._path.is_file() else wall_clock_ms() * 1000

    def _read(self, text: bytes) -> list[ListedHost]:
        try:
            return read_hypervisors(text)
        except ValueError as problem:
            raise UsageProblem(f"{self._says}: {problem}") from None


class Listed:
    """The nodes of a list, as long as nobody else reports them. `located` hears of each host of each list, once that has been told."""

    def __init__(
        self,
        log: Log,
        hosts: Sequence[ListedHost],
        clock: Clock,
        persistent: Persistent,
        newer: Callable[[], Sequence[ListedHost] | None] = lambda: None,
        located: Callable[[ListedHost], None] = lambda _: None,
        *,
        interval_ms: int,
    ) -> None:
        self._log, self._clock, self._persistent, self._newer, self._located = log, clock, persistent, newer, located
        self._interval_ms = interval_ms
        self._hosts: Sequence[ListedHost] = ()
        self._unlocated: Sequence[ListedHost] = ()
        self._listing = self._begun(hosts)
        self._others = OtherReports(log)
        self._left: set[str] = set()
        """Nodes of which it was said that they are left to others."""
        self._down: set[str] = set()
        """And that Nova calls them down."""

    def tell(self) -> None:
        """Say what the list says by now, if it is time."""
        if not self._listing.is_due(self._clock.boot_ms()):
            return
        hosts = self._newer()
        if hosts is not None:
            if gone := sorted({each.node_id for each in self._hosts} - {each.node_id for each in hosts}):
                say(f"--hypervisors lists {few(gone)} no longer: silent soon, unless another producer audits it")
            self._listing = self._begun(hosts)
        elsewhere = self._persistent(self._others.nodes)
        if self._listing.is_overtaken(self._others.epochs):
            self._listing = self._begun(self._hosts)  # By a process that read the list once: what is said in an older epoch is not heard.
        audits = self._listing.audits(self._clock.wall_ms(), self._clock.boot_ms(), elsewhere)
        if audits:
            messages = [message(said(AUDITS, audit)) for audit in audits]
            self._persistent(lambda: self._log.append(messages))
        if news := sorted({each.node_id for each in self._hosts} & elsewhere - self._left):
            self._left.update(news)
            say(f"another producer audits {few(news)}: what --hypervisors says there is left out, also when that one falls silent")
        down = {each.node_id for each in self._hosts if each.is_down} - elsewhere
        if news := sorted(down - self._down):
            say(f"--hypervisors lists {few(news)} as down: not reported, and silent soon, until it lists them as up")
        self._down = down
        for each in self._unlocated:
            self._located(each)
        self._unlocated = ()

    def _begun(self, hosts: Sequence[ListedHost]) -> Listing:
        """A list is told in an epoch of its own."""
        used = self._persistent(lambda: last_epochs(self._log, PRODUCER, AUDITS, [each.node_id for each in hosts]))
        epochs = {node_id: epoch_after(last, self._clock.wall_ms()) for node_id, last in used.items()}
        self._hosts = self._unlocated = hosts
        return Listing(hosts, producer=PRODUCER, epochs=epochs, interval_ms=self._interval_ms)


class OtherReports:
    """Which nodes another producer has ever audited, as the ledger knows, and the audits that it does not have yet."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next: dict[int, int] = {}
        self._nodes: set[str] = set()
        self.epochs: dict[str, int] = {}
        """In which this producer has spoken of a node last, as far as was read."""

    def nodes(self) -> AbstractSet[str]:
        """All of them until now; the ledger is asked once. If it raises, the same are read again."""
        if not self._next:
            self._ask_the_ledger()
        for record in newer(self._log, AUDITS, self._next):
            audit = decode_keyed(AUDITS, record.key, record.value)
            if isinstance(audit, Unreadable):
                continue
            if audit.producer != PRODUCER:
                self._nodes.add(audit.node_id)
            else:
                self.epochs[audit.node_id] = max(audit.epoch, self.epochs.get(audit.node_id, 0))
        return self._nodes

    def _ask_the_ledger(self) -> None:
        carried = self._log.committed(CARRIERS, AUDITS)  # Before the fold, which has all of these then.
        for ledger in state_at(self._log, views=False, pending=False).ledgers.values():
            self._nodes.update(node_id for node_id, node in ledger.nodes.items() if node.last_audits().keys() - {PRODUCER})
        self._next = {number: carried.get(number, 0) for number in self._log.ends(AUDITS)}
