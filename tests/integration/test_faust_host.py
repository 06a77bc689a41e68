"""Workers of the stream processor on a real broker: Faust shares the partitions out; the tables are the pure fold's whatever happens."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from uuid import uuid4

import pytest

from projections.ledger import Ledger
from projections.ledger_table import LedgerTable
from projections.rocks import RocksTable
from schemas import topics
from schemas.audits import HypervisorAudited, InstanceReport
from schemas.claims import ClaimItem, ClaimReleased, ClaimRequested
from schemas.codec import decode_keyed, encode, key_of
from schemas.findings import FindingRecord, LeakResolved, LeakSuspected
from schemas.inventory import Hypervisor
from schemas.partitioner import partition_of
from schemas.resources import ObservedResources, Resources
from schemas.results import ClaimOutcome, NodeResources
from streams.ledger_topics import open_ledger
from streams.log.base import Message
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from tests.faults.harness import CLAIMLOG, Process, until
from tests.kafka_broker import bootstrap

PARTITIONS = 4
NODES = [f"n{number}" for number in range(8)]
# A worker starts in 2 s and is missed after 6 on a machine that has nothing else to do.
PATIENCE_SECONDS = 60.0


class Site:
    """One ledger on the shared broker, under a prefix of its own, and the workers on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = KafkaSettings(bootstrap=bootstrap(), prefix=f"faust-{uuid4().hex[:10]}", single_broker=True)
        self.log = KafkaLog.open(self.settings)
        open_ledger(self.log, ledger_partitions=PARTITIONS, request_partitions=1)
        self.asked: set[str] = set()
        self.audits = 0
        self.workers: dict[str, Process] = {}

    def start(self, name: str, *options: str, program: Sequence[str] = CLAIMLOG) -> Process:
        spec = f"{self.settings.place}?single-broker=true"
        command = [*program, "run", "--only", "processor", "--log", spec, "--state", str(self.folder / name), *options]
        worker = self.workers.setdefault(name, Process(name, command, self.folder / f"{name}.err"))
        worker.start()
        return worker

    def audit_all(self, on_each: Mapping[str, tuple[InstanceReport, ...]] | None = None) -> None:
        """Every hypervisor is seen, with nothing on it but what is told."""
        self.audits += 1
        now_ms = time.time_ns() // 1_000_000
        host = Hypervisor(vcpus=64, memory_mib=65_536, disk_mib=1_000_000)
        self._say(
            topics.AUDITS,
            *(
                HypervisorAudited(
                    node_id=node,
                    producer="p",
                    epoch=1,
                    counter=self.audits,
                    taken_at_ms=now_ms,
                    mono_ms=self.audits,
                    digest=f"d{self.audits}",
                    hypervisor=host,
                    instances=(on_each or {}).get(node, ()),
                )
                for node in NODES
            ),
        )

    def claim(self, count: int) -> None:
        """Claims on all nodes in turn, each of another request."""
        for number in range(len(self.asked), len(self.asked) + count):
            claim_id = f"r{number}/0/1.{number}"
            node = NODES[number % len(NODES)]
            self.asked.add(claim_id)
            item = ClaimItem(claim_id=claim_id, instance_id=f"i{number}", nodes=(node,), resources=Resources(vcpus=1, memory_mib=512))
            self._say(topics.CLAIMS, ClaimRequested(request_id=f"r{number}", owner="s", basis=0, ttl_ms=3_600_000, items=(item,)))

    def claim_for(self, instance_id: str, *nodes: str) -> None:
        """A claim of the same instance on each of these nodes."""
        for node in nodes:
            claim_id, size = f"{instance_id} on {node}", Resources(memory_mib=512)
            item = ClaimItem(claim_id=claim_id, instance_id=instance_id, nodes=(node,), resources=size)
            self._say(topics.CLAIMS, ClaimRequested(request_id=f"r-{node}", owner="s", basis=0, ttl_ms=3_600_000, items=(item,)))

    def release(self, instance_id: str, node: str) -> None:
        """Give back what `claim_for` claimed."""
        self._say(topics.CLAIMS, ClaimReleased(node_id=node, record_id="x", claim_id=f"{instance_id} on {node}", reason="migrated"))

    def said_of(self, finding_id: str) -> list[type]:
        """What was said of a finding, in order, without copies."""
        found = [type(each) for each in self.read(topics.FINDINGS) if isinstance(each, FindingRecord) and each.finding_id == finding_id]
        return [kind for number, kind in enumerate(found) if kind not in found[:number]]

    def _say(self, topic: str, *events: HypervisorAudited | ClaimRequested | ClaimReleased) -> None:
        self.log.append([Message(topic, key_of(event) or b"", encode(event)) for event in events])

    def read(self, topic: str) -> list[object]:
        found: list[object] = []
        for partition in range(self.log.topics()[topic]):
            offset = self.log.start(topic, partition)
            while records := self.log.read(topic, partition, offset):
                found += [decode_keyed(record.topic, record.key, record.value) for record in records]
                offset = records[-1].offset + 1
        return found

    def granted(self) -> set[str]:
        return {e.claim_id for e in self.read(topics.VERDICTS) if isinstance(e, ClaimOutcome) and e.outcome == "granted"}

    def all_nodes_known(self) -> bool:
        return {e.node_id for e in self.read(topics.NODE_RESOURCES) if isinstance(e, NodeResources)} == set(NODES)

    def claimed(self) -> dict[str, int]:
        """Claimed vCPUs of each node as its last row has them."""
        return {e.node_id: e.vcpus.claimed for e in self.read(topics.NODE_RESOURCES) if isinstance(e, NodeResources)}

    def leave_an_older_row_behind(self) -> None:
        """What a worker does that was stopped between its fold and its append, and woke up when its partitions were another's."""
        older = next(row for row in self.read(topics.NODE_RESOURCES) if isinstance(row, NodeResources))
        self.log.append([Message(topics.NODE_RESOURCES, key_of(older) or b"", encode(older), (), older.partition)])

    def folded(self) -> dict[int, Ledger]:
        """The pure fold of the log as it stands."""
        ledgers = {partition: Ledger(partition, PARTITIONS) for partition in range(PARTITIONS)}
        for partition, ledger in ledgers.items():
            while records := self.log.read(topics.CLAIMS, partition, ledger.next_offset):
                for record in records:
                    ledger.apply(record.offset, record.time_ms, record.key, record.value)
        return ledgers

    def table(self, name: str, partition: int) -> Ledger | None:
        """What a worker that has ended left in its table."""
        table = RocksTable.open(self.folder / name / f"{topics.CLAIMS}-{partition}")
        try:
            return LedgerTable(table).load()
        finally:
            table.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for worker in site.workers.values():
        if worker.running is not None:
            worker.running.kill()
            worker.running.wait()
    site.log.close()


