"""What the verbs of `produce` share: a log to publish into, and which epoch a producer used last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from producers.source import Said
from projections.reading import between
from schemas.codec import Unreadable, decode_keyed
from schemas.envelope import Headers
from schemas.topics import AUDITS
from streams.log.base import Log, LogFull, LogUnreachable, Message, Record
from streams.patience import PAUSE_SECONDS, Patience
from streams.reconciler import CARRIERS

TAIL_RECORDS = 5_000
"""How far back the last epoch is looked for. One farther back is no later than the log's own time there, unless its machine's clock was
ahead: so that time stands for it where none is found."""
BATCH_RECORDS = 1_000

CARRIED_SECONDS_MAX = 30.0
"""A worker of a cluster has its partitions within seconds, also on a busy machine; who starts none wants his requests all the same."""
CARRIED_SECONDS_TOLD = 2.0
CARRIED_PAUSE_SECONDS = 0.1

MISSED_MAX = 3
"""A process that let as many reports be missed has ended, for all that the log can tell."""
ENDED_MS_MIN = 5_000
"""For one that reports all the time: clocks are not that exact, and a busy machine pauses."""

Answer = TypeVar("Answer")


class Reporting(NamedTuple):
    """A process that reports a node: from each report to the next, and since its last one."""

    every_ms: int
    ago_ms: int

    @property
    def ends_ms(self) -> int:
        """How long it has to say nothing until it counts as ended."""
        return max(MISSED_MAX * self.every_ms, ENDED_MS_MIN)


class Persistent:
    """Does something with a log again while it is full or out of reach, as long as other processes wait for it (see `Patience`).

    `sleep` waits for some seconds.
    """

    def __init__(self, tell: Callable[[str], None], clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._tell, self._clock, self._sleep = tell, clock, sleep

    def __call__(self, act: Callable[[], Answer]) -> Answer:
        """What `act` returns. It must go on where it was: append the same bytes again. Raises LogUnreachable when the time is up."""
        patience = Patience(self._tell, self._clock)
        while True:
            try:
                answer = act()
            except (LogFull, LogUnreachable) as trouble:
                patience.met(trouble)
                self._sleep(PAUSE_SECONDS)
            else:
                patience.over()
                return answer


def publisher(log: Log) -> Callable[[str, bytes, bytes, Headers], None]:
    """A `publish` for sources: each record durable before it returns."""

    def publish(topic: str, key: bytes, value: bytes, headers: Headers) -> None:
        log.append([Message(topic, key, value, headers)])

    return publish


def wait_until_carried(
    log: Log,
    persistent: Persistent,
    tell: Callable[[str], None],
    clock: Callable[[], float],
    *,
    seconds_max: float = CARRIED_SECONDS_MAX,
) -> bool:
    """Wait until what hosts have reported by now is in the ledger; False, and said, if nobody has carried it there in time.

    A stream processor that is just starting would else see a fleet's first requests refused, as no node is known yet.
    """
    ends = persistent(lambda: log.ends(AUDITS))
    began, is_told = clock(), False
    while True:
        carried = persistent(lambda: log.committed(CARRIERS, AUDITS))
        if all(carried.get(number, 0) >= end for number, end in ends.items()):
            return True
        waited = clock() - began
        if waited > seconds_max:
            tell(f"nobody has carried the hosts' reports into the ledger in {seconds_max:.0f} s: requests begin all the same")
            return False
        if waited > CARRIED_SECONDS_TOLD and not is_told:
            tell("waiting until the hosts' reports are in the ledger; `claimlog run` carries them")
            is_told = True
        log.wait({}, CARRIED_PAUSE_SECONDS)


def message(said: Said) -> Message:
    """An observation as a message for a batch."""
    return Message(said.topic, said.key, said.value, said.headers)


def last_epoch(log: Log, producer: str) -> Callable[[str, str], int | None]:
    """Looks up the highest epoch of `producer` for a node among the newest records of the node's partition.

    Where it is not among them but may be before them, it is the time of the oldest of them: the next is above it, whatever the clock says.
    """

    def look(topic: str, node_id: str) -> int | None:
        key = node_id.encode()
        found, before_ms = _tail_epochs(log, producer, topic, log.partition(topic, key), {key})
        return found.get(key, before_ms)

    return look


def last_epochs(log: Log, producer: str, topic: str, node_ids: Iterable[str]) -> dict[str, int | None]:
    """The same for many nodes: each partition is read once."""
    by_partition: dict[int, set[bytes]] = {}
    for node_id in node_ids:
        by_partition.setdefault(log.partition(topic, node_id.encode()), set()).add(node_id.encode())
    epochs: dict[str, int | None] = {}
    for partition, keys in by_partition.items():
        found, before_ms = _tail_epochs(log, producer, topic, partition, keys)
        epochs |= {key.decode(): found.get(key, before_ms) for key in keys}
    return epochs


def reporting(log: Log, producer: str, node_id: str, now_ms: int) -> Reporting | None:
    """The process that goes on reporting a node, by its newest audits: two of one epoch, the last of them just now by the log's time.

    One that looks once has an epoch of its own each time, and does not. The pause is by its own clock: a spool carries many at once.
    """
    key = node_id.encode()
    newest: dict[int, Any] = {}
    found: dict[int, Reporting] = {}
    for record in _tail(log, AUDITS, log.partition(AUDITS, key)):
        if (audit := _own(record, producer, {key})) is None:
            continue
        before = newest.setdefault(audit.epoch, audit)
        if audit.counter > before.counter:
            found[audit.epoch] = Reporting(max(0, audit.mono_ms - before.mono_ms), now_ms - record.time_ms)
            newest[audit.epoch] = audit
    return min((each for each in found.values() if abs(each.ago_ms) < each.ends_ms), key=attrgetter("ago_ms"), default=None)


def _tail_epochs(log: Log, producer: str, topic: str, partition: int, keys: AbstractSet[bytes]) -> tuple[dict[bytes, int], int | None]:
    """The highest epoch of each key there, and the time of the oldest record looked at; None if there is nothing before that one."""
    found: dict[bytes, int] = {}
    before_ms: int | None = None
    for number, record in enumerate(_tail(log, topic, partition)):
        if number == 0 and record.offset > 0:
            before_ms = record.time_ms
        if (event := _own(record, producer, keys)) is not None:
            found[record.key] = max(event.epoch, found.get(record.key, 0))
    return found, before_ms


def _tail(log: Log, topic: str, partition: int) -> Iterator[Record]:
    end = log.end(topic, partition)
    return between(log, topic, partition, max(log.start(topic, partition), end - TAIL_RECORDS), end, BATCH_RECORDS)


def _own(record: Record, producer: str, keys: AbstractSet[bytes]) -> Any:
    """The observation in the record, if it is one of `producer` under one of the keys, else None."""
    if record.key not in keys:
        return None
    event = decode_keyed(record.topic, record.key, record.value)
    return None if isinstance(event, Unreadable) or event.producer != producer else event
