"""What every log must keep, whichever stores it. A new backend is one more entry in BACKENDS.

Where the contract leaves a log its own way, the test names what it needs, and backends say what they `keep`.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from uuid import uuid4

import pytest

from projections.reading import between
from streams.log.base import (
    Log,
    Message,
    NameTaken,
    OffsetOutOfRange,
    Partition,
    Record,
    TopicMismatch,
    TopicSpec,
    partition_count,
)
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from streams.log.memory import MemoryLog
from streams.log.sqlite import SqliteLog
from tests.kafka_broker import bootstrap

ROOT = Path(__file__).parents[2]

TOPICS = (TopicSpec("claims", 4), TopicSpec("one", 1), TopicSpec("rows", 1, compacted=True))


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class Backend:
    """How to open a log of one kind again and again, and how to append to it from elsewhere at the same time."""

    keeps = frozenset(("the test's clock", "whole batches", "compaction when asked"))

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock

    def open(self) -> Log:
        """The same log once more, as another process would open it."""
        raise NotImplementedError

    def append_at_once(self, writers: int, batches: int, batch: int) -> None:
        """Let `writers` append batches of `batch` records to topic `one` at once; the value names writer, batch and place."""
        raise NotImplementedError


class MemoryBackend(Backend):
    def __init__(self, folder: Path, clock: Clock) -> None:
        super().__init__(folder, clock)
        self.log = MemoryLog(clock=clock)

    def open(self) -> Log:
        return self.log

    def append_at_once(self, writers: int, batches: int, batch: int) -> None:
        def write(writer: int) -> None:
            for number in range(batches):
                self.log.append([Message("one", b"k", b"%d %d %d" % (writer, number, place)) for place in range(batch)])

        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(write, range(writers)))


class SqliteBackend(Backend):
    def open(self) -> Log:
        return SqliteLog.open(self.folder / "log.db", create=True, clock=self.clock)

    def append_at_once(self, writers: int, batches: int, batch: int) -> None:
        program = """
import sys
from streams.log.base import Message
from streams.log.sqlite import SqliteLog
writer, batches, batch = map(int, sys.argv[2:])
with SqliteLog.open(sys.argv[1]) as log:
    for number in range(batches):
        log.append([Message("one", b"k", b"%d %d %d" % (writer, number, place)) for place in range(batch)])
"""
        arguments = [sys.executable, "-c", program, str(self.folder / "log.db")]
        running = [subprocess.Popen([*arguments, str(writer), str(batches), str(batch)], cwd=ROOT) for writer in range(writers)]
        assert [process.wait(60) for process in running] == [0] * writers


class KafkaBackend(Backend):
    """A prefix of its own on the broker that tests share. Times, compaction and what a batch is are the broker's."""

    keeps = frozenset()

    def __init__(self, folder: Path, clock: Clock) -> None:
        super().__init__(folder, clock)
        self.settings = KafkaSettings(bootstrap=bootstrap(), prefix=f"contract-{uuid4().hex[:12]}", single_broker=True)

    def open(self) -> Log:
        return KafkaLog.open(self.settings)


BACKENDS: list[type[Backend]] = [MemoryBackend, SqliteBackend, KafkaBackend]


def needs(what: str) -> pytest.MarkDecorator:
    """Run a test on the backends that keep `what`; those that do not have tests of their own for it."""
    keepers = [each for each in BACKENDS if what in each.keeps]
    return pytest.mark.parametrize("backend", keepers, ids=lambda each: each.__name__, indirect=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=BACKENDS, ids=lambda factory: factory.__name__)
def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Backend:
    made: Backend = request.param(tmp_path, clock)
    return made


@pytest.fixture
def log(backend: Backend) -> Iterator[Log]:
    with backend.open() as log:
        log.create(TOPICS)
        yield log


def message(value: bytes, key: bytes = b"k", topic: str = "one") -> Message:
    return Message(topic, key, value)


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]


