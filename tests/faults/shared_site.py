"""One ledger under a prefix of its own on the broker that tests share, and the processes of claimlog on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from msgspec import Struct

from streams.ledger_topics import open_ledger
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from tests.faults.harness import CLAIMLOG, ROOT, STOP_SECONDS, Process, Site, site
from tests.kafka_broker import bootstrap

PATIENCE_SECONDS = 90.0
"""A worker starts in 2 s and is missed after 6 on a machine that has nothing else to do; this one has."""

SESSION_SECONDS = 6.0
"""How long the partitions of a process that was killed wait for others: the least that brokers allow."""

UNMISSED = ("--audit-interval", "3600")
"""Of a worker whose nodes are audited once and must not be missed before an hour."""


class SharedSite(Struct):
    """Processes, folders and what is said of them are those of `site`; the log is on Kafka."""

    site: Site
    settings: KafkaSettings

    @property
    def folder(self) -> Path:
        return self.site.folder

    @property
    def processes(self) -> dict[str, Process]:
        return self.site.processes

    @property
    def spec(self) -> str:
        """The log as `--log` names it."""
        return f"{self.settings.place}?single-broker=true" if self.settings.single_broker else str(self.settings.place)

    def opened(self, ledger_partitions: int = 2, request_partitions: int = 4) -> KafkaLog:
        """The log, made if it is missing."""
        log = KafkaLog.open(self.settings)
        open_ledger(log, ledger_partitions=ledger_partitions, request_partitions=request_partitions)
        return log

    def home(self, worker: str) -> Path:
        """A worker's own directory."""
        return self.folder / worker

    def worker(self, name: str, *options: str, claimlog: Sequence[str] = CLAIMLOG) -> Process:
        """A worker of the stream processor."""
        command = [*claimlog, "run", "--only", "processor", "--log", self.spec, "--name", name, "--state", str(self.home(name))]
        return self.site.start(name, [*command, *options])

    def scheduler(self, name: str, *options: str, claimlog: Sequence[str] = CLAIMLOG) -> Process:
        """A scheduler."""
        command = [*claimlog, "run", "--only", "scheduler", "--log", self.spec, "--name", name, "--lease-timeout", str(SESSION_SECONDS)]
        return self.site.start(name, [*command, *options])

    def verb(self, *arguments: str, claimlog: Sequence[str] = CLAIMLOG) -> subprocess.CompletedProcess[str]:
        """A verb of the command line on this log, run to its end."""
        command = [*claimlog, *arguments, "--log", self.spec]
        return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    def stop(self, name: str) -> None:
        """SIGTERM; it must end with 0."""
        process = self.processes[name]
        process.must_run()
        code = process.stop()
        assert code == 0, f"{name} ended with {code} after SIGTERM:\n{process.said()[-3000:]}"

    def fold_to_the_end(self, worker: str, *, claimlog: Sequence[str] = CLAIMLOG) -> None:
        """With every other worker stopped, let this one, on the directory it had, carry and fold what is left."""
        process = self.worker(worker, "--until-idle", claimlog=claimlog)
        code = process.ended(PATIENCE_SECONDS + STOP_SECONDS)
        assert code == 0, f"{worker} ended with {code}:\n{process.said()[-3000:]}"


@contextmanager
def shared_site(folder: Path) -> Iterator[SharedSite]:
    """A site in `folder`; whatever still runs at the end is killed. Skips where no broker can be had, which fails on CI."""
    settings = KafkaSettings(bootstrap=bootstrap(), prefix=f"faults-{uuid4().hex[:10]}", single_broker=True)
    with site(folder) as processes:
        yield SharedSite(processes, settings)


def launcher(folder: Path, *lines: str) -> list[str]:
    """A command like `claimlog`, which runs these lines before anything of claimlog's command line is imported."""
    script = folder / "launcher.py"
    script.write_text("\n".join([*lines, "from streams.cli.main import main", "main()", ""]))
    return [sys.executable, "-c", f"exec(compile(open({str(script)!r}).read(), {str(script)!r}, 'exec'))"]
