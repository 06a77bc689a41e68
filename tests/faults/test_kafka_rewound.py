"""A log that is rewound under those who have state of it: a topic made anew, records lost with a disk, history that is not at hand.

What was kept of the other log is discarded, and folded anew; who cannot have all that it needs says so and tells no number.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import AdminClient

from producers.load import SimulatedFleet
from producers.source import said
from projections.ledger import Ledger
from projections.replay import fold
from projections.snapshots import chunks_of
from schemas import topics
from schemas.codec import encode, key_of
from schemas.requests import Flavor, PlacementRequested
from schemas.results import InstancesPlaced, NodeResources
from streams.cli.exits import Exit
from streams.cli.main import run
from streams.cli.produce.driving import request_message
from streams.cli.produce.publishing import message
from streams.engines import Carrier
from streams.ledger_topics import open_ledger
from streams.log.base import Log, Message, TopicMismatch, TopicSpec
from streams.log.kafka import KafkaLog
from tests.faults import checkers
from tests.faults.harness import Process, until
from tests.faults.kafka_site import kafka_site
from tests.faults.shared_site import PATIENCE_SECONDS, UNMISSED, SharedSite, shared_site
from tests.kafka_broker import free_ports

DISCARDED = re.compile(r"^claimlog_states_discarded_total (\d+)", re.MULTILINE)


def discarded(port: int) -> int:
    """How many states a process has discarded, by its own metrics; 0 while it does not answer."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            found = DISCARDED.search(answer.read().decode())
    except OSError:
        return 0
    return int(float(found[1])) if found else 0


def report(log: Log, fleet: SimulatedFleet, number: int) -> None:
    """Every host is audited."""
    log.append([message(said(topics.AUDITS, fleet.audit(node_id, 1_000 * number, number))) for node_id in fleet.nodes])


def ask(log: Log, prefix: str, requests: int) -> list[str]:
    ids = [f"{prefix}-{number}" for number in range(requests)]
    log.append([request_message(PlacementRequested(request_id=each, flavor=Flavor(vcpus=1, memory_mib=64)), 1) for each in ids])
    return ids


def are_placed(log: Log, ids: Sequence[str]) -> bool:
    counts = checkers.counting(log)[0]
    assert all(isinstance(counts[each], InstancesPlaced) for each in ids if each in counts)
    return counts.keys() >= set(ids)


def folded_nodes(log: Log) -> int:
    return sum(len(ledger.nodes) for ledger in checkers.folded(log).ledgers)


def has_stored(log: Log, group: str, topic: str) -> bool:
    """Whether the group's offset in partition 0 is its end, so that it shows when records are lost there."""
    return log.committed(group, topic).get(0) == log.end(topic, 0) > 0


def snapshot(log: Log) -> None:
    """As a worker writes one after ten thousand records."""
    for number, end in log.ends(topics.CLAIMS).items():
        ledger = fold(log, Ledger(number, log.topics()[topics.CLAIMS]), end).ledger
        log.append([Message(topics.SNAPSHOTS, key_of(chunk) or b"", encode(chunk), (), number) for chunk in chunks_of(ledger)])


def delete(here: SharedSite, name: str) -> None:
    """Somebody deletes a topic."""
    admin = AdminClient({"bootstrap.servers": here.settings.bootstrap})
    full = here.settings.topic(name)
    admin.delete_topics([full])[full].result()
    until(lambda: full not in admin.list_topics(timeout=10).topics, PATIENCE_SECONDS, f"{name} is gone")
    # The broker deletes the files behind a topic's back.
    time.sleep(1.0)


def is_published(log: Log) -> bool:
    """Whether all that follows from the ledger stands in the log, beside what another ledger has left there."""
    fold = checkers.folded(log)
    last = {row.node_id: row for _, row in checkers.readable(log, topics.NODE_RESOURCES, NodeResources)}
    held = {node_id: len(list(node.held())) for ledger in fold.ledgers for node_id, node in ledger.nodes.items()}
    rows = {node_id: last[node_id].claims for node_id in held if node_id in last}
    return rows == held and not any(wrong.startswith("never published") for wrong in checkers.verdicts_wrong(log, fold))


