"""A broker of the test's own with a ledger on it, and the processes of claimlog there: workers, schedulers. All of them may be killed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from streams.ledger_topics import REQUEST_PARTITIONS_DEFAULT
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from tests.faults.harness import CLAIMLOG, Process, site
from tests.faults.shared_site import UNMISSED, SharedSite
from tests.kafka_broker import Broker, started


class KafkaSite(SharedSite):
    """One ledger on one broker, which no other test has."""

    broker: Broker

    def opened(self, ledger_partitions: int = 4, request_partitions: int = REQUEST_PARTITIONS_DEFAULT) -> KafkaLog:
        """The log, made if it is missing."""
        return super().opened(ledger_partitions, request_partitions)

    def worker(self, name: str, *options: str, claimlog: Sequence[str] = CLAIMLOG) -> Process:
        """A worker of the stream processor. These tests audit nodes once."""
        return super().worker(name, *UNMISSED, *options, claimlog=claimlog)


@contextmanager
def kafka_site(folder: Path) -> Iterator[KafkaSite]:
    """A site with its broker in `folder`; nothing of it runs on when this ends. Skips where no broker can be had, which fails on CI."""
    with started(Broker(folder / "broker")) as broker, site(folder) as processes:
        settings = KafkaSettings(bootstrap=broker.address, prefix="faults", single_broker=True)
        yield KafkaSite(processes, settings, broker)
