"""`produce --spool FILE`: what is produced goes to a file of the embedded log first, and from there to the log that --log names.

Two ends, two threads: the producing one only ever waits for this machine's disk; the forwarding one waits for the log, however long it is
away or full, also from the start. The file remembers the epochs too: a producer that starts while the log is away takes higher ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from shutil import disk_usage
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from producers.source import Said
from producers.spool import Kept, SpoolFull, forward
from streams.cli.problems import UsageProblem
from streams.cli.produce.publishing import last_epoch, message
from streams.ledger_topics import open_ledger
from streams.log.base import Log, LogFull, LogUnreachable, Message, Partition, TopicSpec, file_of
from streams.log.reading import partition_records
from streams.log.sqlite import SqliteLog
from streams.patience import Trouble, again

SPOOLED, EPOCHS = "spooled", "epochs"
TOPIC_HEADER = "claimlog-topic"
IDLE_SECONDS = 0.5
PAUSE_SECONDS = 1.0
"""Between two attempts to reach a log that is away."""
ROOM_BYTES = 64 << 20
"""So much is left free on the disk while something waits: to forget what was forwarded takes room, too, several times SQLite's WAL."""
WAL_BYTES = 32 << 20
"""What the write-ahead log may take beside the file."""
ANSWER_SECONDS_MAX = 60.0
"""For how long a question about the log's last epoch may take; what the file remembers answers it then."""

Answer = TypeVar("Answer")


class _Stamp(Struct):
    node_id: str
    epoch: int


class SqliteSpoolStore:
    """A `producers.spool.SpoolStore` in a file of the embedded log; one instance belongs to one thread."""

    def __init__(self, log: SqliteLog) -> None:
        self._log = log
        self._epochs = {record.key.decode(): int(record.value) for record in partition_records(log, EPOCHS, 0)}
        self._gone = 0

    @classmethod
    def open(cls, path: Path) -> SqliteSpoolStore:
        """Open the file, or make it. Raises UsageProblem for a log of something else, LogUnreachable, LogDamaged, LogFull."""
        log = SqliteLog.open(path, create=True)
        if others := sorted(log.topics().keys() - {SPOOLED, EPOCHS}):
            log.close()
            raise UsageProblem(f"--spool {path}: this is a log of its own, with {others[0]} and more in it; name a file that is new")
        log.create([TopicSpec(SPOOLED, 1), TopicSpec(EPOCHS, 1, compacted=True)])
        log.compact(EPOCHS, 0)
        return cls(log)

    def epoch(self, topic: str, node_id: str) -> int | None:
        """The last epoch of a node that went through this file."""
        return self._epochs.get(f"{topic}/{node_id}")

    def append(self, records: Sequence[Said]) -> None:
        """See `SpoolStore`; what is kept is kept with its epoch."""
        if disk_usage(self._log.path.parent).free < ROOM_BYTES and self.start() < self.end() and not self._has_room_inside():
            raise SpoolFull(f"{self._log.path}: less than {ROOM_BYTES >> 20} MiB are free on its disk, and that much is left free")
        newer: dict[str, int] = {}
        for said in records:
            stamp = msgspec.json.decode(said.value, type=_Stamp)
            name = f"{said.topic}/{stamp.node_id}"
            if stamp.epoch > newer.get(name, self._epochs.get(name, -1)):
                newer[name] = stamp.epoch
        kept = [Message(SPOOLED, said.key, said.value, ((TOPIC_HEADER, said.topic.encode()), *said.headers)) for said in records]
        try:
            self._log.append(kept + [Message(EPOCHS, name.encode(), str(epoch).encode()) for name, epoch in newer.items()])
        except LogFull as problem:
            raise SpoolFull(str(problem)) from problem
        self._epochs |= newer

    def _has_room_inside(self) -> bool:
        """Whether the file, which never shrinks, has room of what was forwarded, and the disk as much as it takes to use that."""
        return self._log.spare_bytes() >= WAL_BYTES // 4 and disk_usage(self._log.path.parent).free >= WAL_BYTES

    def read(self, offset: int, records_max: int) -> list[Kept]:
        """See `SpoolStore`."""
        found = []
        for record in self._log.read(SPOOLED, 0, offset, records_max=records_max):
            (_, topic), *headers = record.headers
            found.append(Kept(record.offset, Said(topic.decode(), record.key, record.value, tuple(headers))))
        return found

    def drop(self, before: int) -> None:
        """See `SpoolStore`. On a full disk, where even this takes room, they are passed over, and forgotten when there is some."""
        self._gone = before
        with suppress(LogFull):
            self._log.truncate(SPOOLED, 0, before)

    def start(self) -> int:
        """See `SpoolStore`."""
        start = self._log.start(SPOOLED, 0)
        if start < self._gone:
            self.drop(self._gone)
        return max(start, self._gone)

    def end(self) -> int:
        """See `SpoolStore`."""
        return self._log.end(SPOOLED, 0)

    def wait(self, timeout_seconds: float) -> None:
        """Wait for a record behind the last one."""
        self._log.wait({Partition(SPOOLED, 0): self.end()}, timeout_seconds)

    def close(self) -> None:
        """Let go of the file."""
        self._log.close()


