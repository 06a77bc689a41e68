"""What `produce openstack --hypervisors` lists, on a log: nodes stay there while it is followed, and fall silent when it is not."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest

from producers.openstack import PRODUCER, OpenStack
from producers.openstack_hosts import ListedHost, Listing, read_hypervisors
from projections.ledger import Ledger
from projections.observed import Observed
from schemas.audits import AuditFailed
from schemas.inventory import Hypervisor
from schemas.topics import AUDITS, CLAIMS
from streams.cli.produce.listing import Listed, ListFile, OtherReports
from streams.cli.produce.notifications import Feed
from streams.cli.produce.openstack import _follow
from streams.cli.produce.publishing import TAIL_RECORDS, Persistent
from streams.cli.produce.sources import Lines
from streams.leak_audit import LeakAudit
from streams.log.base import Log, LogUnreachable, Message, Record
from streams.log.reading import partition_records, topic_records
from tests.cli_log import PARTITIONS, FleetLog, LogClock

MINUTE_MS = 60_000
HOSTS = [ListedHost(name, name, Hypervisor(vcpus=16, memory_mib=8192, disk_mib=102_400)) for name in ("c01", "c02")]


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    """Nobody has reported anything yet."""
    return FleetLog(tmp_path)


def persistent() -> Persistent:
    ticks = iter(range(1_000_000))
    return Persistent(lambda _: None, lambda: float(next(ticks)), lambda _: None)


def listed(fleet: FleetLog, *hosts: ListedHost) -> Listed:
    return Listed(fleet.log, hosts or HOSTS, LogClock(fleet), persistent(), interval_ms=MINUTE_MS)


def after_minutes(fleet: FleetLog, minutes: int, said: Listed | None = None) -> None:
    """So much time passes; a follower that is there tells the list when it is due."""
    for _ in range(minutes):
        fleet.now_ms += MINUTE_MS
        if said is not None:
            said.tell()
            fleet.carry()


def failed(node_id: str, taken_at_ms: int) -> AuditFailed:
    """Another producer's word that it cannot reach a host."""
    told = {"epoch": 1, "counter": 1, "taken_at_ms": taken_at_ms, "mono_ms": 0, "unknown_since_ms": taken_at_ms}
    return AuditFailed(node_id=node_id, producer="audits", reason="away", **told)


def folded(fleet: FleetLog) -> Iterator[tuple[Ledger, LeakAudit]]:
    """Each partition of the ledger as the stream processor has it."""
    for number in range(PARTITIONS):
        ledger, observed, audit = Ledger(number, PARTITIONS), Observed(number), LeakAudit(number)
        for record in partition_records(fleet.log, CLAIMS, number):
            step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
            assert step is not None
            observed.apply(ledger, step)
            audit.step(ledger, observed, step)
        yield ledger, audit


def silent(fleet: FleetLog) -> list[bytes]:
    """The nodes that the stream processor finds silent now."""
    return sorted(message.key for ledger, audit in folded(fleet) for message in audit.silences(ledger, fleet.now_ms, MINUTE_MS))


def test_nodes_of_a_list_are_not_silent_while_it_is_followed_and_are_three_intervals_after(fleet: FleetLog) -> None:
    said = listed(fleet)
    said.tell()
    fleet.carry()

    after_minutes(fleet, 10, said)
    followed = silent(fleet)
    after_minutes(fleet, 3)

    assert (followed, silent(fleet)) == ([], [b"c01", b"c02"])


def test_a_list_that_is_repeated_confirms_and_closes_no_claim(fleet: FleetLog) -> None:
    said = listed(fleet)
    said.tell()
    fleet.carry()
    fleet.claim("claimed", "i1", "c01", ttl_ms=2 * MINUTE_MS)
    fleet.lived("c01", "i2", 512)

    after_minutes(fleet, 10, said)

    (node,) = [ledger.nodes["c01"] for ledger, _ in folded(fleet) if "c01" in ledger.nodes]
    assert [(claim.claim_id, claim.confirmed_ms) for claim in node.held()] == [("claimed", None)]
    assert (list(node.shown), node.complete_ms) == (["i2"], -1)


