"""What the whole system must keep, whichever log it stands on: real processes, one story, and the same answers from the command line.

A new host is one more entry in HOSTS. The story is told once for each; the tests look at what it left behind.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from msgspec import Struct

from projections.ledger import Ledger
from schemas import topics
from schemas.audits import HypervisorAudited, InstanceReport
from schemas.codec import decode_keyed, encode, key_of
from schemas.findings import Finding, LeakConfirmed, LeakResolved, LeakSuspected
from schemas.inventory import Hypervisor
from schemas.lifecycle import InstanceArrived, InstanceDeparted, InstanceStarted, LifecycleEvent
from schemas.resources import ObservedResources
from schemas.results import ClaimOutcome, NodeResources
from streams.cli.main import run
from streams.clock import Clock, SystemClock
from streams.ledger_topics import open_ledger
from streams.log.base import Log, Message, Partition, Record
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from streams.log.sqlite import SqliteLog
from streams.mirror import COPIED, OtherLedger, Target, mirror
from streams.reconciler import CARRIERS, SOURCES
from streams.topology import DERIVED_TOPICS
from tests.faults import checkers
from tests.faults.harness import Process, scaled_clock, site, until
from tests.faults.shared_site import shared_site
from tests.kafka_broker import bootstrap

PATIENCE_SECONDS = 90.0
PARTITIONS = 2
NODES = ("n1", "n2", "n3")
# What is missing has to be missing for 15 s. The embedded log takes its clock from us, a broker has its own.
FASTER = 20
# A slow machine must not make silence of audits that come late.
UNHURRIED = ("--audit-interval", "36000")
STRANGER, LARGER = "0b5d7a3e-1111-4222-8333-444455556666", ObservedResources(vcpus=2, memory_mib=2048, disk_mib=5)


class Host(Struct):
    """One log and how processes are started on it."""

    spec: str
    clock: Clock
    log: Log
    processor: Callable[[], Process]
    scheduler: Callable[[], Process]
    stop: Callable[[], None]


@contextmanager
def on_sqlite(folder: Path) -> Iterator[Host]:
    with site(folder, scaled_clock(FASTER)) as here, here.opened(PARTITIONS) as log:
        yield Host(here.spec, here.clock, log, lambda: here.processor("host", *UNHURRIED), lambda: here.scheduler("s1"), here.stop_all)


@contextmanager
def on_kafka(folder: Path) -> Iterator[Host]:
    with shared_site(folder) as here, here.opened(PARTITIONS) as log:
        worker, scheduler = (lambda: here.worker("w1", *UNHURRIED)), (lambda: here.scheduler("s1"))
        yield Host(here.spec, SystemClock(), log, worker, scheduler, here.site.stop_all)


HOSTS: dict[str, Callable[[Path], AbstractContextManager[Host]]] = {"sqlite": on_sqlite, "kafka": on_kafka}


class Said(NamedTuple):
    """What a verb printed, and its exit code."""

    code: int
    out: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def verb(log: str, *arguments: str) -> Said:
    """A verb of the command line on a log."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([*arguments, "--log", log])
    assert code in {0, 3, 4}, f"{arguments} ended with {code}:\n{err.getvalue()}"
    return Said(code, out.getvalue())


def answer(log: str, *arguments: str) -> Said:
    return verb(log, *arguments, "-o", "json")


