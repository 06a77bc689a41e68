"""What the benchmarks on Kafka share: a broker, processes of the product's own, and a ledger with as much history as one asks for.

History has the append times that its content was made for, on topics with CreateTime as a mirror has them: claims are confirmed, settle
and end as they did while it was made, whatever time it takes to write it down.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # public, though not in its __all__
from msgspec import Struct, structs

from producers.ledger_load import STEP_MS, LedgerRecord, ledger_records
from schemas import lifecycle
from schemas.audits import HypervisorAudited
from schemas.claims import InstanceObserved, NodeObserved, PartitionOpened
from schemas.codec import CLAIMS_DECODER, encode
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE
from streams.ledger_topics import open_ledger
from streams.log.base import TopicSpec
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings, parse_settings
from streams.log.kafka_topics import wanted
from tests.kafka_broker import Broker

ROOT = Path(__file__).parents[1]
PROGRAM = "from streams.cli.main import main; main()"
HELD_PER_NODE = 20
REQUEST_PARTITIONS = 4
PATIENCE_SECONDS = 900.0
EVENTS: dict[str, type[lifecycle.LifecycleEvent]] = {
    "started": lifecycle.InstanceStarted,
    "deleted": lifecycle.InstanceDeleted,
    "departed": lifecycle.InstanceDeparted,
}


JAVA = ("java", "-Xms1g", "-Xmx1g", "-XX:+UseSerialGC", "-Xmn48m", "-XX:MaxTenuringThreshold=1")
"""As a broker that stays runs: with the compiler that takes its time, which the tests' brokers do without, and with the short collections
that docs/operations.md advises where a broker shares its cores."""


@contextmanager
def a_broker(folder: Path) -> Iterator[tuple[str, int | None]]:
    """The address of a broker, and its process if it is our own: that of KAFKA_BOOTSTRAP is not."""
    given = os.environ.get("KAFKA_BOOTSTRAP")
    if given:
        yield given, None
        return
    broker = Broker(folder, java=JAVA)
    broker.start()
    try:
        yield broker.address, broker.pid
    finally:
        broker.stop()


def resident_mib(pid: int) -> float:
    """What a process has resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def processor_seconds(pid: int) -> float:
    """The processor time that a process has taken, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Process:
    """One process of the product's own, `claimlog ARGUMENTS`; `said` is the file that has what it says."""

    def __init__(self, said: Path, *arguments: str, command: Iterable[str] = ("-c", PROGRAM)) -> None:
        self.said = said
        self.began = time.perf_counter()
        with said.open("ab") as out:
            self.running = subprocess.Popen([sys.executable, *command, *arguments], cwd=ROOT, stdout=out, stderr=out)

    @property
    def pid(self) -> int:
        """Its id."""
        return self.running.pid

    def runs(self) -> None:
        """Raises AssertionError with what it said if it ended."""
        assert self.running.poll() is None, f"{self.said.stem} ended: {self.said.read_text()[-2000:]}"

    def wait_for_words(self, words: str, look_seconds: float = 0.02) -> float:
        """Until it has said this; seconds since it began."""
        while words not in self.said.read_text():
            self.runs()
            assert time.perf_counter() - self.began < PATIENCE_SECONDS, f"{self.said.stem} does not say {words!r}"
            time.sleep(look_seconds)
        return time.perf_counter() - self.began

    def finish(self) -> float:
        """Until it ends by itself, without a fault; seconds since it began."""
        code = self.running.wait(PATIENCE_SECONDS)
        assert code == 0, f"{self.said.stem} ended with {code}: {self.said.read_text()[-2000:]}"
        return time.perf_counter() - self.began

    def kill(self) -> None:
        """kill -9."""
        self.running.kill()
        self.running.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running.poll() is None:
            self.running.terminate()
            try:
                self.running.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()


class History(Struct, frozen=True):
    """A ledger with history: how to reach it, and how many records stand in `claims` and wait in the topics of observations."""

    settings: KafkaSettings
    claims: int
    waiting: int

    @property
    def address(self) -> str:
        """For `--log`."""
        return f"{self.settings.place}?single-broker"


def history(bootstrap: str, prefix: str, *, nodes: int, records: int, partitions: int, observed: int = 0) -> History:
    """A new ledger with `records` records that end now.

    The observations among the last `observed` of them stand in the topics of their producers, as if nobody had carried them yet; the
    claims and releases among those are in `claims` already.
    """
    settings = parse_settings(f"kafka://{bootstrap}/{prefix}?single-broker", {})
    _create(settings, partitions)
    with KafkaLog.open(settings) as log:
        ledger_id = log.ledger_id
    start_ms = int(time.time() * 1000) - records * STEP_MS
    made = ledger_records(1, nodes=nodes, records=records, partitions=partitions, held_max=HELD_PER_NODE * nodes, start_ms=start_ms)
    counts = Counter(_send(settings, _placed(made, ledger_id, partitions, records - observed)))
    with KafkaLog.open(settings) as log:
        open_ledger(log, request_partitions=REQUEST_PARTITIONS)
    return History(settings, counts[CLAIMS], counts[AUDITS] + counts[LIFECYCLE])


def _create(settings: KafkaSettings, partitions: int) -> None:
    config = wanted(TopicSpec(CLAIMS, partitions), single_broker=True) | {"message.timestamp.type": "CreateTime"}
    topics = [NewTopic(settings.topic(name), partitions, 1, config=config) for name in (CLAIMS, AUDITS, LIFECYCLE)]
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    for made in admin.create_topics(topics).values():
        made.result(60)


def _placed(made: Iterable[LedgerRecord], ledger_id: str, partitions: int, carried: int) -> Iterator[tuple[str, LedgerRecord]]:
    """Each record with the topic it goes to; from the record `carried` on observations are as their producers said them."""
    for number, record in enumerate(made):
        if number < partitions:
            opened = PartitionOpened(ledger_id=ledger_id, partition=record.partition, partitions=partitions)
            yield CLAIMS, record._replace(value=encode(opened))
        elif number < carried:
            yield CLAIMS, record
        else:
            event = CLAIMS_DECODER.decode(record.value)
            if isinstance(event, NodeObserved):
                yield AUDITS, record._replace(value=encode(_audit(event)))
            elif isinstance(event, InstanceObserved):
                yield LIFECYCLE, record._replace(value=encode(_event(event)))
            else:
                yield CLAIMS, record


def _audit(event: NodeObserved) -> HypervisorAudited:
    names = set(HypervisorAudited.__struct_fields__)
    return HypervisorAudited(**{name: value for name, value in structs.asdict(event).items() if name in names})


def _event(event: InstanceObserved) -> lifecycle.LifecycleEvent:
    return EVENTS[event.change](**{name: value for name, value in structs.asdict(event).items() if name != "change"})


def _send(settings: KafkaSettings, records: Iterable[tuple[str, LedgerRecord]]) -> Iterator[str]:
    """Write records with their own times; gives the topic of each."""
    config: dict[str, Any] = {"bootstrap.servers": settings.bootstrap, "linger.ms": 50, "enable.idempotence": True}
    producer, failed = Producer(config), list[Any]()
    for topic, record in records:
        while True:
            try:
                producer.produce(
                    settings.topic(topic), record.value, record.key, record.partition, timestamp=record.time_ms,
                    on_delivery=lambda error, _: failed.append(error) if error is not None else None,
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.1)
        yield topic
    assert producer.flush(PATIENCE_SECONDS) == 0, "the broker does not take the history in time"
    assert not failed, f"{len(failed)} records of the history failed: {failed[0]}"
