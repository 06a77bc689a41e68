"""A broker of the test's own with a ledger on it, and the processes of claimlog there: workers, schedulers. All of them may be killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from streams.ledger_topics import open_ledger
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from tests.faults.harness import CLAIMLOG, Process, Site, site
from tests.kafka_broker import Broker, started

PREFIX = "faults"
SESSION_SECONDS = 6.0
"""How long the partitions of a process that was killed wait for others: the least that brokers allow."""


class KafkaSite(Struct):
    """One ledger on one broker. Processes, folders and what is said of them are those of `site`, but for the log."""

    site: Site
    broker: Broker

    @property
    def settings(self) -> KafkaSettings:
        return KafkaSettings(bootstrap=self.broker.address, prefix=PREFIX, single_broker=True)

    @property
    def spec(self) -> str:
        """The log as `--log` names it."""
        return f"{self.settings.place}?single-broker=true"

    @property
    def processes(self) -> dict[str, Process]:
        return self.site.processes

    def opened(self, ledger_partitions: int = 4) -> KafkaLog:
        """The log, made if it is missing."""
        log = KafkaLog.open(self.settings)
        open_ledger(log, ledger_partitions=ledger_partitions)
        return log

    def home(self, worker: str) -> Path:
        """A worker's own directory."""
        return self.site.folder / worker

    def worker(self, name: str, *options: str) -> Process:
        """A worker of the stream processor. Nodes are not missed before an hour: these tests audit them once."""
        command = [*CLAIMLOG, "run", "--only", "processor", "--log", self.spec, "--name", name, "--state", str(self.home(name))]
        return self.site.start(name, [*command, "--audit-interval", "3600", *options])

    def scheduler(self, name: str, *options: str) -> Process:
        """A scheduler."""
        command = [*CLAIMLOG, "run", "--only", "scheduler", "--log", self.spec, "--name", name, "--lease-timeout", str(SESSION_SECONDS)]
        return self.site.start(name, [*command, *options])


@contextmanager
def kafka_site(folder: Path) -> Iterator[KafkaSite]:
    """A site with its broker in `folder`; nothing of it runs on when this ends. Skips where no broker can be had, which fails on CI."""
    with started(Broker(folder / "broker")) as broker, site(folder) as processes:
        yield KafkaSite(processes, broker)