class Story:
    """What happens: three hypervisors, requests, a guest that nobody claimed, poison; and what the answers were on the way."""

    def __init__(self, host: Host) -> None:
        self.host, self.answers, self._counter = host, dict[str, Said](), count(1)

    def say(self, *events: Struct) -> None:
        kinds = [topics.AUDITS if isinstance(event, HypervisorAudited) else topics.LIFECYCLE for event in events]
        self.host.log.append([Message(topic, key_of(event) or b"", encode(event)) for topic, event in zip(kinds, events, strict=True)])

    def audit(self, node_id: str, *guests: InstanceReport) -> None:
        """A complete look at a node."""
        now_ms, counter = self.host.clock.wall_ms(), next(self._counter)
        hypervisor = Hypervisor(vcpus=8, memory_mib=16_384, disk_mib=100_000)
        self.say(
            HypervisorAudited(
                node_id=node_id, producer="p", epoch=1, counter=counter, taken_at_ms=now_ms, mono_ms=counter,
                digest=f"d{counter}", hypervisor=hypervisor, instances=guests,
            )
        )  # fmt: skip

    def lived(self, kind: type[LifecycleEvent], node_id: str, guest: InstanceReport) -> None:
        """One event of a guest's life."""
        now_ms = self.host.clock.wall_ms()
        self.say(kind(node_id=node_id, producer="p", epoch=1, counter=next(self._counter), event_time_ms=now_ms, instance=guest))

    def ask(self, name: str, *arguments: str) -> Said:
        """Ask, and keep the answer under a name."""
        said = self.answers[name] = answer(self.host.spec, *arguments)
        return said

    def becomes(self, what: str, holds: Callable[[Any], bool], *arguments: str) -> None:
        """Wait for an answer."""
        until(lambda: holds(answer(self.host.spec, *arguments).json["items"]), PATIENCE_SECONDS, what)

    def tell(self) -> None:
        """All of it, in order."""
        stranger = InstanceReport(instance_id=STRANGER, resources=LARGER)
        self.host.processor()
        self.host.scheduler()
        for node_id in NODES:
            self.audit(node_id)
        self.lived(InstanceArrived, "n3", stranger)
        self.audit("n3", stranger)
        # An answer counts what the ledger has not taken over yet; a scheduler goes by the ledger.
        until(lambda: audited(self.host.log) == set(NODES), PATIENCE_SECONDS, "three nodes in the ledger")
        self.becomes("the stranger is suspected", lambda items: [each["state"] for each in items] == ["suspected"], "leaks")
        verb(self.host.spec, "node", "disable", "n3", "--reason", "a stranger lives there")
        self._place_and_start()
        self._poison()
        self._confirm_and_heal(stranger)
        self.host.stop()

    def _place_and_start(self) -> None:
        wait = ("--wait", f"{PATIENCE_SECONDS:.0f}s")
        placed = self.ask("placed", "place", "--request", "fits", "--vcpus", "2", "--memory", "1GiB", *wait).json["items"][0]
        self.ask("too large", "place", "--request", "too-large", "--vcpus", "9999", "--memory", "1GiB", *wait)
        self.ask("two", "place", "--request", "two", "--vcpus", "1", "--memory", "1GiB", "--count", "2", *wait)
        verb(self.host.spec, "cancel", "two", "--reason", "not needed")
        guest = InstanceReport(instance_id=placed["instance_id"], resources=ObservedResources(vcpus=2, memory_mib=1024, disk_mib=0))
        self.lived(InstanceArrived, placed["node_id"], guest)
        self.lived(InstanceStarted, placed["node_id"], guest)
        self.audit(placed["node_id"], guest)
        self.becomes("one claim, confirmed", lambda items: [each["state"] for each in items] == ["confirmed"], "claims", "list")

    def _poison(self) -> None:
        poison = (topics.AUDITS, topics.LIFECYCLE, topics.CLAIMS, topics.REQUESTS, topics.RESULTS)
        self.host.log.append([Message(topic, b"n1", b"{ this is none") for topic in poison])
        self.becomes("five dead letters", lambda items: len(items) == len(poison), "dead-letters", "list")

    def _confirm_and_heal(self, stranger: InstanceReport) -> None:
        def confirmed(items: Any) -> bool:
            self.audit("n3", stranger)
            time.sleep(0.2)
            return [each["state"] for each in items] == ["confirmed"]

        self.becomes("the stranger is confirmed", confirmed, "leaks")
        self.ask("leaks", "leaks", "--explain")
        self.ask("nodes then", "nodes")
        self.lived(InstanceDeparted, "n3", stranger)
        self.audit("n3")
        self.becomes("the stranger is gone", lambda items: items == [], "leaks")
        looked = checkers.seen(self.host.log)
        until(lambda: self._is_at_rest(looked), PATIENCE_SECONDS, "all is carried, folded and published")

    def _is_at_rest(self, log: Log) -> bool:
        for topic in SOURCES:
            carried = log.committed(CARRIERS, topic)
            if any(carried.get(number, 0) < end for number, end in log.ends(topic).items()):
                return False
        fold = checkers.folded(log)
        is_resolved = any(isinstance(event, LeakResolved) for event in events(log, topics.FINDINGS))
        return is_resolved and not checkers.verdicts_wrong(log, fold) and not checkers.rows_wrong(log, fold)


class Told(NamedTuple):
    """A story that is over, and the log that it left."""

    host: Host
    answers: dict[str, Said]
    folder: Path

    def ask(self, *arguments: str) -> Said:
        return answer(self.host.spec, *arguments)


@pytest.fixture(scope="module", params=HOSTS)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp(request.param)
    with HOSTS[request.param](folder) as host:
        story = Story(host)
        story.tell()
        yield Told(host, story.answers, folder)


def records(log: Log, topic: str) -> list[Record]:
    """All of a topic, partition by partition."""
    found: list[Record] = []
    for number in range(log.topics()[topic]):
        at = log.start(topic, number)
        while more := log.read(topic, number, at):
            found += more
            at = more[-1].offset + 1
    return found


def audited(log: Log) -> set[str]:
    """The nodes whose audits the ledger has."""
    rows = (event for event in events(log, topics.NODE_RESOURCES) if isinstance(event, NodeResources))
    return {row.node_id for row in rows if row.audit_taken_at_ms is not None}