class Forwarder:
    """Carries what is in the file on to a log, in a thread, for as long as it takes."""

    def __init__(self, path: Path, open_target: Callable[[], Log], producer: str, tell: Callable[[str], None]) -> None:
        """`open_target` is called in the thread, again while it raises LogUnreachable or LogFull.

        `tell` hears when the log goes and comes, or has no room and has some again.
        """
        self.failure: BaseException | None = None
        """What ended the thread, if it was not `stop`."""
        self._path, self._open_target, self._producer, self._tell = path, open_target, producer, tell
        self._questions: SimpleQueue[tuple[Callable[[Log], Any], SimpleQueue[Any]]] = SimpleQueue()
        self._stop = threading.Event()
        self._tried = threading.Event()
        self._reaches = False
        self._trouble: Trouble | None = None
        self._thread = threading.Thread(target=self._run, name="forwarder", daemon=True)
        self._thread.start()

    def last_epoch(self, topic: str, node_id: str) -> int | None:
        """The last epoch of a node in the log; None if there is none, or the log is away."""
        return self.ask(lambda log: last_epoch(log, self._producer)(topic, node_id))

    def ask(self, question: Callable[[Log], Answer]) -> Answer | None:
        """What a question about the log is answered; None while the log is away."""
        self._tried.wait(ANSWER_SECONDS_MAX)
        if not self._reaches:
            return None
        answers: SimpleQueue[Answer | None] = SimpleQueue()
        self._questions.put((question, answers))
        try:
            return answers.get(timeout=ANSWER_SECONDS_MAX)
        except Empty:
            return None

    def stop(self) -> None:
        """End soon; what is in the file stays there."""
        self._stop.set()
        self._thread.join(PAUSE_SECONDS + 4 * IDLE_SECONDS)

    def _run(self) -> None:
        store: SqliteSpoolStore | None = None
        target: Log | None = None
        try:
            store = SqliteSpoolStore.open(self._path)
            while not self._stop.is_set():
                try:
                    if target is None:
                        target = self._opened()
                    self._answer(target)
                    sent = _forward(store, target)
                except (LogFull, LogUnreachable) as trouble:
                    self._met(trouble)
                    self._stop.wait(PAUSE_SECONDS)
                    continue
                self._passed(store)
                if not sent and self._questions.empty():
                    store.wait(IDLE_SECONDS)
        except BaseException as failure:
            self.failure = failure
        finally:
            self._reaches = False
            self._tried.set()
            for each in (target, store):
                if each is not None:
                    each.close()

    def _opened(self) -> Log:
        target = self._open_target()
        try:
            if (path := file_of(target)) is not None and path.samefile(self._path):
                raise UsageProblem(f"--spool {self._path} and --log are one file; give the spool a file of its own")
            open_ledger(target)
        except BaseException:
            target.close()
            raise
        return target

    def _answer(self, target: Log) -> None:
        """Answer what was asked, as a log can that is there, with or without room."""
        while not self._questions.empty():
            question, answers = self._questions.get()
            try:
                answers.put(question(target))
            except LogUnreachable:
                answers.put(None)
                raise
        self._reaches = True
        self._tried.set()

    def _met(self, trouble: Trouble) -> None:
        self._reaches = self._reaches and isinstance(trouble, LogFull)
        self._tried.set()
        while not self._reaches and not self._questions.empty():
            self._questions.get()[1].put(None)
        if type(self._trouble) is not type(trouble):
            self._tell(f"what is produced waits in {self._path}: {trouble}")
        self._trouble = trouble

    def _passed(self, store: SqliteSpoolStore) -> None:
        if self._trouble is not None and store.start() == store.end():
            self._tell(f"{again(self._trouble)}, and nothing waits in {self._path} any more")
            self._trouble = None


def _forward(store: SqliteSpoolStore, target: Log) -> int:
    return forward(store, lambda records: target.append([message(said) for said in records]))