def test_a_node_that_another_producer_audits_is_left_to_it_also_when_that_has_ended(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.audit("c01")
    said = listed(fleet)
    said.tell()
    fleet.audit("c02")

    after_minutes(fleet, 4, said)

    producers = [(record.key, b'"producer":"nova"' in record.value) for record in topic_records(fleet.log, AUDITS)]
    assert sorted(producers) == [(b"c01", False), (b"c02", False), (b"c02", True)]
    assert silent(fleet) == [b"c01", b"c02"]
    assert capsys.readouterr().err.splitlines() == [
        "another producer audits c01: what --hypervisors says there is left out, also when that one falls silent",
        "another producer audits c02: what --hypervisors says there is left out, also when that one falls silent",
    ]


def test_nor_is_it_taken_back_by_a_later_start_however_much_was_said_since_by_whomever(fleet: FleetLog) -> None:
    """Also after the list's own word on it, as before it was left to the other: that one has audited it, and knows when it is gone."""
    fleet.audit("c01")
    fleet.append(AUDITS, failed("c02", fleet.now_ms))
    for own in Listing(HOSTS, producer=PRODUCER, epochs={"c01": 1, "c02": 1}, interval_ms=MINUTE_MS).audits(fleet.now_ms, 0):
        fleet.append(AUDITS, own)
    fleet.carry()
    fleet.log.append([Message(AUDITS, each.node_id.encode(), b"{") for each in HOSTS for _ in range(TAIL_RECORDS)])
    ends = fleet.log.ends(AUDITS)

    listed(fleet).tell()

    assert fleet.log.ends(AUDITS) == ends


def nova_list(*names: str) -> bytes:
    """As Nova lists hypervisors of these names, each as host and node."""
    hosts = [{"hypervisor_hostname": name, "service": {"host": name}, "vcpus": 16, "memory_mb": 8192, "local_gb": 100} for name in names]
    return json.dumps({"hypervisors": hosts}).encode()


def test_a_list_that_is_written_anew_is_told_from_then_on_and_one_that_cannot_be_read_is_said_once(
    fleet: FleetLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, located = tmp_path / "nova.json", list[str]()
    path.write_bytes(nova_list("c01", "c02"))
    file = ListFile(path)
    clock = LogClock(fleet)
    said = Listed(fleet.log, file.hosts, clock, persistent(), file.newer, lambda each: located.append(each.node_id), interval_ms=MINUTE_MS)
    said.tell()
    fleet.carry()
    path.write_bytes(nova_list("c02", "c03")[:40])
    after_minutes(fleet, 2, said)
    path.unlink()
    after_minutes(fleet, 1, said)
    before = silent(fleet)

    path.write_bytes(nova_list("c02", "c03"))
    after_minutes(fleet, 4, said)

    assert (before, silent(fleet), located) == ([], [b"c01"], ["c01", "c02", "c02", "c03"])
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(f"{path}: ")[2].split(":")[0] for line in told[:2]] == [
        "expected JSON", "No such file or directory; what it listed before is said again until this is mended",
    ]  # fmt: skip
    assert told[2:] == ["--hypervisors lists c01 no longer: silent soon, unless another producer audits it"]


def test_a_host_that_is_down_is_not_reported_until_it_is_up_and_who_is_disabled_is_heard_of(
    fleet: FleetLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(state: str) -> list[ListedHost]:
        hosts = json.loads(nova_list("c01", "c02"))
        hosts["hypervisors"][0] |= {"state": state, "status": "disabled", "service": {"host": "c01", "disabled_reason": "broken"}}
        hosts["hypervisors"][1] |= {"state": "up", "status": "enabled"}
        return read_hypervisors(json.dumps(hosts).encode())

    def hear(each: ListedHost) -> None:
        heard.append((each.node_id, each.is_disabled, each.reason))

    lists, heard = iter([None, None, written("up")]), list[tuple[str, bool, str]]()
    said = Listed(fleet.log, written("down"), LogClock(fleet), persistent(), lambda: next(lists), hear, interval_ms=MINUTE_MS)

    keys = []
    for _ in range(3):
        after_minutes(fleet, 1, said)
        keys.append(Counter(record.key for record in topic_records(fleet.log, AUDITS)))

    assert keys == [{b"c02": 1}, {b"c02": 2}, {b"c01": 1, b"c02": 3}]
    assert heard[:2] == [("c01", True, "broken"), ("c02", False, "")]
    (told,) = capsys.readouterr().err.splitlines()
    assert told == "--hypervisors lists c01 as down: not reported, and silent soon, until it lists them as up"


def test_a_list_that_another_process_told_once_meanwhile_is_told_in_a_later_epoch(fleet: FleetLog) -> None:
    said = listed(fleet)
    said.tell()
    epochs = dict.fromkeys(("c01", "c02"), fleet.now_ms + 1_000_000)
    for own in Listing(HOSTS, producer=PRODUCER, epochs=epochs, interval_ms=MINUTE_MS).audits(fleet.now_ms, 0):
        fleet.append(AUDITS, own)
    fleet.carry()

    after_minutes(fleet, 10, said)

    assert silent(fleet) == []


def test_a_pipe_is_a_list_once(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.write(writes, nova_list("c01"))
    os.close(writes)
    file = ListFile(Path(f"/dev/fd/{reads}"))

    assert ([each.node_id for each in file.hosts], file.newer()) == (["c01"], None)
    os.close(reads)


class Told:
    """A log that keeps which audits were read from it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.read_keys: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, topic: str, partition: int, offset: int, limit: int) -> Sequence[Record]:
        records = self._log.read(topic, partition, offset, limit)
        self.read_keys += [record.key for record in records if topic == AUDITS]
        return records


def test_each_audit_is_read_once_and_none_that_the_ledger_has(fleet: FleetLog) -> None:
    fleet.audit("c01")
    fleet.audit("c02", carry=False)
    log = Told(fleet.log)
    others = OtherReports(cast(Log, log))

    first = set(others.nodes())
    fleet.audit("c03", carry=False)
    then = set(others.nodes()), set(others.nodes())

    assert (first, *then) == ({"c01", "c02"}, {"c01", "c02", "c03"}, {"c01", "c02", "c03"})
    assert log.read_keys == [b"c02", b"c03"]


class AwayBus(Lines):
    """A bus whose brokers do not answer after the first read."""

    def __init__(self) -> None:
        super().__init__("bus", BytesIO(), 0)
        self.reads = 0

    def read(self) -> list[Record]:
        self.reads += 1
        if self.reads > 1:
            raise LogUnreachable("the bus is away")
        return []


def test_the_list_is_told_after_each_reading_and_not_while_the_bus_is_away() -> None:
    told: list[int] = []
    bus = AwayBus()

    with pytest.raises(LogUnreachable):
        _follow([bus], Feed(OpenStack(lambda _: 1)), lambda _: None, persistent(), lambda: told.append(bus.reads))

    assert told == [1]
    assert bus.reads > 2