def share(worker: Process) -> set[int]:
    """The partitions that a worker was told last."""
    worker.must_run()
    said = re.findall(r"partitions (.*)", worker.said())
    return {int(number) for number in re.findall(r"\d+", said[-1])} if said else set()


def stand(ledger: Ledger | None) -> tuple[int, str] | None:
    return None if ledger is None else (ledger.next_offset, ledger.digest.hex())


def test_a_worker_makes_of_observations_and_claims_what_the_pure_fold_makes_and_ends_at_sigterm(site: Site) -> None:
    site.audit_all()
    worker = site.start("a")
    until(site.all_nodes_known, PATIENCE_SECONDS, "every audited node has a row")
    site.claim(40)
    until(lambda: site.granted() == site.asked, PATIENCE_SECONDS, "every claim is granted")
    until(lambda: site.claimed() == dict.fromkeys(NODES, 5), PATIENCE_SECONDS, "each node's row has its claims")
    site.leave_an_older_row_behind()
    until(lambda: site.claimed() == dict.fromkeys(NODES, 5), PATIENCE_SECONDS, "the row that a zombie left is mended")
    began = time.monotonic()
    code = worker.stop()
    took = time.monotonic() - began

    folded = site.folded()

    assert (code, [stand(site.table("a", partition)) for partition in range(PARTITIONS)]) == (0, [stand(each) for each in folded.values()])
    assert took < 10, "2 s on a machine with nothing else to do"


def halves(workers: Sequence[Process]) -> bool:
    """Whether each of two has half of the partitions, by one look at each: the one that was first has all of them for a while."""
    shares = [share(worker) for worker in workers]
    return sorted(chain.from_iterable(shares)) == list(range(PARTITIONS)) and [len(each) for each in shares] == [2, 2]


