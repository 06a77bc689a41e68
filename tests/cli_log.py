"""A small fleet on an SQLite log, and the command line run on it: the common ground of the tests of verbs.

Claims are written as the reconciler and a scheduler would write them. Times are the log's own; `TAKEN_MS` is when audits were taken.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import Struct

from schemas.audits import HypervisorAudited, InstanceReport
from schemas.claims import ClaimItem, ClaimRequested
from schemas.codec import encode, key_of
from schemas.inventory import Hypervisor
from schemas.lifecycle import InstanceArrived, LifecycleEvent
from schemas.resources import ObservedResources, Resources
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE
from streams.cli.main import run
from streams.engines import Carrier
from streams.ledger_topics import open_ledger
from streams.log.base import Message
from streams.log.sqlite import SqliteLog
from streams.scheduler import Clocks, Scheduler
from streams.scheduling.loading import from_toml

START_MS = 1_763_716_147_000
"""When the first record was appended: 2025-11-21T09:09:07Z."""
PARTITIONS = 2


class Said(NamedTuple):
    """What one command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its JSON document."""
        return json.loads(self.out)


class FleetLog:
    """An SQLite log in a directory; every call appends one record, a second after the one before."""

    def __init__(self, directory: Path, *, opened: bool = True) -> None:
        self.path = directory / "log.db"
        self.spec = f"sqlite:{self.path}"
        self.now_ms = START_MS
        self.log = SqliteLog.open(self.path, create=True, clock=lambda: self.now_ms)
        self._counter = 0
        if opened:
            open_ledger(self.log, ledger_partitions=PARTITIONS, request_partitions=PARTITIONS)

    def append(self, topic: str, record: Struct, key: bytes | None = None) -> int:
        """Append one record under its key, a second later; returns its offset."""
        self.now_ms += 1000
        return self.log.append([Message(topic, key or key_of(record) or b"", encode(record))])[0]

    def audit(
        self,
        node_id: str,
        instances: Mapping[str, int] | None = None,
        *,
        memory_mib: int = 8192,
        vcpus: int = 16,
        disk_mib: int = 102_400,
        carry: bool = True,
        ahead_ms: int = 0,
        **host: Any,
    ) -> None:
        """A complete audit that lists instances with their memory; `carry` it into the ledger. `host` has more of the hypervisor.

        The host's clock is `ahead_ms` ahead of the log's.
        """
        self._counter += 1
        sizes = (instances or {}).items()
        reports = tuple(InstanceReport(instance_id=i, resources=ObservedResources(memory_mib=size)) for i, size in sorted(sizes))
        self.append(
            AUDITS,
            HypervisorAudited(
                node_id=node_id,
                producer="audits",
                epoch=1,
                counter=self._counter,
                taken_at_ms=self.now_ms + 1000 + ahead_ms,
                mono_ms=self.now_ms - START_MS,
                digest=f"d{self._counter}",
                hypervisor=Hypervisor(**({"vcpus": vcpus, "pcpus": 0, "memory_mib": memory_mib, "disk_mib": disk_mib} | host)),
                instances=reports,
            ),
        )
        if carry:
            self.carry()

    def lived(
        self,
        node_id: str,
        instance_id: str,
        memory_mib: int,
        kind: type[LifecycleEvent] = InstanceArrived,
        *,
        producer: str = "lives",
        carry: bool = True,
    ) -> None:
        """A life-cycle event of an instance; `carry` it into the ledger. The producer of the audits is `audits`."""
        self._counter += 1
        report = InstanceReport(instance_id=instance_id, resources=ObservedResources(memory_mib=memory_mib))
        event = kind(node_id=node_id, producer=producer, epoch=1, counter=self._counter, event_time_ms=self.now_ms + 1000, instance=report)
        self.append(LIFECYCLE, event)
        if carry:
            self.carry()

    def carry(self) -> None:
        """The reconciler's turn."""
        Carrier(self.log).turn(frozenset(range(PARTITIONS)))

    def claim(
        self,
        claim_id: str,
        instance_id: str,
        node_id: str,
        *,
        memory_mib: int = 1024,
        vcpus: int = 0,
        request_id: str = "r1",
        ttl_ms: int = 600_000,
        resize: bool = False,
    ) -> int:
        """A scheduler's claim of one instance on one node; returns its offset."""
        basis = self.log.end(CLAIMS, self.log.partition(CLAIMS, node_id.encode())) - 1
        resources = Resources(memory_mib=memory_mib, vcpus=vcpus)
        item = ClaimItem(claim_id=claim_id, instance_id=instance_id, nodes=(node_id,), resources=resources, resize=resize)
        return self.append(CLAIMS, ClaimRequested(request_id=request_id, owner="s1", basis=basis, ttl_ms=ttl_ms, items=(item,)))

    def run(self, capsys: pytest.CaptureFixture[str], *arguments: str | Sequence[str]) -> Said:
        """Run `claimlog ARGUMENTS --log THIS`."""
        capsys.readouterr()
        code = run([*map(str, arguments), "--log", self.spec])
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    def asked(self, capsys: pytest.CaptureFixture[str], request_id: str, *flags: str, **options: Any) -> None:
        """`claimlog place FLAGS` as this request, answered by a scheduler with these options."""
        assert self.run(capsys, "place", *flags, "--request", request_id, "--wait", "0s").code == 0
        self.schedule(**options)

    def decided_by_code(self, capsys: pytest.CaptureFixture[str], own: Path, *flags: str) -> None:
        """Request r1, decided by the policy of `code_of_its_own` in a process that has gone."""
        self.asked(capsys, "r1", *flags, policy=from_toml(own.read_text(), source="own"))
        del sys.modules[own.parent.name]

    def schedule(self, turns: int = 6, owner: str = "s1", **options: Any) -> None:
        """A scheduler comes up, with these options of its own, takes its turns until nothing is left, and goes."""
        scheduler = Scheduler(self.log, owner, clocks=Clocks(wall_ms=lambda: self.now_ms, boot_ms=lambda: self.now_ms), **options)
        for _ in range(turns):
            scheduler.turn()
        scheduler.close()


class LogClock:
    """The fleet's own time, that of the log's records: for whoever stamps and for whoever measures."""

    def __init__(self, fleet: FleetLog) -> None:
        self._fleet = fleet

    def wall_ms(self) -> int:
        return self._fleet.now_ms

    def boot_ms(self) -> int:
        return self._fleet.now_ms

    def seconds(self, duration_ms: int) -> float:
        return duration_ms / 1000


@contextmanager
def code_of_its_own(folder: Path, code: str, policy: str) -> Iterator[Path]:
    """A policy in a file, and its code in the module that it names as MODULE: so named for the folder, as what is imported once stays."""
    (folder / f"{folder.name}.py").write_text(code)
    own = folder / "own.toml"
    own.write_text(policy.replace("MODULE", folder.name))
    sys.path.insert(0, str(folder))
    yield own
    sys.path.remove(str(folder))