def test_a_ledger_made_anew_is_noticed_by_tables_snapshots_and_schedulers_and_folded_anew(tmp_path: Path) -> None:
    with shared_site(tmp_path) as here:
        with here.opened(1, 1) as log:
            fleet = SimulatedFleet(4, epoch=1)
            report(log, fleet, 1)
            here.worker("w", *UNMISSED)
            here.scheduler("s")
            until(lambda: folded_nodes(log) == len(fleet.nodes), PATIENCE_SECONDS, "the hosts are in the ledger")
            ids = ask(log, "first", 5)
            until(lambda: are_placed(log, ids), PATIENCE_SECONDS, "requests are placed")
            until(lambda: is_published(log), PATIENCE_SECONDS, "all that follows is published")
            here.stop("w")
            here.stop("s")
            snapshot(log)
            end = log.end(topics.CLAIMS, 0)

        # First with fewer records than the state has; then with more, where only the last record tells.
        begins_another_ledger(here, hosts=2, epoch=2, because="ends at offset", snapshot_offset=end - 1)
        begins_another_ledger(here, hosts=2 * end, epoch=3, because="has another record at offset", snapshot_offset=end - 1)


def begins_another_ledger(here: SharedSite, hosts: int, epoch: int, because: str, snapshot_offset: int) -> None:
    """Make `claims` anew under a worker's table and a snapshot; both start, say why they do not use them, and go on with what is there."""
    delete(here, topics.CLAIMS)
    with KafkaLog.open(here.settings) as log:
        with pytest.raises(TopicMismatch, match="somebody deleted it"):
            open_ledger(log)
        log.create([TopicSpec(topics.CLAIMS, 1)])
    ports = dict(zip("ws", free_ports(2), strict=True))
    with here.opened(1, 1) as log:
        report(log, SimulatedFleet(hosts, epoch=epoch), 1)
        carry_all(log)
        before = {name: len(here.processes[name].said()) for name in ports}
        here.worker("w", *UNMISSED, "--metrics", str(ports["w"]))
        here.scheduler("s", "--metrics", str(ports["s"]))
        ids = ask(log, f"ledger-{epoch}", 2)
        until(lambda: are_placed(log, ids), PATIENCE_SECONDS, "requests are placed on the new ledger")
        until(lambda: is_published(log), PATIENCE_SECONDS, "all that follows is published")
        until(lambda: all(map(discarded, ports.values())), PATIENCE_SECONDS, "the metrics say that states were discarded")
        words = {name: here.processes[name].said()[before[name] :] for name in ports}
        for name in ports:
            here.stop(name)

        fold = checkers.folded(log)
        assert f"claims/0: the state in the table is discarded: the log {because}" in words["w"]
        assert f"the snapshot of offset {snapshot_offset} is passed over: the log {because}" in words["s"]
        assert checkers.tables_wrong(here.home("w"), fold) == []
        assert len(fold.ledgers[0].nodes) == hosts


def carry_all(log: Log) -> None:
    """As another worker would that was faster."""
    carrier = Carrier(log)
    until(lambda: carrier.turn(frozenset({0})) == 0, PATIENCE_SECONDS, "the observations are carried")
    carrier.close()


def ended(process: Process) -> str:
    """It ends by itself because records are missing; its last words."""
    code = process.ended(PATIENCE_SECONDS)
    assert code == Exit.INCOMPLETE, f"{process.name} ended with {code}: {process.said()[-2000:]}"
    return process.said()


