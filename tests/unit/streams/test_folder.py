"""The folder: what a batch of claims publishes, and that a folder that starts again goes on exactly where its table stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from projections import companions
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.observed import Observed
from projections.snapshots import chunks_of, load_newest
from schemas import topics
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, ClaimRequested, NodeConfigured, NodeObserved
from schemas.codec import decode_keyed, encode, key_of
from schemas.envelope import from_headers
from schemas.findings import LeakConfirmed, LeakResolved, LeakSuspected
from schemas.guests import PciWant
from schemas.inventory import Aggregate, Hypervisor, OperatorFields
from schemas.resources import ObservedResources, Resources
from schemas.results import ClaimOutcome, LedgerDigest, NodeResources
from streams import fold as fold_module
from streams import folder as folder_module
from streams import tables
from streams.dead_letters import DeadLetter, read_letter
from streams.folder import Folder
from streams.ledger_topics import open_ledger
from streams.log.base import Log, LogDamaged, LogFull, LogUnreachable, Message, Record, TopicSpec
from streams.log.memory import MemoryLog
from streams.looked_through import letters_of
from streams.metrics import Metrics
from tests.ledger_history import START_MS
from tests.unit.streams.test_leak_audit import HERE, THERE, by_time, moved_without_a_word

ALL = frozenset({0})


class World:
    """A log with one partition unless told, and the time that stamps its records."""

    def __init__(self, tmp_path: Path, partitions: int = 1) -> None:
        self.now_ms = 1_700_000_000_000
        self.log = MemoryLog(clock=lambda: self.now_ms)
        self.said: list[str] = []
        self.path = tmp_path / "state"
        open_ledger(self.log, ledger_partitions=partitions, request_partitions=1)

    def folder(self) -> Folder:
        return Folder(self.log, self.path, "p1", Metrics("test"), self.said.append, clock=lambda: self.now_ms, audit_interval_ms=60_000)

    def append(self, *events: object) -> None:
        self.log.append([Message(topics.CLAIMS, key_of(event) or b"", encode(event), (), 0) for event in events])  # type: ignore[arg-type]

    def read(self, topic: str) -> list[object]:
        return [decode_keyed(r.topic, r.key, r.value) for r in self.log.read(topic, 0, self.log.start(topic, 0), 100_000)]

    def audit(self, counter: int, instances: tuple[InstanceReport, ...] = ()) -> NodeObserved:
        return NodeObserved(
            node_id="n1",
            producer="a",
            epoch=1,
            counter=counter,
            taken_at_ms=self.now_ms,
            mono_ms=self.now_ms,
            digest=f"d{counter}",
            hypervisor=Hypervisor(vcpus=8, memory_mib=8192, disk_mib=100_000),
            instances=instances,
        )


def claim(number: int, vcpus: int = 1) -> ClaimRequested:
    size = Resources(vcpus=vcpus, memory_mib=512)
    item = ClaimItem(claim_id=f"r{number}/0/s-1.1", instance_id=f"i{number}", nodes=("n1",), resources=size)
    return ClaimRequested(request_id=f"r{number}", owner="s", basis=0, ttl_ms=600_000, items=(item,))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def folded(world: World) -> Ledger:
    ledger = Ledger(0, 1)
    for record in world.log.read(topics.CLAIMS, 0, 0, 1_000_000):
        ledger.apply(record.offset, record.time_ms, record.key, record.value)
    return ledger


def test_a_batch_publishes_verdicts_and_the_row_of_each_node_it_touched(world: World) -> None:
    world.append(world.audit(1), claim(1), claim(2, vcpus=9))
    host = world.folder()

    done = host.turn(ALL)

    assert done == 4
    outcomes = [event for event in world.read(topics.VERDICTS) if isinstance(event, ClaimOutcome)]
    assert [(event.outcome, event.claim_id) for event in outcomes] == [("granted", "r1/0/s-1.1"), ("refused", "r2/0/s-1.1")]
    (row,) = world.read(topics.NODE_RESOURCES)
    assert isinstance(row, NodeResources)
    assert (row.offset, row.vcpus.used, row.vcpus.free, row.memory_mib.claimed) == (3, 1, 7, 512)
    host.close()


def test_a_verdict_is_correlated_with_its_request_and_a_row_with_none(world: World) -> None:
    world.append(world.audit(1), claim(1))
    host = world.folder()
    host.turn(ALL)

    (verdict,) = [from_headers(each.headers) for each in world.log.read(topics.VERDICTS, 0, 0)]
    (row,) = [from_headers(each.headers) for each in world.log.read(topics.NODE_RESOURCES, 0, 0)]

    assert (verdict.correlation_id, verdict.causation_id) == ("r1", "claims/0@2")
    assert (row.correlation_id, row.causation_id) == ("", "claims/0@2")
    host.close()


def test_a_verdict_that_repeats_a_claims_words_for_each_node_tried_can_be_read(world: World) -> None:
    want = PciWant(specs=tuple({"product_id": f"{number}-{'x' * 4000}"} for number in range(60)))
    nodes = tuple(f"n{number}" for number in range(1, 9))
    item = ClaimItem(claim_id="r1/0/s-1.1", instance_id="i1", nodes=nodes, resources=Resources(vcpus=1), pci=(want,))
    audits = [structs.replace(world.audit(1), node_id=node_id) for node_id in nodes]
    world.append(*audits, ClaimRequested(request_id="r1", owner="s", basis=0, ttl_ms=600_000, items=(item,)))
    host = world.folder()

    host.turn(ALL)

    (refused,) = world.read(topics.VERDICTS)
    assert isinstance(refused, ClaimOutcome)
    assert (refused.outcome, refused.tried) == ("refused", nodes)
    lacks = [(lack.resource, lack.needed, lack.free) for shortfalls in refused.shortfalls for lack in shortfalls]
    assert lacks == [("pci", 1, 0)] * len(nodes)
    assert not world.read(topics.DEAD_LETTERS)
    host.close()


def test_the_row_of_a_node_whose_configuration_fills_a_record_can_be_read(world: World) -> None:
    aggregates = tuple(Aggregate(name=f"a{number}", metadata={"words": "x" * 4052}) for number in range(64))
    world.append(world.audit(1), NodeConfigured(record_id="c1", node_id="n1", fields=OperatorFields(aggregates=aggregates)))
    host = world.folder()

    host.turn(ALL)

    (row,) = world.read(topics.NODE_RESOURCES)
    assert isinstance(row, NodeResources)
    assert row.aggregates == aggregates
    assert len(encode(row)) > topics.TOPICS[topics.CLAIMS].value_bytes_max
    host.close()


def test_a_turn_that_has_no_time_for_all_partitions_leaves_the_others_for_the_next_turns(tmp_path: Path) -> None:
    now = [0.0]
    log = MemoryLog()
    open_ledger(log, ledger_partitions=3, request_partitions=1)

    def slow_seconds() -> float:
        now[0] += 1.0
        return now[0]

    host = Folder(log, tmp_path / "state", "p1", Metrics("test"), print, seconds=slow_seconds)

    stood = []
    for _ in range(3):
        left = host.turn(frozenset({0, 1, 2}))
        stood.append((left, [fold.ledger.next_offset for _, fold in sorted(host.folds.items())]))

    assert stood == [(3, [1, 0, 0]), (3, [1, 1, 0]), (3, [1, 1, 1])]
    assert host.turn(frozenset({0, 1, 2})) == 0
    host.close()


def test_where_the_log_does_not_take_a_batch_no_other_partition_is_kept_before_it_does(tmp_path: Path) -> None:
    class Full(MemoryLog):
        """Takes nothing that follows from partition 0 while it is full."""

        is_full = False

        def append(self, messages: Sequence[Message]) -> list[int]:
            if self.is_full and any(message.key.startswith(b"claims/0@") for message in messages):
                raise LogFull("no room")
            return super().append(messages)

    log = Full()
    open_ledger(log, ledger_partitions=3, request_partitions=1)
    host = Folder(log, tmp_path / "state", "p1", Metrics("test"), print)
    while host.turn(frozenset({0, 1, 2})):
        pass
    for number in range(3):
        log.append([Message(topics.CLAIMS, b"n1", b'{"type":"no-such"}', (), number)])

    log.is_full = True
    for _ in range(4):
        with pytest.raises(LogFull):
            host.turn(frozenset({0, 1, 2}))
    before = sum(log.ends(topics.DEAD_LETTERS).values())
    log.is_full = False
    while host.turn(frozenset({0, 1, 2})):
        pass

    assert (before, sum(log.ends(topics.DEAD_LETTERS).values())) == (0, 3)
    host.close()


def test_what_counts_for_nothing_is_a_dead_letter_with_its_position(world: World) -> None:
    world.log.append([Message(topics.CLAIMS, b"n1", b'{"type":"no-such"}', (), 0)])
    host = world.folder()

    host.turn(ALL)

    (letter,) = [read_letter(record) for record in world.log.read(topics.DEAD_LETTERS, 0, 0)]
    assert isinstance(letter, DeadLetter)
    assert (letter.position, letter.kind) == ("claims/0@1", "unknown-type")
    host.close()


def counted_dead(host: Folder) -> float:
    return sum(sample.value for each in host.metrics.dead_letters.collect() for sample in each.samples if sample.name.endswith("_total"))


def test_what_has_a_dead_letter_gets_no_other_and_is_no_news_when_all_is_folded_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "BATCH_RECORDS", 2)
    poison = Message(topics.CLAIMS, b"n1", b"poison", (), 0)
    world.log.append([poison, poison, poison])
    first = world.folder()
    while first.turn(ALL):
        pass
    first.close()
    world.log.append([poison])
    world.path = world.path.with_name("another")
    again = world.folder()
    while again.turn(ALL):
        pass
    world.log.append([poison])
    again.turn(ALL)

    letters = [read_letter(record) for record in world.log.read(topics.DEAD_LETTERS, 0, 0)]

    assert [letter.position for letter in letters if isinstance(letter, DeadLetter)] == [f"claims/0@{offset}" for offset in range(1, 6)]
    assert (counted_dead(first), counted_dead(again)) == (3, 2)
    again.close()


def test_letters_wait_for_a_log_that_cannot_say_which_there_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.log.append([Message(topics.CLAIMS, b"n1", b"poison", (), 0)])
    host = world.folder()
    with monkeypatch.context() as away:
        away.setattr("streams.looked_through.topic_records", away_log)
        with pytest.raises(LogUnreachable):
            host.turn(ALL)
    before = counted_dead(host)

    host.turn(ALL)

    assert (before, counted_dead(host), world.log.end(topics.DEAD_LETTERS, 0)) == (0, 1, 1)
    host.close()


def away_log(*_: object) -> None:
    raise LogUnreachable("away")


def test_a_folder_that_starts_again_goes_on_where_its_table_stands(world: World) -> None:
    world.append(world.audit(1), claim(1))
    first = world.folder()
    first.turn(ALL)
    first.close()
    world.append(claim(2))
    before = world.log.end(topics.VERDICTS, 0)

    again = world.folder()
    again.turn(ALL)

    assert world.log.end(topics.VERDICTS, 0) == before + 1
    assert again.folds[0].ledger.digest == folded(world).digest
    assert again.folds[0].ledger.nodes == folded(world).nodes
    again.close()


def test_rows_are_published_and_kept_once_for_several_batches_of_a_backlog_and_the_outcome_is_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, records in (("BATCH_RECORDS", 2), ("BACKLOG_RECORDS", 5), ("KEPT_RECORDS", 12)):
        monkeypatch.setattr(folder_module, name, records)
    world.append(world.audit(1), *(claim(number) for number in range(36)))
    host = world.folder()
    stood: list[tuple[int, int]] = []
    while host.turn(ALL):
        fold = host.folds[0]
        stood.append((fold.ledger.next_offset, fold.table.next_offset))
    host.close()

    again = world.folder()
    again.turn(ALL)

    assert stood == [(2, 0), (7, 0), (12, 12), (17, 12), (22, 12), (27, 27), (32, 27), (37, 37), (38, 38)]
    assert len(world.read(topics.NODE_RESOURCES)) == 1
    assert len([event for event in world.read(topics.VERDICTS) if isinstance(event, ClaimOutcome)]) == 36
    assert again.folds[0].ledger.digest == folded(world).digest
    assert again.folds[0].ledger.nodes == folded(world).nodes
    again.close()


def test_what_a_backlog_had_not_kept_yet_is_folded_and_published_again_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, records in (("BATCH_RECORDS", 5), ("BACKLOG_RECORDS", 5), ("KEPT_RECORDS", 1_000)):
        monkeypatch.setattr(folder_module, name, records)
    world.append(world.audit(1), *(claim(number) for number in range(20)))
    killed = world.folder()
    for _ in range(2):
        killed.turn(ALL)
    killed.close()
    before = [record.value for record in world.log.read(topics.VERDICTS, 0, 0)]

    again = world.folder()
    while again.turn(ALL):
        pass

    verdicts = [record.value for record in world.log.read(topics.VERDICTS, 0, 0)]
    assert len(before) == 8
    assert verdicts[8:16] == before
    assert len(set(verdicts)) == 20
    assert again.folds[0].ledger.nodes == folded(world).nodes
    again.close()


def test_findings_survive_a_restart_and_are_confirmed_by_the_audit_after_it(world: World) -> None:
    ghost = InstanceReport(instance_id="ghost", resources=ObservedResources(vcpus=1, memory_mib=512))
    world.append(world.audit(1, (ghost,)))
    first = world.folder()
    first.turn(ALL)
    first.close()
    world.now_ms += 60_000
    world.append(world.audit(2, (ghost,)))

    again = world.folder()
    again.turn(ALL)

    findings = world.read(topics.FINDINGS)
    assert [(type(event), getattr(event, "kind", "")) for event in findings] == [
        (LeakSuspected, "ghost-instance"),
        (LeakConfirmed, "ghost-instance"),
    ]
    again.close()


def test_who_begins_at_a_snapshot_says_the_findings_that_are_open_there_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", 1)
    ghost = InstanceReport(instance_id="ghost", resources=ObservedResources(vcpus=1, memory_mib=512))
    world.append(world.audit(1, (ghost,)))
    first = world.folder()
    first.turn(ALL)
    first.close()
    said = world.read(topics.FINDINGS)
    world.log.truncate(topics.FINDINGS, 0, 1)
    world.path = world.path.with_name("another worker's")

    again = world.folder()
    turns = [again.turn(ALL), again.turn(ALL)]

    assert turns == [0, 0]
    assert world.read(topics.FINDINGS) == said
    again.close()


def test_the_metrics_have_what_was_published_also_after_a_restart(world: World) -> None:
    ghost = InstanceReport(instance_id="ghost", resources=ObservedResources(vcpus=1, memory_mib=512))
    world.append(world.audit(1, (ghost,)), claim(1))
    first = world.folder()
    first.turn(ALL)
    first.close()

    again = world.folder()
    again.turn(ALL)
    before = again.metrics.rows["n1"].vcpus.used
    world.append(claim(2))
    again.turn(ALL)

    assert (before, again.metrics.rows["n1"].vcpus.used) == (2, 3)
    assert again.metrics.findings == {("ghost-instance", "suspected"): 1}
    again.close()


def test_a_state_of_another_log_is_discarded_and_folded_anew(world: World, tmp_path: Path) -> None:
    world.append(world.audit(1), claim(1))
    host = world.folder()
    host.turn(ALL)
    host.close()
    other = World(tmp_path)
    other.now_ms += 1
    other.append(other.audit(1), claim(7))

    again = other.folder()
    again.turn(ALL)

    assert any("discarded" in said for said in other.said)
    assert set(again.folds[0].ledger.claims) == {"r7/0/s-1.1"}
    again.close()


def test_a_state_of_another_partition_is_discarded_and_folded_anew(tmp_path: Path) -> None:
    two = World(tmp_path, partitions=2)
    two.append(two.audit(1), claim(1))
    host = two.folder()
    host.turn(frozenset({0, 1}))
    host.close()
    for first, then in (("claims-0", "aside"), ("claims-1", "claims-0"), ("aside", "claims-1")):
        (two.path / first).rename(two.path / then)

    again = two.folder()
    again.turn(frozenset({0, 1}))

    assert [fold.ledger.partition for _, fold in sorted(again.folds.items())] == [0, 1]
    assert [said for said in two.said if "claims/0: the state in the table is discarded: it is of claims/1" in said]
    assert two.log.end(topics.DEAD_LETTERS, 0) == 0
    again.close()


def test_letters_are_looked_for_once_for_all_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, partitions=8)
    world.log.append([Message(topics.CLAIMS, b"n1", b"poison", (), number) for number in range(8)])
    every, looks = frozenset(range(8)), list[str]()
    first = world.folder()
    first.turn(every)
    first.close()

    def looked(log: Log, topic: str) -> dict[int, dict[int, str]]:
        looks.append(topic)
        return letters_of(log, topic)

    monkeypatch.setattr("streams.folder.letters_of", looked)
    world.path = tmp_path / "lost"
    again = world.folder()
    again.turn(every)

    assert (looks, counted_dead(again), world.log.end(topics.DEAD_LETTERS, 0)) == ([topics.CLAIMS], 0, 8)
    again.close()


def test_a_state_begun_at_a_snapshot_that_was_written_before_anybody_folded_is_kept(world: World) -> None:
    """A long ledger is begun so: what no processor has published, none lost."""
    world.append(world.audit(1), claim(1))
    rows = companions.all_rows(Observed(0), Leaks(0), companions.Doubles(0, {}))
    world.log.append([Message(topics.SNAPSHOTS, b"0", encode(chunk), (), 0) for chunk in chunks_of(folded(world), extras=rows)])
    first = world.folder()
    first.turn(ALL)
    first.close()

    again = world.folder()
    again.turn(ALL)

    assert [said for said in world.said if "discarded" in said] == []
    assert world.log.end(topics.VERDICTS, 0) == 0
    again.close()


def test_what_counts_for_nothing_below_a_snapshot_that_somebody_else_wrote_has_its_letter_once(world: World) -> None:
    """`claimlog snapshot write` and `archive` write snapshots of what no processor has folded, and no letters."""
    world.append(world.audit(1), claim(1))
    poison, elsewhere = Message(topics.CLAIMS, b"n1", b"poison", (), 0), Message(topics.CLAIMS, b"n2", encode(world.audit(2)), (), 0)
    world.log.append([poison])
    first = world.folder()
    first.turn(ALL)
    first.close()
    world.log.append([poison, elsewhere])
    world.append(claim(2))
    rows = companions.all_rows(Observed(0), Leaks(0), companions.Doubles(0, {}))
    world.log.append([Message(topics.SNAPSHOTS, b"0", encode(chunk), (), 0) for chunk in chunks_of(folded(world), extras=rows)])
    counts = []
    for name in ("second", "third"):
        world.path = world.path.with_name(name)
        host = world.folder()
        while host.turn(ALL):
            pass
        counts.append(counted_dead(host))
        host.close()

    letters = [read_letter(record) for record in world.log.read(topics.DEAD_LETTERS, 0, 0)]

    found = [(letter.position, letter.kind) for letter in letters if isinstance(letter, DeadLetter)]
    assert found == [("claims/0@3", "unreadable"), ("claims/0@4", "unreadable"), ("claims/0@5", "wrong-key")]
    assert counts == [2, 0]


def test_damage_below_a_snapshot_is_told_and_keeps_nobody_from_beginning_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.append(world.audit(1), claim(1))
    rows = companions.all_rows(Observed(0), Leaks(0), companions.Doubles(0, {}))
    world.log.append([Message(topics.SNAPSHOTS, b"0", encode(chunk), (), 0) for chunk in chunks_of(folded(world), extras=rows)])
    read = world.log.read

    def damaged(topic: str, partition: int, offset: int, records_max: int = 1000, *more: int) -> list[Record]:
        if topic == topics.CLAIMS and offset <= 1 < offset + records_max:
            raise LogDamaged("claims/0@1 is damaged")
        return read(topic, partition, offset, records_max, *more)

    monkeypatch.setattr(world.log, "read", damaged)
    host = world.folder()
    host.turn(ALL)

    assert host.folds[0].ledger.next_offset == 3
    assert [said for said in world.said if "may lack dead letters: claims/0@1 is damaged" in said]
    host.close()


@pytest.mark.parametrize("emptied", [topics.VERDICTS, topics.NODE_RESOURCES, topics.FINDINGS])
def test_what_was_derived_and_is_not_there_is_made_again_though_the_state_is(world: World, emptied: str) -> None:
    """A copy of the ledger, with the state folder of the original; or a derived topic was deleted and made anew."""
    world.append(world.audit(1, (InstanceReport(instance_id="ghost", resources=ObservedResources(vcpus=1)),)), claim(1))
    first = world.folder()
    first.turn(ALL)
    first.close()
    original, world.log = world.log, MemoryLog(clock=lambda: world.now_ms)
    world.log.create([TopicSpec(name, count) for name, count in original.topics().items()])
    for name in original.topics():
        if name != emptied:
            world.log.append([Message(name, r.key, r.value, r.headers, 0) for r in original.read(name, 0, 0, 1000)])

    again = world.folder()
    again.turn(ALL)
    again.close()
    ends = world.log.ends(emptied)
    once_more = world.folder()
    once_more.turn(ALL)

    assert original.end(emptied, 0) > 0
    assert {r.value for r in original.read(emptied, 0, 0, 1000)} <= {r.value for r in world.log.read(emptied, 0, 0, 1000)}
    assert world.log.ends(emptied) == ends, "and not at every start"
    once_more.close()


class _Known(MemoryLog):
    """A log that tells its topics from others of their names, as Kafka does."""

    def __init__(self, world: World, ids: dict[str, str]) -> None:
        super().__init__(clock=lambda: world.now_ms)
        self.ids = ids

    def topic_id(self, topic: str) -> str:
        return self.ids[topic]


def made_anew(world: World, topic: str, *, left: int = 0) -> Log:
    """The log is another one from now on, in which a topic was made anew and has only the first so many records; returns the one before."""
    original, world.log = world.log, _Known(world, dict.fromkeys(topics.TOPICS, "first") | {topic: "second"})
    world.log.create([TopicSpec(name, count) for name, count in original.topics().items()])
    for name in original.topics():
        records = original.read(name, 0, 0, left if name == topic else 1000) if name != topic or left else ()
        world.log.append([Message(name, r.key, r.value, r.headers, 0) for r in records])
    return original


@pytest.mark.parametrize("emptied", [topics.VERDICTS, topics.FINDINGS])
def test_what_was_made_anew_is_said_again_though_some_of_it_was_before_a_kill_or_another_worker_said_something(
    world: World, emptied: str
) -> None:
    world.log = _Known(world, dict.fromkeys(topics.TOPICS, "first"))
    open_ledger(world.log, ledger_partitions=1, request_partitions=1)
    ghosts = tuple(InstanceReport(instance_id=f"ghost{number}", resources=ObservedResources(vcpus=1)) for number in range(3))
    world.append(world.audit(1, ghosts), *(claim(number) for number in range(3)))
    first = world.folder()
    first.turn(ALL)
    first.close()
    original = made_anew(world, emptied, left=1)

    ends = []
    for _ in range(2):
        again = world.folder()
        again.turn(ALL)
        again.close()
        ends.append(world.log.end(emptied, 0))

    assert original.end(emptied, 0) == 3
    assert ends == [4, 4], "all of it, and not at every start"
    assert {r.value for r in original.read(emptied, 0, 0)} == {r.value for r in world.log.read(emptied, 0, 0)}


def test_verdicts_that_were_deleted_are_made_again_by_a_worker_that_has_nothing_but_a_snapshot(world: World) -> None:
    world.append(world.audit(1), *(claim(number) for number in range(3)))
    rows = companions.all_rows(Observed(0), Leaks(0), companions.Doubles(0, {}))
    world.log.append([Message(topics.SNAPSHOTS, b"0", encode(chunk), (), 0) for chunk in chunks_of(folded(world), extras=rows)])
    said = LedgerDigest(ledger_id="L", process="p0", partition=0, offset=4, digest="d", rules_version=1)
    world.log.append([Message(topics.DIGESTS, b"0/p0", encode(said), (), 0)])

    host = world.folder()
    host.turn(ALL)

    assert [line for line in world.said if "claims/0: the snapshot is passed over: node-resources/0 is empty" in line]
    assert len(world.read(topics.VERDICTS)) == 3
    host.close()


def test_a_node_without_audits_for_three_intervals_is_said_to_be_silent_once(world: World) -> None:
    world.append(world.audit(1))
    host = world.folder()
    host.turn(ALL)
    world.now_ms += 181_000

    said = host.turn(ALL)
    host.turn(ALL)
    world.now_ms += 15_000
    host.turn(ALL)

    assert said == 1
    assert host.folds[0].ledger.nodes["n1"].silent_since_ms == 1_700_000_000_000
    assert world.log.end(topics.CLAIMS, 0) == 3
    host.close()


def test_nodes_fall_silent_though_the_clock_is_set_back_meanwhile(world: World) -> None:
    """By two hours, as by hand or by NTP where it was ahead: for so long it shows less than at the last look for silent nodes."""
    passed, back_ms = [0.0], [0]
    host = Folder(
        world.log,
        world.path,
        "p1",
        Metrics("test"),
        print,
        clock=lambda: world.now_ms - back_ms[0],
        audit_interval_ms=60_000,
        seconds=lambda: passed[0],
    )
    world.append(world.audit(1))
    host.turn(ALL)
    host.turn(ALL)
    back_ms[0] = 7_200_000

    said = []
    for _ in range(14):
        world.now_ms += 15_000
        passed[0] += 15
        said.append(host.turn(ALL))

    assert (said[:11], sum(said[11:])) == ([0] * 11, 2), "a word to say, and to fold"
    host.close()


def test_a_node_that_falls_silent_after_the_logs_clock_was_ahead_is_said_so_and_how_far_that_is_shown(world: World) -> None:
    passed, metrics = [0.0], Metrics("test", lambda: world.now_ms)
    host = Folder(
        world.log, world.path, "p1", metrics, print, clock=lambda: world.now_ms, audit_interval_ms=60_000, seconds=lambda: passed[0]
    )

    def pass_by(seconds: int) -> int:
        world.now_ms += seconds * 1000
        passed[0] += seconds
        return host.turn(ALL)

    world.now_ms += 31_536_000_000
    world.append(NodeConfigured(node_id="n1", record_id="c"))
    world.now_ms -= 31_536_000_000
    world.append(world.audit(1))
    in_time = [pass_by(0) - 3, pass_by(0), pass_by(170)]
    late = pass_by(15)
    host.turn(ALL)

    assert (in_time, late) == ([0, 0, 0], 1)
    assert host.folds[0].ledger.nodes["n1"].silent_since_ms == world.now_ms - 185_000
    assert metrics.registry.get_sample_value("claimlog_projection_ahead_seconds", {"partition": "0"}) == 31_536_000 - 185
    host.close()


def test_silent_nodes_are_looked_for_once_settled_also_where_there_is_always_something_new(world: World) -> None:
    seconds = 0.0
    world.append(world.audit(1))
    world.now_ms += 181_000
    host = Folder(world.log, world.path, "p1", Metrics("test"), print, clock=lambda: world.now_ms, seconds=lambda: seconds)
    looked = []
    for number in range(4):
        world.append(claim(number))
        host.turn(ALL)
        looked.append(host.has_looked(ALL))
        seconds += 1.0

    assert looked == [False, False, False, True]
    assert [type(event).__name__ for event in world.read(topics.CLAIMS)].count("NodeSilent") == 1
    host.close()


class _OwnClock(MemoryLog):
    """A log whose clock nobody but itself reads, as that of brokers."""

    has_own_clock = True


@pytest.mark.parametrize("ahead_ms", [86_400_000, 315_360_000_000])
def test_a_processor_whose_clock_is_ahead_of_the_logs_calls_nodes_silent_no_sooner(world: World, ahead_ms: int) -> None:
    world.log = _OwnClock(clock=lambda: world.now_ms)
    open_ledger(world.log, ledger_partitions=1, request_partitions=1)
    passed = [0.0]
    host = Folder(
        world.log,
        world.path,
        "p1",
        Metrics("test"),
        world.said.append,
        clock=lambda: world.now_ms + ahead_ms,
        audit_interval_ms=60_000,
        seconds=lambda: passed[0],
    )

    def pass_by(seconds: int) -> int:
        world.now_ms += seconds * 1000
        passed[0] += seconds
        return host.turn(ALL)

    world.append(world.audit(1))
    host.turn(ALL)
    in_time = [pass_by(60), pass_by(60)]
    world.append(world.audit(2))
    in_time += [pass_by(0) - 1, pass_by(170)]
    late = pass_by(15)

    assert (in_time, late) == ([0, 0, 0, 0], 1)
    assert host.folds[0].ledger.next_offset == world.log.end(topics.CLAIMS, 0) - 1
    host.close()


def test_snapshots_are_written_as_the_log_grows_and_old_ones_are_dropped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", 10)
    world.append(world.audit(1))
    host = world.folder()
    for number in range(60):
        world.append(claim(number))
        host.turn(ALL)

    newest = load_newest(world.log, 0)

    assert newest is not None
    assert world.log.end(topics.CLAIMS, 0) - newest.next_offset < 10
    assert world.log.start(topics.SNAPSHOTS, 0) > 0
    assert len(world.read(topics.SNAPSHOTS)) == folder_module.SNAPSHOTS_KEPT
    host.close()


def test_who_alone_has_what_left_the_log_writes_a_snapshot_at_once(world: World, tmp_path: Path) -> None:
    world.append(world.audit(1), claim(1))
    host = world.folder()
    host.turn(ALL)
    host.close()
    world.log.truncate(topics.CLAIMS, 0, world.log.end(topics.CLAIMS, 0) - 1)
    world.append(claim(2))

    again = world.folder()
    again.turn(ALL)
    again.close()
    world.path = tmp_path / "other"
    other = world.folder()
    other.turn(ALL)

    assert set(other.folds[0].ledger.claims) == {"r1/0/s-1.1", "r2/0/s-1.1"}
    other.close()


@pytest.mark.parametrize(("patience_seconds", "said"), [(0.0, [True]), (60.0, [])])
def test_a_table_that_another_process_has_not_given_up_yet_is_waited_for_and_said_once_where_it_lasts(
    world: World, monkeypatch: pytest.MonkeyPatch, patience_seconds: float, said: list[bool]
) -> None:
    monkeypatch.setattr(tables, "HANDOVER_SECONDS", patience_seconds)
    world.append(world.audit(1), claim(1))
    first, second = world.folder(), world.folder()
    first.turn(ALL)
    world.append(claim(2))

    waited = [second.turn(ALL), second.turn(ALL)]
    first.turn(frozenset())
    folded_now = second.turn(ALL)

    assert (waited, folded_now) == ([1, 1], 1)
    assert ["waiting until the process that had this table gives it up" in each for each in world.said] == said
    assert second.folds[0].ledger.digest == folded(world).digest
    first.close()
    second.close()


def test_double_claims_across_partitions_are_found_kept_over_a_restart_and_resolved_once(tmp_path: Path) -> None:
    both, now_ms = frozenset({0, 1}), [START_MS]
    here, there = moved_without_a_word()
    for at_s in (130, 190):
        here.audit({}, at_s=at_s, node=HERE)
        there.audit({"i": 4}, at_s=at_s, node=THERE)
    log = MemoryLog(clock=lambda: now_ms[0])
    open_ledger(log, ledger_partitions=2, request_partitions=1)

    def folder() -> Folder:
        return Folder(log, tmp_path / "state", "p1", Metrics("test"), print, clock=lambda: now_ms[0])

    def said() -> list[tuple[type, str]]:
        records = [record for number in range(2) for record in log.read(topics.FINDINGS, number, 0)]
        found = [decode_keyed(record.topic, record.key, record.value) for record in sorted(records, key=lambda record: record.time_ms)]
        return [(type(each), getattr(each, "instance_id", "")) for each in found if getattr(each, "kind", "") == "double-claim"]

    first = folder()
    for number, written in by_time(here, there):
        now_ms[0] = written.time_ms
        log.append([Message(topics.CLAIMS, written.key, written.value, (), number)])
        first.turn(both)
    first.close()
    before = said()

    again = folder()
    again.turn(both)
    shown = dict(again.metrics.findings)
    here.release("old", at_s=200, reason="migrated", node=HERE)
    now_ms[0] += 10_000
    log.append([Message(topics.CLAIMS, here.records[-1].key, here.records[-1].value, (), 0)])
    while again.turn(both):
        pass

    assert before == [(LeakSuspected, "i"), (LeakConfirmed, "i")]
    assert shown["double-claim", "confirmed"] == 1
    assert said()[2:] == [(LeakResolved, "i")]
    assert again.metrics.findings["double-claim", "confirmed"] == 0
    again.close()


@pytest.mark.parametrize("restarts_every", [100, 3])
def test_rows_that_were_replaced_are_dropped_now_and_then(world: World, monkeypatch: pytest.MonkeyPatch, restarts_every: int) -> None:
    monkeypatch.setattr(folder_module, "COMPACT_EVERY", 8)
    world.append(world.audit(1))
    host = world.folder()
    kept = []
    for number in range(18):
        world.append(world.audit(2 + number))
        if number % restarts_every == restarts_every - 1:
            host.close()
            host = world.folder()
        host.turn(ALL)
        kept.append(len(world.read(topics.NODE_RESOURCES)))

    assert max(kept) == 8
    assert world.log.end(topics.NODE_RESOURCES, 0) == 18
    host.close()


@pytest.mark.parametrize("remade", [False, True])
def test_snapshots_are_dropped_by_who_writes_only_a_few_between_two_starts_but_none_of_a_topic_made_anew(
    world: World, monkeypatch: pytest.MonkeyPatch, remade: bool
) -> None:
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", 10)
    ids = dict.fromkeys(topics.TOPICS, "first")
    world.log = _Known(world, ids)
    open_ledger(world.log, ledger_partitions=1, request_partitions=1)
    starts = []
    for life in range(6):
        world.append(*(world.audit(10 * life + number) for number in range(10)))
        if life == 3 and remade:
            ids[topics.SNAPSHOTS] = "second"
        host = world.folder()
        host.turn(ALL)
        host.close()
        starts.append(world.log.start(topics.SNAPSHOTS, 0))

    assert starts == ([0, 0, 0, 0, 0, 0] if remade else [0, 0, 0, 1, 2, 3])
    assert world.log.end(topics.SNAPSHOTS, 0) == 6


@pytest.mark.parametrize("kept", [False, True], ids=["before anything is kept", "between"])
def test_who_was_killed_while_verdicts_were_made_again_goes_on_with_that_though_a_snapshot_is_far_ahead(
    world: World, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    world.log = _Known(world, dict.fromkeys(topics.TOPICS, "first"))
    open_ledger(world.log, ledger_partitions=1, request_partitions=1)
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", 10)
    world.append(world.audit(1), *(claim(number, vcpus=0) for number in range(30)))
    first = world.folder()
    first.turn(ALL)
    first.close()
    original = made_anew(world, topics.VERDICTS)
    for name, value in (("BATCH_RECORDS", 6), ("BACKLOG_RECORDS", 6), ("KEPT_RECORDS", 6 if kept else 1000)):
        monkeypatch.setattr(folder_module, name, value)
    monkeypatch.setattr(fold_module, "AHEAD_RECORDS", 1)

    killed = world.folder()
    killed.turn(ALL)
    stood = killed.folds[0].table.next_offset
    killed.close()
    ends = []
    for _ in range(2):
        again = world.folder()
        for _ in range(10):
            again.turn(ALL)
        again.close()
        ends.append(world.log.end(topics.VERDICTS, 0))

    assert (original.end(topics.VERDICTS, 0), stood > 0) == (30, kept)
    assert {r.value for r in original.read(topics.VERDICTS, 0, 0)} == {r.value for r in world.log.read(topics.VERDICTS, 0, 0)}
    assert ends == ([30, 30] if kept else [34, 34]), "and not at every start"


def test_where_the_log_is_another_one_no_snapshots_of_it_are_dropped_for_those_of_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", 10)
    spans = []
    for log in (world.log, MemoryLog(clock=lambda: world.now_ms)):
        world.log = log
        open_ledger(world.log, ledger_partitions=1, request_partitions=1)
        for life in range(5):
            world.append(*(world.audit(10 * life + number) for number in range(10)))
            host = world.folder()
            host.turn(ALL)
            host.close()
            assert load_newest(world.log, 0) is not None
        spans.append((log.start(topics.SNAPSHOTS, 0), log.end(topics.SNAPSHOTS, 0)))

    assert spans == [(2, 5), (2, 5)]
    assert [line for line in world.said if "the state in the table is discarded" in line]