def without_ages(document: Any) -> Any:
    """What an answer says, without how long ago that was when it was asked."""
    if isinstance(document, dict):
        return {name: without_ages(value) for name, value in document.items() if not name.endswith("age_ms")}
    return [without_ages(each) for each in document] if isinstance(document, list) else document


def events(log: Log, topic: str) -> list[object]:
    return [decode_keyed(record.topic, record.key, record.value) for record in records(log, topic)]


def test_a_request_that_fits_is_placed_and_its_claim_confirmed_once_the_guest_runs(told: Told) -> None:
    placed = told.answers["placed"]
    (claim,) = told.ask("claims", "list").json["items"]

    assert placed.code == 0
    assert (claim["request_id"], claim["state"], claim["vcpus"], claim["memory_mib"]) == ("fits", "confirmed", 2, 1024)
    assert claim["node_id"] == placed.json["items"][0]["node_id"]
    assert claim["node_id"] in {"n1", "n2"}, "n3 is disabled"


def test_a_request_that_fits_nowhere_is_answered_with_4_and_explained_node_by_node(told: Told) -> None:
    explained = told.ask("explain", "too-large")

    assert told.answers["too large"].code == 4
    assert explained.code == 4
    assert explained.json["summary"]["outcome"] != "placed"
    (item,) = explained.json["items"]
    assert item["nodes_known"] == len(NODES)
    assert sum(each["rejected"] for each in item["rejections"]) == len(NODES)


def test_the_evidence_of_a_placement_is_made_again_at_its_own_cut(told: Told) -> None:
    explained = told.ask("explain", "fits")

    assert explained.code == 0
    assert explained.json["summary"]["outcome"] == "placed"
    assert explained.json["items"][0]["instance_id"] == told.answers["placed"].json["items"][0]["instance_id"]


def test_what_is_cancelled_gives_its_claims_back(told: Told) -> None:
    outcomes = [event for event in events(told.host.log, topics.VERDICTS) if isinstance(event, ClaimOutcome)]
    of_two = [outcome.outcome for outcome in outcomes if outcome.claim_id.startswith("two/")]

    assert len(told.answers["two"].json["items"]) == 2
    assert sorted(of_two) == ["granted", "granted", "released", "released"]


def test_a_guest_that_nobody_claimed_is_suspected_confirmed_explained_and_resolved(told: Told) -> None:
    said = told.answers["leaks"]
    # The audit without the stranger may be carried before its departure: then it is a stale instance for a moment, too.
    findings = [event for event in events(told.host.log, topics.FINDINGS) if isinstance(event, Finding)]
    found = [type(event) for event in findings if event.kind == "ghost-instance"]

    assert said.code == 3
    assert [(item["kind"], item["node_id"], item["state"]) for item in said.json["items"]] == [("ghost-instance", "n3", "confirmed")]
    assert said.json["items"][0]["causes"]
    assert found == [LeakSuspected, LeakConfirmed, LeakResolved]
    assert told.ask("leaks").code == 0


def test_nodes_show_what_is_reported_tracked_and_claimed_and_an_earlier_cut_shows_it_as_it_was(told: Told) -> None:
    now = {item["node_id"]: item for item in told.ask("nodes").json["items"]}
    then = told.answers["nodes then"].json
    home = told.answers["placed"].json["items"][0]["node_id"]

    assert {view: now[home]["memory_mib"][view] for view in ("reported", "tracked", "claimed")} == {
        "reported": 1024, "tracked": 1024, "claimed": 1024,
    }  # fmt: skip
    assert {item["node_id"]: item["memory_mib"]["reported"] for item in then["items"]}["n3"] == 2048
    assert now["n3"]["memory_mib"]["reported"] == 0
    assert (now["n3"]["status"], now["n3"]["status_reason"]) == ("disabled", "a stranger lives there")
    assert without_ages(told.ask("nodes", "--at", then["cut"]).json) == without_ages(then)


def test_each_message_that_is_none_is_a_dead_letter_with_its_place(told: Told) -> None:
    letters = told.ask("dead-letters", "list").json["items"]

    assert {letter["topic"] for letter in letters} == {topics.AUDITS, topics.LIFECYCLE, topics.CLAIMS, topics.REQUESTS, topics.RESULTS}
    assert {letter["kind"] for letter in letters} == {"unreadable"}


def test_all_that_was_published_is_what_the_log_says(told: Told) -> None:
    replayed = told.ask("replay", "--verify")

    assert replayed.code == 0
    assert sum(item["granted"] for item in replayed.json["items"]) == 3
    assert sum(item["dead"] for item in replayed.json["items"]) == 1