def test_records_lost_with_a_disk_are_noticed_by_whoever_runs_and_the_state_is_made_anew(tmp_path: Path) -> None:
    with kafka_site(tmp_path) as here:
        with here.opened(2) as log:
            fleet = SimulatedFleet(6, epoch=1)
            report(log, fleet, 1)
            here.worker("w")
            here.scheduler("s")
            until(lambda: folded_nodes(log) == len(fleet.nodes), PATIENCE_SECONDS, "the hosts are in the ledger")
            ids = ask(log, "first", 8)
            until(lambda: are_placed(log, ids), PATIENCE_SECONDS, "requests are placed")
            until(lambda: is_published(log), PATIENCE_SECONDS, "all that follows is published")
            until(lambda: has_stored(log, "schedulers", topics.REQUESTS), PATIENCE_SECONDS, "schedulers have stored where they stand")
            until(lambda: has_stored(log, "reconciler", topics.AUDITS), PATIENCE_SECONDS, "workers have stored where they stand")

        here.broker.kill()
        for name in (topics.CLAIMS, topics.AUDITS, topics.REQUESTS):
            shutil.rmtree(here.broker.folder / "data" / f"faults.{name}-0")
        here.broker.again()

        said_before = {name: len(ended(here.processes[name])) for name in ("w", "s")}
        here.worker("w")
        here.scheduler("s")
        # A group has no state but its offset: before as many records have come anew, it shows that others were there.
        until(lambda: all("has read up to" in here.processes[name].said() for name in ("w", "s")), PATIENCE_SECONDS, "the groups notice it")
        with here.opened(2) as log:
            report(log, fleet, 2)
            until(lambda: folded_nodes(log) == len(fleet.nodes), PATIENCE_SECONDS, "the hosts are in the ledger again")
            then = ask(log, "then", 8)
            until(lambda: are_placed(log, then), PATIENCE_SECONDS, "requests are placed again")
            until(lambda: is_published(log), PATIENCE_SECONDS, "all that follows is published")
            words = {name: here.processes[name].said()[said_before[name] :] for name in ("w", "s")}
            here.site.stop_all()

            fold = checkers.folded(log)
            assert "claims/0: the state in the table is discarded: the log ends at offset" in words["w"]
            assert "hypervisor-audits/0: reconciler has read up to" in words["w"]
            assert "placement-requests/0: schedulers has read up to" in words["s"]
            assert checkers.tables_wrong(here.home("w"), fold) == []
            assert fold.overgrants == []


def test_history_that_is_not_at_hand_is_said_and_no_number_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with shared_site(tmp_path) as here, here.opened(1, 1) as log:
        fleet = SimulatedFleet(4, epoch=1)
        report(log, fleet, 1)
        here.worker("w", *UNMISSED)
        until(lambda: folded_nodes(log) == len(fleet.nodes) and is_published(log), PATIENCE_SECONDS, "the hosts are in the ledger")
        here.stop("w")
        log.truncate(topics.CLAIMS, 0, 3)
        capsys.readouterr()

        for verb in (["nodes"], ["claims", "list"], ["leaks"], ["replay"], ["rules"], ["nodes", "-o", "json"]):
            code = run([*verb, "--log", here.spec])
            answer = capsys.readouterr()
            assert (code, answer.out) == (Exit.INCOMPLETE, ""), verb
            assert "claims/0" in answer.err
            assert "Traceback" not in answer.err
        # Whoever has not folded what is gone ends; whoever has goes on, and writes a snapshot for the others to begin at.
        here.scheduler("s")
        assert "claims/0@0: at hand are offsets 3 to 4" in ended(here.processes["s"])
        here.worker("new", *UNMISSED)
        assert "claims/0@0: at hand are offsets 3 to 4" in ended(here.processes["new"])
        report(log, fleet, 2)
        here.worker("w", *UNMISSED)
        until(lambda: log.end(topics.CLAIMS, 0) == 9 and rows_end(log) == 9, PATIENCE_SECONDS, "the worker with a table goes on")
        here.stop("w")
        assert run(["nodes", "--log", here.spec]) == Exit.DONE


def rows_end(log: Log) -> int:
    """The offset after the newest row that is published."""
    return max((row.offset for _, row in checkers.readable(log, topics.NODE_RESOURCES, NodeResources)), default=-1) + 1