def test_what_is_appended_is_read_back_byte_for_byte(log: Log) -> None:
    headers = (("ce_id", b"1"), ("ce_id", b""), ("schlüssel", b"\x00\xff"))

    offsets = log.append([Message("one", b"\x00key", b'{"a":1}\xff', headers), message(b"")])

    records = log.read("one", 0, 0)
    assert offsets == [0, 1]
    assert records == [
        Record("one", 0, 0, records[0].time_ms, b"\x00key", b'{"a":1}\xff', headers),
        Record("one", 0, 1, records[1].time_ms, b"k", b"", ()),
    ]


@needs("the test's clock")
def test_records_carry_the_time_of_the_log_s_clock(log: Log, clock: Clock) -> None:
    log.append([message(b"a"), message(b"b")])

    assert [record.time_ms for record in log.read("one", 0, 0)] == [clock.now_ms, clock.now_ms]


def test_another_reader_sees_what_was_acknowledged(log: Log, backend: Backend) -> None:
    log.append([message(b"a")])

    with backend.open() as other:
        seen = other.read("one", 0, 0)

    assert values(seen) == [b"a"]


def test_offsets_are_dense_and_start_at_zero_in_each_partition(log: Log) -> None:
    batch = [Message("claims", b"k", b"v", partition=number % 3) for number in range(30)]

    offsets = log.append(batch) + log.append(batch)

    assert offsets == [number // 3 for number in range(30)] + [10 + number // 3 for number in range(30)]
    assert log.ends("claims") == {0: 20, 1: 20, 2: 20, 3: 0}
    assert [record.offset for record in log.read("claims", 1, 0)] == list(range(20))


def test_a_batch_over_topics_puts_each_record_into_its_own(log: Log) -> None:
    batch = [Message(topic, b"k", b"%d" % at, (), 0) for at, topic in enumerate(("one", "rows", "claims", "rows"))]

    offsets = log.append(batch) + log.append(batch[:2])

    assert offsets == [0, 0, 0, 1, 1, 2]
    assert values(log.read("one", 0, 0)) == [b"0", b"0"]
    assert values(log.read("rows", 0, 0)) == [b"1", b"3", b"1"]
    assert values(log.read("claims", 0, 0)) == [b"2"]


def test_a_key_goes_where_the_log_says_it_belongs(log: Log) -> None:
    keys = [b"node-%d" % number for number in range(40)] + [b""]

    log.append([message(b"v", key, "claims") for key in keys])

    found = {record.key: number for number in range(4) for record in log.read("claims", number, 0)}
    assert found == {key: log.partition("claims", key) for key in keys}
    assert len(set(found.values())) == 4


@needs("the test's clock")
def test_the_time_of_a_partition_never_goes_back(log: Log, clock: Clock) -> None:
    log.append([message(b"a")])
    clock.now_ms -= 500
    log.append([message(b"b")])
    clock.now_ms += 2000
    log.append([message(b"c")])

    times = [record.time_ms for record in log.read("one", 0, 0)]

    assert times == [1_000_000, 1_000_000, 1_001_500]


@needs("the test's clock")
def test_at_time_is_the_first_record_at_or_after_it(log: Log, clock: Clock) -> None:
    for value in (b"a", b"b", b"b2", b"c"):
        log.append([message(value)])
        clock.now_ms += 0 if value == b"b" else 100

    assert [log.at_time("one", 0, 1_000_000 + ms) for ms in (-5000, 0, 1, 100, 101, 200, 201)] == [0, 0, 1, 1, 3, 3, 4]
    assert log.at_time("claims", 0, 0) == 0


def test_a_batch_with_an_unknown_topic_leaves_nothing_behind(log: Log) -> None:
    with pytest.raises(TopicMismatch, match="clams"):
        log.append([message(b"a"), message(b"b", topic="clams")])

    assert log.end("one", 0) == 0


def test_what_is_not_there_is_named(log: Log) -> None:
    with pytest.raises(TopicMismatch, match=r"clams.*claims"):
        log.read("clams", 0, 0)
    with pytest.raises(TopicMismatch, match="no partition 4"):
        log.end("claims", 4)
    with pytest.raises(TopicMismatch, match="no partition -1"):
        log.read("claims", -1, 0)
    for number in (4, 9, -1):
        with pytest.raises(TopicMismatch, match=f"no partition {number}"):
            log.append([Message("claims", b"k", b"v", partition=number)])
    with pytest.raises(TopicMismatch, match="clams"):
        partition_count(log, "clams")
    assert partition_count(log, "claims") == 4
    with pytest.raises(TopicMismatch, match="clams"):
        log.partition("clams", b"k")
    with pytest.raises(TopicMismatch, match="clams"):
        log.ends("clams")


def test_topics_are_made_once_and_keep_their_partitions(log: Log) -> None:
    log.create([*TOPICS, TopicSpec("more", 2)])

    assert log.topics() == {"claims": 4, "one": 1, "rows": 1, "more": 2}
    with pytest.raises(TopicMismatch, match="4 partitions here, not 8"):
        log.create([TopicSpec("new", 1), TopicSpec("claims", 8)])
    assert "new" not in log.topics()


def test_reading_is_bounded_by_records_and_bytes_but_gives_at_least_one(log: Log) -> None:
    log.append([message(bytes([number]) * 1000) for number in range(50)])

    assert len(log.read("one", 0, 10, records_max=7)) == 7
    assert 1 <= len(log.read("one", 0, 0, bytes_max=5500)) <= 5
    assert [record.offset for record in log.read("one", 0, 3, bytes_max=1)] == [3]
    assert [record.offset for record in log.read("one", 0, 3, bytes_max=0)] == [3]
    assert [record.offset for record in log.read("one", 0, 3, records_max=0)] == [3]
    assert [record.offset for record in log.read("one", 0, 48, records_max=1000)] == [48, 49]


@pytest.mark.parametrize("batch", [1, 4, 1000])
def test_what_stands_between_two_offsets_is_read_in_portions_and_nothing_more(log: Log, batch: int) -> None:
    log.append([message(b"%d" % number) for number in range(12)])

    found = [[record.offset for record in between(log, "one", 0, start, end, batch)] for start, end in ((0, 12), (3, 10), (5, 5), (11, 20))]

    assert found == [[*range(12)], [*range(3, 10)], [], [11]]


@needs("compaction when asked")
def test_what_stands_between_two_offsets_ends_there_in_a_gap_too(log: Log) -> None:
    log.append([message(b"v", b"k" if number in range(3, 9) else b"%d" % number, "rows") for number in range(12)])
    log.compact("rows", 0)

    assert [record.offset for record in between(log, "rows", 0, 1, 6, 2)] == [1, 2]
    assert [record.offset for record in between(log, "rows", 0, 2, 8, 2)] == [2]
    assert [record.offset for record in between(log, "rows", 0, 4, 10, 2)] == [8, 9]


def test_at_the_end_there_is_nothing_and_beyond_it_an_error(log: Log) -> None:
    log.append([message(b"a")])

    assert log.read("one", 0, 1) == []
    with pytest.raises(OffsetOutOfRange, match="one/0@2"):
        log.read("one", 0, 2)
    with pytest.raises(OffsetOutOfRange, match="one/0@-1"):
        log.read("one", 0, -1)


@needs("whole batches")
def test_batches_of_writers_at_once_are_whole_and_in_order(log: Log, backend: Backend) -> None:
    backend.append_at_once(writers=3, batches=20, batch=7)

    records = log.read("one", 0, 0)
    seen = [tuple(map(int, record.value.split())) for record in records]
    assert [record.offset for record in records] == list(range(3 * 20 * 7))
    assert all([place for _, _, place in seen[at : at + 7]] == list(range(7)) for at in range(0, len(seen), 7))
    assert all(len({(writer, number) for writer, number, _ in seen[at : at + 7]}) == 1 for at in range(0, len(seen), 7))
    for writer in range(3):
        assert [number for who, number, place in seen if who == writer and place == 0] == list(range(20))


def test_waiting_ends_at_once_if_a_record_is_there(log: Log) -> None:
    log.append([message(b"a")])
    started = time.monotonic()

    assert log.wait({Partition("claims", 2): 0, Partition("one", 0): 0}, timeout_seconds=30)
    assert time.monotonic() - started < 5


def test_waiting_ends_when_the_time_is_up(log: Log) -> None:
    log.append([message(b"a")])
    started = time.monotonic()

    assert not log.wait({Partition("one", 0): 1, Partition("claims", 0): 0}, timeout_seconds=0.1)
    assert 0.09 < time.monotonic() - started < 5
    assert not log.wait({}, timeout_seconds=0)


def test_waiting_ends_when_someone_else_appends(log: Log, backend: Backend) -> None:
    with backend.open() as other:
        timer = Timer(0.15, lambda: other.append([message(b"a")]))
        started = time.monotonic()
        timer.start()
        woken = log.wait({Partition("claims", 0): 0, Partition("one", 0): 0}, timeout_seconds=30)
        took_seconds = time.monotonic() - started
        timer.join()

    assert woken
    assert 0.1 < took_seconds < 5
    assert values(log.read("one", 0, 0)) == [b"a"]


def test_commits_are_kept_by_group_topic_and_partition(log: Log, backend: Backend) -> None:
    log.commit("reconciler", "claims", {0: 5, 3: 7})
    log.commit("reconciler", "claims", {3: 2})
    log.commit("other", "claims", {1: 1})

    with backend.open() as other:
        assert other.committed("reconciler", "claims") == {0: 5, 3: 2}
        assert other.committed("other", "claims") == {1: 1}
        assert other.committed("reconciler", "one") == {}
    with pytest.raises(TopicMismatch):
        log.commit("reconciler", "claims", {4: 0})
    with pytest.raises(TopicMismatch):
        log.committed("reconciler", "clams")


def test_a_commit_does_not_wake_readers(log: Log, backend: Backend) -> None:
    with backend.open() as other:
        timer = Timer(0.05, lambda: other.commit("g", "one", {0: 1}))
        timer.start()
        woken = log.wait({Partition("one", 0): 0}, timeout_seconds=0.2)
        timer.join()

    assert not woken


@needs("the test's clock")
def test_members_divide_partitions_fairly_and_keep_what_they_can(log: Log, backend: Backend, clock: Clock) -> None:
    first = log.lease("schedulers", "claims", "a", timeout_seconds=10)
    alone = first.partitions()

    with backend.open() as other:
        second = other.lease("schedulers", "claims", "b", timeout_seconds=10)
        joined = second.partitions()
        clock.now_ms += 1000
        left = first.partitions()

        assert alone == {0, 1, 2, 3}
        assert len(joined) == len(left) == 2
        assert joined | left == alone


@needs("the test's clock")
def test_a_silent_member_loses_its_partitions_after_its_time_out(log: Log, backend: Backend, clock: Clock) -> None:
    dead = log.lease("schedulers", "claims", "a", timeout_seconds=10)
    dead.partitions()
    with backend.open() as other:
        live = other.lease("schedulers", "claims", "b", timeout_seconds=10)
        live.partitions()

        clock.now_ms += 9_000
        before = live.partitions()
        clock.now_ms += 1_500
        after = live.partitions()

    assert len(before) == 2
    assert after == {0, 1, 2, 3}


@needs("the test's clock")
def test_the_rest_is_at_work_once_the_others_gave_a_sign_or_their_time_is_out(log: Log, backend: Backend, clock: Clock) -> None:
    """What a member that was killed has is nobody's work until then, whenever that was."""
    killed, live = (log.lease("schedulers", "claims", name, timeout_seconds=10) for name in ("killed", "live"))
    for lease in (killed, live):
        lease.partitions()
    at_work: list[tuple[int, bool]] = []
    with backend.open() as other:
        idle = other.lease("schedulers", "claims", "idle", timeout_seconds=10)
        for second in range(20):
            clock.now_ms += 1_000
            live.partitions()
            if second < 4:
                killed.partitions()
            at_work.append((len(idle.partitions()), idle.is_rest_at_work(second - 6)))

    assert at_work[6] == (1, False), "it is idle since then"
    assert not any(is_at_work for _, is_at_work in at_work[6:12])
    assert at_work[-1] == (2, True)


@needs("the test's clock")
def test_a_member_gives_a_sign_within_seconds_however_long_its_time_out(log: Log, backend: Backend, clock: Clock) -> None:
    live = log.lease("schedulers", "claims", "live", timeout_seconds=1800)
    live.partitions()
    clock.now_ms += 60_000
    with backend.open() as other:
        idle = other.lease("schedulers", "claims", "idle", timeout_seconds=1800)
        idle.partitions()
        before = idle.is_rest_at_work(0.0)
        for _ in range(4):
            clock.now_ms += 1_000
            live.partitions()
            idle.partitions()

        assert (before, idle.is_rest_at_work(4.0)) == (False, True)


@needs("the test's clock")
def test_a_member_that_keeps_asking_stays(log: Log, backend: Backend, clock: Clock) -> None:
    first = log.lease("schedulers", "claims", "a", timeout_seconds=10)
    with backend.open() as other:
        second = other.lease("schedulers", "claims", "b", timeout_seconds=10)
        shares = set()
        for _ in range(60):
            clock.now_ms += 1000
            shares.add((first.partitions(), second.partitions()))

    assert len(shares) <= 2, "the first look is before the second has joined; after that nothing moves"


def test_a_released_share_is_free_at_once(log: Log, backend: Backend, clock: Clock) -> None:
    first = log.lease("schedulers", "claims", "a", timeout_seconds=1000)
    first.partitions()
    first.release()

    with backend.open() as other:
        second = other.lease("schedulers", "claims", "b", timeout_seconds=1000)
        assert second.partitions() == {0, 1, 2, 3}

    clock.now_ms += 900_000
    assert first.partitions() == frozenset()


@needs("the test's clock")
def test_who_comes_under_a_name_has_it_at_once_and_who_had_it_ends(log: Log, backend: Backend, clock: Clock) -> None:
    older = log.lease("schedulers", "claims", "a", timeout_seconds=10)
    older.partitions()
    clock.now_ms += 600

    with backend.open() as other:
        newer = other.lease("schedulers", "claims", "a", timeout_seconds=10)
        taken = newer.partitions()
        with pytest.raises(NameTaken, match="another process called 'a' has started"):
            older.partitions()
        older.release()
        clock.now_ms += 600

        assert taken == newer.partitions() == {0, 1, 2, 3}
        assert older.partitions() == frozenset()


@needs("the test's clock")
def test_who_leaves_without_knowing_that_another_has_its_name_takes_nothing_from_that_one(log: Log, backend: Backend, clock: Clock) -> None:
    older = log.lease("schedulers", "claims", "a", timeout_seconds=10)
    older.partitions()
    clock.now_ms += 600

    with backend.open() as other:
        newer = other.lease("schedulers", "claims", "a", timeout_seconds=10)
        newer.partitions()
        older.release()
        clock.now_ms += 600
        third = log.lease("schedulers", "claims", "b", timeout_seconds=10)

        assert len(third.partitions()) == 2
        clock.now_ms += 600
        assert len(newer.partitions()) == 2


def test_groups_do_not_share(log: Log) -> None:
    first = log.lease("schedulers", "claims", "a")
    second = log.lease("auditors", "claims", "b")

    assert first.partitions() == second.partitions() == {0, 1, 2, 3}


@needs("compaction when asked")
def test_compaction_keeps_the_newest_of_each_key_at_its_offset(log: Log) -> None:
    keys = [b"a", b"b", b"a", b"c", b"b", b"a"]
    log.append([message(b"%d" % at, key, "rows") for at, key in enumerate(keys)])
    before = log.read("rows", 0, 0)

    dropped = log.compact("rows", 0)

    assert dropped == 3
    assert log.read("rows", 0, 0) == before[3:]
    assert [record.offset for record in log.read("rows", 0, 1)] == [3, 4, 5]
    assert [record.offset for record in log.read("rows", 0, 4)] == [4, 5]
    assert (log.start("rows", 0), log.end("rows", 0)) == (0, 6)
    assert log.append([message(b"6", b"a", "rows")]) == [6]
    assert log.compact("rows", 0) == 1
    assert [record.offset for record in log.read("rows", 0, 0)] == [3, 4, 6]
    assert log.compact("rows", 0) == 0


@needs("compaction when asked")
def test_at_time_works_across_gaps(log: Log, clock: Clock) -> None:
    for at, key in enumerate([b"a", b"b", b"b", b"b", b"c"]):
        log.append([message(b"%d" % at, key, "rows")])
        clock.now_ms += 100
    log.compact("rows", 0)

    assert [log.at_time("rows", 0, 1_000_000 + ms) for ms in (0, 50, 300, 301, 400, 401)] == [0, 3, 3, 4, 4, 5]


@needs("compaction when asked")
def test_at_time_finds_each_record_that_compaction_left_beside_others(log: Log, clock: Clock) -> None:
    log.append([message(b"v", b"replaced", "rows"), message(b"v", b"replaced", "rows")])
    for batch in range(120):
        clock.now_ms += 10
        log.append([message(b"v", b"%d/%d" % (batch, at), "rows") for at in range(3)])
    log.compact("rows", 0)

    found = [log.at_time("rows", 0, 1_000_010 + 10 * batch - early) for early in (0, 5) for batch in range(120)]

    assert found == [2 + 3 * batch for batch in range(120)] * 2


@needs("compaction when asked")
def test_compaction_lets_truncated_records_be(log: Log) -> None:
    log.append([message(b"%d" % at, key, "rows") for at, key in enumerate([b"gone", b"a", b"b", b"a", b"a"])])
    log.truncate("rows", 0, 2)

    assert log.compact("rows", 0) == 1
    assert [(record.offset, record.key) for record in log.read("rows", 0, 2)] == [(2, b"b"), (4, b"a")]
    assert (log.start("rows", 0), log.end("rows", 0)) == (2, 5)


def test_only_compacted_topics_are_compacted(log: Log) -> None:
    log.append([message(b"a"), message(b"b")])

    with pytest.raises(TopicMismatch, match="not compacted"):
        log.compact("one", 0)

    assert values(log.read("one", 0, 0)) == [b"a", b"b"]


def test_truncation_moves_the_start_and_nothing_else(log: Log, clock: Clock) -> None:
    for number in range(6):
        log.append([message(b"%d" % number)])
        clock.now_ms += 10

    assert log.truncate("one", 0, 4) == 4
    assert log.truncate("one", 0, 2) == 0
    assert (log.start("one", 0), log.end("one", 0)) == (4, 6)
    assert values(log.read("one", 0, 4)) == [b"4", b"5"]
    assert log.at_time("one", 0, 0) == 4
    with pytest.raises(OffsetOutOfRange, match="one/0@3"):
        log.read("one", 0, 3)
    with pytest.raises(OffsetOutOfRange, match="7"):
        log.truncate("one", 0, 7)


def test_truncation_within_a_batch_counts_each_record_once(log: Log) -> None:
    log.append([message(b"%d" % number) for number in range(6)])

    assert [log.truncate("one", 0, before) for before in (2, 5, 5, 6, 6)] == [2, 3, 0, 1, 0]
    assert (log.start("one", 0), log.end("one", 0)) == (6, 6)
    assert log.read("one", 0, 6) == []


@needs("the test's clock")
def test_offsets_and_times_go_on_after_everything_was_truncated(log: Log, clock: Clock) -> None:
    log.append([message(b"a"), message(b"b")])
    log.truncate("one", 0, 2)
    clock.now_ms -= 400

    offsets = log.append([message(b"c")])

    assert offsets == [2]
    assert [(record.offset, record.time_ms) for record in log.read("one", 0, 2)] == [(2, 1_000_000)]


def test_a_topic_has_a_partition_at_least() -> None:
    with pytest.raises(ValueError, match="topic 'none' needs at least one partition, not 0"):
        TopicSpec("none", 0)


def test_an_empty_batch_is_nothing(log: Log) -> None:
    assert log.append([]) == []
    assert log.ends("one") == {0: 0}


def test_closing_twice_does_nothing(backend: Backend) -> None:
    log = backend.open()
    log.create(TOPICS)

    log.close()
    log.close()

    with backend.open() as again:
        assert again.topics()["claims"] == 4