def test_workers_share_the_partitions_and_one_takes_over_from_one_that_is_killed(site: Site) -> None:
    first, second = site.start("a"), site.start("b")
    everything = set(range(PARTITIONS))
    until(lambda: halves([first, second]), PATIENCE_SECONDS, "each has half of them")
    site.audit_all()
    until(site.all_nodes_known, PATIENCE_SECONDS, "every audited node has a row")
    site.claim(20)
    until(lambda: site.granted() == site.asked, PATIENCE_SECONDS, "every claim is granted")
    first.kill()
    site.claim(20)
    until(lambda: site.granted() == site.asked, PATIENCE_SECONDS, "the one that is left grants the claims of all partitions")
    left = share(second)
    code = second.stop()

    folded = site.folded()

    assert (left, code) == (everything, 0)
    assert [stand(site.table("b", partition)) for partition in range(PARTITIONS)] == [stand(each) for each in folded.values()]


def test_a_guest_held_on_hosts_of_two_workers_is_said_by_one_and_its_end_by_who_takes_over(site: Site) -> None:
    workers = [site.start("a"), site.start("b")]
    everything = set(range(PARTITIONS))
    until(lambda: halves(workers), PATIENCE_SECONDS, "each has half of them")
    sees, other = sorted(workers, key=lambda worker: 0 not in share(worker))
    here, there = (next(node for node in NODES if partition_of(node.encode(), PARTITIONS) in share(worker)) for worker in (sees, other))
    site.audit_all()
    until(site.all_nodes_known, PATIENCE_SECONDS, "every audited node has a row")
    site.claim_for("guest", here, there)
    shown = (InstanceReport(instance_id="guest", resources=ObservedResources(memory_mib=512)),)
    site.audit_all({here: shown, there: shown})
    until(lambda: site.said_of("double-claim/guest") == [LeakSuspected], PATIENCE_SECONDS, "who has partition 0 says that it is held twice")
    sees.kill()
    site.release("guest", there)
    until(
        lambda: site.said_of("double-claim/guest") == [LeakSuspected, LeakResolved],
        PATIENCE_SECONDS,
        "the worker that is left says that it no longer is",
    )

    assert share(other) == everything


def told_of_no_topic(while_there: Path) -> list[str]:
    """A worker whose client is told of no topic as long as a file is there, as by a broker that has just begun to start. Its 10 s are 2."""
    while_there.touch()
    blind = f"""
import os
from aiokafka.cluster import ClusterMetadata
import streams.app
streams.app.METADATA_SECONDS = 2.0
known = ClusterMetadata.partitions_for_topic
ClusterMetadata.partitions_for_topic = lambda self, topic: None if os.path.exists({str(while_there)!r}) else known(self, topic)
"""
    return [CLAIMLOG[0], "-c", f"{blind}\n{CLAIMLOG[-1]}"]


def test_who_shared_out_when_it_was_told_of_no_topic_does_so_again_soon_after_it_is(site: Site) -> None:
    blind = site.folder / "blind"
    first = site.start("a", program=told_of_no_topic(blind))
    until(lambda: "partitions none for now" in first.said(), PATIENCE_SECONDS, "it has shared out nothing")

    blind.unlink()

    until(lambda: share(first) == set(range(PARTITIONS)), PATIENCE_SECONDS, "it has all partitions")


def test_who_is_started_again_after_it_had_shared_out_nothing_has_it_shared_out_anew(site: Site) -> None:
    """The group keeps what a worker shared out before it was killed, and does not ask it again when it is back under its name."""
    blind = site.folder / "blind"
    first = site.start("a", program=told_of_no_topic(blind))
    until(lambda: "partitions none for now" in first.said(), PATIENCE_SECONDS, "it has shared out nothing")
    first.kill()
    blind.unlink()

    first.start()

    until(lambda: share(first) == set(range(PARTITIONS)), PATIENCE_SECONDS, "it has all partitions")


def test_an_engine_that_fails_ends_the_process_with_the_reason(site: Site) -> None:
    (site.folder / "a").mkdir()
    (site.folder / "a" / "claims-0").write_text("a file where the table's folder should be")

    worker = site.start("a")
    code = worker.ended(PATIENCE_SECONDS)

    assert code == 1
    assert f"claimlog: {site.folder}/a/claims-0" in worker.said()


def test_a_second_worker_on_the_same_directory_is_refused(site: Site) -> None:
    first = site.start("a")
    until(lambda: share(first) != set(), PATIENCE_SECONDS, "the first has its share")

    second = Process("second", first.command, site.folder / "second.err")
    second.start()
    code = second.ended(PATIENCE_SECONDS)

    assert code == 1
    assert "another worker has this directory" in second.said()
    assert first.running is not None
    first.running.send_signal(signal.SIGINT)
    assert first.ended(PATIENCE_SECONDS) == 130