def copies(folder: Path) -> dict[str, Callable[[], Target]]:
    """New logs to copy to; each call opens another."""
    return {
        "sqlite": lambda: SqliteLog.open(folder / f"copy-{uuid4().hex}", create=True),
        "kafka": lambda: KafkaLog.open(KafkaSettings(bootstrap=bootstrap(), prefix=f"copy-{uuid4().hex[:12]}", single_broker=True)),
    }


def folded(log: Log) -> list[tuple[bytes, list[bytes]]]:
    """Of each partition of claims the digest and every outcome in bytes, by the pure fold."""
    partitions, found = log.topics()[topics.CLAIMS], []
    for number in range(partitions):
        ledger, outcomes = Ledger(number, partitions), list[bytes]()
        while more := log.read(topics.CLAIMS, number, ledger.next_offset):
            for record in more:
                step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
                assert step is not None
                outcomes += [encode(outcome) for outcome in step.outcomes]
        found.append((ledger.digest, outcomes))
    return found


def spec_of(log: Log) -> str:
    return f"{log.settings.place}?single-broker=true" if isinstance(log, KafkaLog) else f"sqlite:{log.path}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("target", ["sqlite", "kafka"])
def test_a_copy_on_either_host_is_the_same_ledger_byte_for_byte(told: Told, target: str) -> None:
    before = {arguments: told.ask(*arguments).json for arguments in (("replay",), ("claims", "list"), ("explain", "fits"))}

    with copies(told.folder)[target]() as copy:
        mirror(told.host.log, copy)

        for topic in COPIED:
            assert records(copy, topic) == records(told.host.log, topic)
        assert folded(copy) == folded(told.host.log)
        after = {arguments: answer(spec_of(copy), *arguments).json for arguments in before}
        assert [without_ages(each) for each in after.values()] == [without_ages(each) for each in before.values()]


def test_what_a_stream_processor_makes_of_a_copy_is_what_was_made_of_the_ledger_and_nothing_is_carried_twice(
    told: Told, tmp_path: Path
) -> None:
    path = tmp_path / "copy"
    with SqliteLog.open(path, create=True) as copy:
        mirror(told.host.log, copy)
        ends = {topic: copy.ends(topic) for topic in COPIED}

    assert run(["run", "--log", f"sqlite:{path}", "--only", "processor", "--until-idle", *UNHURRIED]) == 0

    with SqliteLog.open(path) as copy:
        assert {topic: copy.ends(topic) for topic in COPIED} == ends
        for topic in (topics.VERDICTS, topics.FINDINGS):
            # The same records in the same order, ids included.
            assert said(records(copy, topic)) == said(records(told.host.log, topic))
    assert verb(f"sqlite:{path}", "replay", "--verify").code == 0


def said(found: Sequence[Record]) -> list[tuple[int, bytes, bytes, tuple[tuple[str, bytes], ...]]]:
    return [(record.partition, record.key, record.value, tuple(record.headers)) for record in found]


def test_a_copy_goes_on_where_it_was_interrupted_and_refuses_a_log_that_has_something_else(told: Told, tmp_path: Path) -> None:
    with SqliteLog.open(tmp_path / "copy", create=True) as copy, SqliteLog.open(tmp_path / "other", create=True) as other:
        open_ledger(other, ledger_partitions=PARTITIONS, request_partitions=told.host.log.topics()[topics.REQUESTS])

        first = mirror(told.host.log, copy)
        again = mirror(told.host.log, copy)
        with pytest.raises(OtherLedger, match="another record than in the old log"):
            mirror(told.host.log, other)

    assert sum(first.values()) == sum(len(records(told.host.log, topic)) for topic in COPIED)
    assert set(again.values()) == {0}
    assert Partition(topics.CLAIMS, 0) in first
    assert not any(place.topic in DERIVED_TOPICS for place in first)


def test_what_was_archived_below_a_snapshot_is_still_in_every_answer(told: Told, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    with SqliteLog.open(path, create=True) as copy:
        mirror(told.host.log, copy)
    log, files = f"sqlite:{path}", tmp_path / "files"
    before = {arguments: answer(log, *arguments).json for arguments in (("nodes",), ("claims", "list"), ("leaks",))}

    moved = answer(log, "archive", str(files), "--below", "now").json["items"]

    assert sum(item["moved"] for item in moved) > 0
    after = {arguments: answer(log, *arguments).json for arguments in before}
    assert [without_ages(each["items"]) for each in after.values()] == [without_ages(each["items"]) for each in before.values()]
    assert answer(log, "nodes", "--at", before["nodes",]["cut"]).code == 0, "it is the same ledger for its cuts"
    digests = [[item["digest"] for item in answer(log, "replay", *flags).json["items"]] for flags in ((), ("--archive", str(files)))]
    assert digests[0] == digests[1]
