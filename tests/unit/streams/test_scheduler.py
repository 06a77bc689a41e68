"""The shell: where it goes on from, how it waits, what it does when the log fails, and what it leaves when it goes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from threading import Timer
from typing import Any, cast

import pytest

from projections.placements import Asked, Placements
from schemas.claims import ClaimRequested, NodeConfigured
from schemas.codec import decode, encode, key_of
from schemas.inventory import Aggregate, OperatorFields
from schemas.requests import Flavor, PlacementRequested, ServerGroup
from schemas.results import Decision, InstancesPlaced, PlacementFailed, SchedulerStarted
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.clock import boot_clock_ms
from streams.engines import RENEWED_SECONDS
from streams.log.base import Lease, Log, LogFull, LogUnreachable, Message, Partition, Record
from streams.placement.messages import Sender
from streams.scheduler import ACT_MS_MAX, COMMIT_EVERY_MS, DECISIONS_MAX, DECISIONS_MIN, GROUP, Clocks, Scheduler
from streams.scheduling.policy import NOVA, Policy
from streams.scheduling.profiles.engine import ProfileEngine
from streams.scheduling.reference import reference_select
from streams.scheduling.select import ENGINES
from tests.scheduling_world import At, World, said, settle, world


def test_it_goes_on_from_ledgers_that_it_is_given() -> None:
    here = world()
    here.host("n1")
    ledgers = here.ledgers()
    here.host("n2")

    scheduler = here.scheduler(ledgers=ledgers)
    settle(scheduler)

    assert all(mine is given for mine, given in zip(scheduler.ledgers, ledgers, strict=True))
    assert [room.node_id for room in scheduler.placer.fleet.rooms()] == ["n1", "n2"]


def test_claims_and_result_belong_to_the_trace_of_their_request() -> None:
    here = world(claims=1, requests=1)
    here.host("n1")
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    requests = [PlacementRequested(request_id=name, flavor=Flavor(vcpus=1, memory_mib=1)) for name in ("traced", "other")]
    headers = ((("traceparent", trace),), ())
    here.log.append([Message(REQUESTS, key_of(each) or b"", encode(each), said) for each, said in zip(requests, headers, strict=True)])
    scheduler = here.scheduler()

    settle(scheduler)

    said = [record for topic in (CLAIMS, RESULTS) for record in here.records(topic, 0) if dict(record.headers).get("ce_correlationid")]
    traces = {(record.topic, dict(record.headers)["ce_correlationid"]): dict(record.headers).get("traceparent") for record in said}
    assert traces == {(CLAIMS, b"traced"): trace, (RESULTS, b"traced"): trace, (CLAIMS, b"other"): None, (RESULTS, b"other"): None}
    assert scheduler.placer.sender.traces == {}


def test_a_request_keeps_its_trace_while_its_partition_goes_and_comes_back() -> None:
    here = world(claims=1, requests=2)
    here.host("n1")
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    by_partition = {here.log.partition(REQUESTS, name.encode()): name for name in map("r{}".format, range(20))}
    names = [by_partition[0], by_partition[1]]
    scheduler = here.scheduler("s1")
    for number, name in enumerate(names):
        request = PlacementRequested(request_id=name, flavor=Flavor(vcpus=1, memory_mib=1))
        here.log.append([Message(REQUESTS, name.encode(), encode(request), (("traceparent", trace),), number)])
    scheduler.turn()
    assert scheduler.placer.sender.traces.keys() == set(names)

    for mine in (frozenset[int](), frozenset({0, 1})):
        scheduler.lease = _Mine(mine)
        scheduler._share()
    settle(scheduler)

    results = [record for number in range(2) for record in here.records(RESULTS, number) if record.key.decode() in names]
    assert [dict(record.headers).get("traceparent") for record in results] == [trace, trace]
    assert scheduler.placer.sender.traces == {}


def test_a_trace_is_forgotten_with_the_answer_that_another_gave_meanwhile() -> None:
    here = world(claims=1, requests=1)
    here.host("n1")
    request = PlacementRequested(request_id="r", flavor=Flavor(vcpus=1, memory_mib=1))
    here.log.append([Message(REQUESTS, b"r", encode(request), (("traceparent", b"00-0af7651916cd43dd-b7ad6b71-01"),), 0)])
    first, second = here.scheduler("s1"), here.scheduler("s2")
    first.lease, second.lease = _Mine(frozenset({0})), _Mine(frozenset())
    first.turn()
    first.lease, second.lease = _Mine(frozenset()), _Mine(frozenset({0}))
    first._share()
    settle(second)

    first.lease = _Mine(frozenset({0}))
    first._share()

    assert first.placer.sender.traces == {}


@pytest.mark.parametrize("value", [b"x" * 256, b"00-a\r\n", b"\xff\xfe\x00", "00-ü".encode()])
def test_what_is_no_trace_context_is_not_handed_on(value: bytes) -> None:
    sender = Sender("s1")

    sender.heard("r", (("traceparent", value),))

    assert sender.traces == {}


class _Mine(Lease):
    """A lease of these."""

    def __init__(self, mine: frozenset[int]) -> None:
        self._mine = mine

    def partitions(self) -> frozenset[int]:
        return self._mine

    def waits_for(self) -> str:
        return ""

    def is_rest_at_work(self, _seconds: float) -> bool:
        return True

    def release(self) -> None:
        """Nothing to give up."""


def test_who_decides_for_longer_than_its_lease_keeps_what_it_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    here = world(claims=1, requests=2)
    for number in range(4):
        here.host(f"n{number}")
    others_had: list[frozenset[int]] = []

    def slow(*asked: Any) -> Decision:
        here.clock.now_ms += 1_000
        other.turn()
        others_had.append(other.partitions)
        return reference_select(*asked)

    monkeypatch.setitem(cast("dict[str, Any]", ENGINES), "slow", slow)
    scheduler, other = here.scheduler("one", engine_name="slow"), here.scheduler("other")
    settle(scheduler, other)
    (mine,) = scheduler.partitions
    here.request(next(f"q{n}" for n in range(99) if here.log.partition(REQUESTS, b"q%d" % n) == mine), count=30)

    settle(scheduler, other)

    assert len(others_had) >= 30, "in one turn, of half a minute"
    assert {*others_had} == {frozenset({1 - mine})}


def test_what_was_decided_before_a_sign_of_life_failed_is_said_and_the_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    here = world(claims=1, requests=1)
    for number in range(4):
        here.host(f"n{number}")
    scheduler = here.scheduler(engine_name="reference")
    settle(scheduler)
    signs: list[None] = []

    def busy() -> frozenset[int]:
        signs.append(None)
        if len(signs) == 3:
            raise LogUnreachable("somebody else writes")
        return frozenset({0})

    monkeypatch.setattr(scheduler.lease, "partitions", busy)
    for number in range(3):
        here.request(f"q{number}")

    with pytest.raises(LogUnreachable, match="somebody else writes"):
        scheduler.turn()
    settle(scheduler)

    assert sorted(each.request_id for each in said(here, RESULTS, InstancesPlaced)) == ["q0", "q1", "q2"]
    assert scheduler.placer.fleet.laid() == frozenset()


def test_the_first_turn_decides_nothing_on_a_fold_that_is_behind_however_late_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.scheduler.FOLDED_PER_TURN", 8)
    monkeypatch.setattr("streams.scheduler.RECORDS_PER_READ", 8)
    here = world(claims=1, requests=1)
    names = [f"n{number}" for number in range(8)]
    for name in names:
        here.host(name)
    for name in names:
        here.set_status(name, "disabled")
    here.request("r")
    scheduler = here.scheduler()
    here.clock.now_ms += 60_000

    settle(scheduler)

    assert [type(decode(RESULTS, record.value)) for record in here.records(RESULTS, 0)] == [SchedulerStarted, PlacementFailed]
    assert ClaimRequested not in [type(decode(CLAIMS, record.value)) for record in here.records(CLAIMS, 0)]


def test_ledgers_of_another_log_are_discarded_and_folded_anew() -> None:
    here, elsewhere = world(claims=1), world(claims=1)
    for name in ("n1", "n2"):
        here.host(name)
    for name in ("x1", "x2"):
        elsewhere.host(name)
    longer = elsewhere.ledgers()
    elsewhere.host("x3")

    for others, reason in ((longer, "the log has another record at offset"), (elsewhere.ledgers(), "the log ends at offset")):
        told: list[str] = []
        scheduler = here.scheduler(ledgers=others, tell=told.append)
        settle(scheduler)
        assert [reason in sentence for sentence in told] == [True]
        assert [room.node_id for room in scheduler.placer.fleet.rooms()] == ["n1", "n2"]


def test_a_ledger_of_another_log_is_discarded_also_where_each_has_one_record() -> None:
    here, elsewhere = world(claims=1), world(claims=1)
    here.host("n1")
    elsewhere.host("x1")

    scheduler = here.scheduler(ledgers=elsewhere.ledgers())
    settle(scheduler)

    assert [room.node_id for room in scheduler.placer.fleet.rooms()] == ["n1"]


def test_requests_that_were_rewound_under_the_schedulers_are_read_again_and_answered_once() -> None:
    here, told = world(), list[str]()
    here.host("n1")
    here.request("r")
    first = here.scheduler()
    settle(first)
    first.close()
    here.log.commit(GROUP, REQUESTS, dict.fromkeys(range(2), 99))
    here.request("r2")

    scheduler = here.scheduler("s2", tell=told.append)
    settle(scheduler)

    assert len(told) == 2
    assert all("schedulers has read up to 99, but the log ends at" in sentence for sentence in told)
    results = [decode(RESULTS, record.value) for number in range(2) for record in here.records(RESULTS, number)]
    assert sorted(result.request_id for result in results if isinstance(result, InstancesPlaced)) == ["r", "r2"]


def test_what_a_full_log_did_not_take_is_appended_once_there_is_room_and_nothing_is_lost() -> None:
    here = world()
    here.host("n1")
    here.request("r")
    failures = [LogFull("no room left"), LogFull("no room left")]

    def full(when: str, _: Sequence[Message]) -> None:
        if when == "before" and failures:
            raise failures.pop()

    scheduler = here.scheduler(log=At(here.log, full))
    for _ in range(2):
        with pytest.raises(LogFull):
            scheduler.turn()
    settle(scheduler)

    assert here.answer("r").placed


def test_who_leaves_commits_and_gives_its_partitions_to_the_others_at_once() -> None:
    here = world()
    here.host("n1")
    first, second = here.scheduler("first"), here.scheduler("second")
    settle(first)
    here.request("r")
    settle(first)

    first.close()
    settle(second)

    assert second.partitions == {0, 1}
    assert here.log.committed(GROUP, REQUESTS) == here.log.ends(REQUESTS)


def test_answers_of_who_stood_still_and_lost_its_partitions_before_it_read_them_back_are_counted_by_it() -> None:
    here = world()
    here.host("n1", vcpus=100, memory_mib=1 << 20, disk_mib=1 << 30)
    first, second = here.scheduler("first"), here.scheduler("second")
    settle(first)
    for number in range(20):
        here.request(f"r{number}", vcpus=1)
    while not (early := len(said(here, RESULTS, InstancesPlaced))):
        first.turn()
    here.clock.now_ms += 20_000
    settle(second)

    settle(first, second)

    counted = [scheduler.placer.counters for scheduler in (first, second)]
    assert [each.placed for each in counted] == [early, 20 - early]
    assert [len(each.latencies_ms) for each in counted] == [early, 20 - early]


def test_who_takes_over_knows_all_results_before_it_owns_whatever_a_log_gives_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Telling(At):
        def news(self, offsets: Mapping[Partition, int]) -> list[Partition]:
            return [place for place, offset in offsets.items() if self.end(*place) != offset]

        def read_bare(self, topic: str, partition: int, offset: int, records_max: int = 1000) -> list[Record]:
            found: list[Record] = self.read(topic, partition, offset, 1)
            return found

    here = world()
    here.host("n1")
    first, second = here.scheduler("first"), here.scheduler("second", log=Telling(here.log, lambda *_: None))
    settle(first)
    second.turn()  # it has looked where there is news
    mine = second.partitions
    for number in range(6):
        here.request(f"r{number}")
    settle(first)
    known: dict[int, int] = {}
    own = second.placer.own

    def owned(partition: int, placements: Placements, claims_ends: Sequence[int], committed: int = 0) -> None:
        known[partition] = placements.results_next
        own(partition, placements, claims_ends, committed)

    monkeypatch.setattr(second.placer, "own", owned)
    first.close()
    here.clock.now_ms += 10_000
    settle(second)

    assert known == {partition: end for partition, end in here.log.ends(RESULTS).items() if partition not in mine}
    assert any(known.values())


def test_who_takes_over_reads_a_long_past_in_many_turns_renews_its_lease_between_them_and_answers_nothing_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, told = world(requests=1), list[str]()
    here.host("n1")
    first = here.scheduler("first")
    settle(first)
    for number in range(10):
        here.request(f"r{number}")
        settle(first)
    first.close()
    here.log.commit(GROUP, REQUESTS, {0: 99})  # It was rewound, too: all is read from the start.
    here.request("new")
    results = here.log.end(RESULTS, 0)
    monkeypatch.setattr("streams.scheduler.RECORDS_PER_READ", 2)
    monkeypatch.setattr("streams.scheduler.RESULTS_PER_TURN", 2)

    second, other = here.scheduler("second", tell=told.append), here.scheduler("other")
    turns = 0
    while not second.partitions:
        assert here.log.end(RESULTS, 0) <= results + 2, "only their starts are said"
        assert second.turn(60.0)  # It does not wait for news meanwhile.
        here.clock.now_ms += 9_000  # A lease that was not renewed would be lost in the next turn but one.
        assert not other.partitions
        other.turn()
        turns += 1
    settle(second)

    assert turns > 5
    assert len(told) == 1
    found = [decode(RESULTS, record.value) for record in here.records(RESULTS, 0)]
    answered = [each.request_id for each in found if isinstance(each, InstancesPlaced | PlacementFailed)]
    assert sorted(answered) == ["new", *(f"r{n}" for n in range(10))]


def test_it_waits_for_the_log_and_wakes_for_a_request() -> None:
    here = world()
    here.host("n1")
    scheduler = here.scheduler()
    settle(scheduler)
    writer = Timer(0.05, here.request, ["r"])

    started = time.monotonic()
    writer.start()
    idle = scheduler.turn(20.0)
    woken = scheduler.turn()
    writer.join()

    assert (idle, woken > 0) == (0, True)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("group", [None, ServerGroup(group_id="g", policy="affinity")])
def test_a_request_with_a_group_waits_for_all_claims_of_before_as_others_may_just_have_said_its_policy(
    group: ServerGroup | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world(claims=1, requests=1)
    here.host("n1")
    scheduler = here.scheduler(policy=Policy(filters=("RamFilter", "ServerGroupAffinityFilter")))
    settle(scheduler)
    here.clock.now_ms += 1_000_000  # It has been here for long, and is not eager any more.
    scheduler.turn()
    waits = list[bool]()
    asked = scheduler.placer.asked

    def note(partition: int, found: Asked, claims_ends: Sequence[int] | None = None) -> None:
        waits.append(claims_ends is not None)
        asked(partition, found, claims_ends)

    monkeypatch.setattr(scheduler.placer, "asked", note)

    here.request("r", group=group)
    settle(scheduler)

    assert waits == [group is not None]


def test_who_has_folded_a_long_past_waits_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.scheduler.RECORDS_PER_READ", 2)
    monkeypatch.setattr("streams.scheduler.FOLDED_PER_TURN", 2)
    here = world(claims=1)
    for number in range(7):
        here.host(f"n{number}")
    waits: list[float] = []
    monkeypatch.setattr(here.log, "wait", lambda _, seconds: waits.append(seconds))
    scheduler = here.scheduler()

    folded = [scheduler.turn(20.0) and scheduler.ledgers[0].next_offset for _ in range(3)]
    before = waits[:]
    for _ in range(2):
        scheduler.turn(20.0)

    assert (folded, before, waits[-1]) == ([2, 4, 6], [], 20.0)


def test_it_reads_back_what_it_said_before_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    here = world()
    here.host("n1")
    scheduler = here.scheduler()
    settle(scheduler)
    here.request("r")
    answers_at_waits: list[int] = []
    monkeypatch.setattr(here.log, "wait", lambda *_: answers_at_waits.append(sum(here.log.ends(RESULTS).values())))

    scheduler.turn(20.0)  # The claim.
    scheduler.turn(20.0)  # The result.
    assert answers_at_waits == []
    scheduler.turn(20.0)

    assert answers_at_waits == [sum(here.log.ends(RESULTS).values())]
    assert here.answer("r").reason is None


class Far:
    """A log that takes records without being waited for; they land in it when somebody waits, unless it `holds` them."""

    def __init__(self, here: World) -> None:
        self._log = here.log
        self.under_way: list[Sent] = []
        self.lost: LogUnreachable | None = None
        self.waits, self.holds = 0, False

    def begin(self, messages: Sequence[Message]) -> Sent:
        self.under_way.append(Sent(self, messages))
        return self.under_way[-1]

    def land(self) -> None:
        for sent in [] if self.holds else self.under_way:
            sent.land(self._log)
        self.under_way = [sent for sent in self.under_way if not sent.is_there]

    def wait(self, offsets: Mapping[Partition, int], timeout_seconds: float) -> bool:
        self.waits += 1
        self.land()
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Sent:
    def __init__(self, far: Far, messages: Sequence[Message]) -> None:
        self.messages, self.ends, self.is_there = messages, dict[Partition, int](), False
        self._far = far

    def land(self, log: Log) -> None:
        for message, offset in zip(self.messages, log.append(self.messages), strict=True):
            self.ends[Partition(message.topic, log.partition(message.topic, message.key))] = offset + 1
        self.is_there = True

    def landed(self, timeout_seconds: float = 0.0) -> bool:
        if self._far.lost is not None:
            raise self._far.lost
        if timeout_seconds:
            self._far.land()
        return self.is_there


def test_on_a_log_far_away_it_takes_up_the_next_request_while_a_claim_is_on_its_way() -> None:
    here = world(requests=1)
    here.host("n1")
    far = Far(here)
    scheduler = here.scheduler(log=far)
    scheduler.turn()
    here.request("r1")
    scheduler.turn()
    scheduler.turn()
    results = [decode(RESULTS, record.value) for record in here.records(RESULTS, 0)]
    far.waits, far.holds = 0, True
    here.request("r2")
    scheduler.turn()
    here.request("r3")
    scheduler.turn()

    claimed = [message.key for sent in far.under_way for message in sent.messages if message.topic == CLAIMS]

    assert [type(result) for result in results] == [SchedulerStarted, InstancesPlaced]
    assert len(claimed) == 2
    assert far.waits == 2, "each turn waited for what it said, and nothing else"


def test_on_a_log_far_away_a_turn_is_idle_only_when_all_that_was_said_came_back() -> None:
    here = world()
    here.host("n1")
    for number in range(3):
        here.request(f"r{number}")

    settle(here.scheduler(log=Far(here)))

    assert all(here.answer(f"r{number}").placed for number in range(3))


def test_what_a_log_far_away_gave_up_is_said_again_and_each_request_answered_once() -> None:
    here = world()
    here.host("n1")
    far = Far(here)
    scheduler = here.scheduler(log=far)
    settle(scheduler)
    here.request("r")
    far.holds = True
    scheduler.turn()
    said = [message.value for sent in far.under_way for message in sent.messages]
    far.lost = LogUnreachable("not acknowledged")
    with pytest.raises(LogUnreachable):
        scheduler.turn()
    far.under_way.clear()
    far.lost, far.holds = None, False
    scheduler.turn()
    again = [record.value for number in range(2) for record in here.records(CLAIMS, number)]
    settle(scheduler)

    assert said[0] in again
    assert here.answer("r").placed
    assert len([claim for ledger in here.ledgers() for claim in ledger.claims]) == 1


def test_who_leaves_waits_for_what_it_said_last() -> None:
    here = world()
    here.host("n1")
    far = Far(here)
    scheduler = here.scheduler(log=far)
    settle(scheduler)
    far.holds = True
    here.request("r")
    scheduler.turn()
    far.holds = False
    before = sum(len(ledger.claims) for ledger in here.ledgers())

    scheduler.close()

    assert (before, sum(len(ledger.claims) for ledger in here.ledgers())) == (0, 1)


def test_two_share_the_partitions_of_requests() -> None:
    here = world()
    first, second = here.scheduler("first"), here.scheduler("second")

    for _ in range(3):
        first.turn()
        second.turn()
        here.clock.now_ms += 1000

    assert sorted([*first.partitions, *second.partitions]) == [0, 1]
    assert len(first.partitions) == 1


def test_what_is_no_request_is_passed_over() -> None:
    here = world(requests=1)
    here.host("n1")
    here.log.append([Message(REQUESTS, b"r", b"{"), Message(CLAIMS, b"n1", b"not json")])
    here.request("r")

    settle(here.scheduler())

    assert here.answer("r").placed


@pytest.mark.parametrize(
    ("name", "option", "number"),
    [
        ("AggregateNumInstancesFilter", "max_instances_per_host", "9" * 20),
        ("AggregateIoOpsFilter", "max_io_ops_per_host", "9" * 20),
        ("AggregateRamFilter", "ram_allocation_ratio", "1e300"),
    ],
)
def test_a_bound_of_an_aggregate_beyond_all_amounts_bounds_nothing(name: str, option: str, number: str) -> None:
    there = world()
    there.host("n1")
    aggregates = (Aggregate(name="a", metadata={option: number}),)
    there.say(CLAIMS, NodeConfigured(node_id="n1", record_id="x", fields=OperatorFields(aggregates=aggregates)))
    there.request("r1")

    settle(there.scheduler(policy=Policy(filters=(name,))))

    assert [named.node_id for named in there.answer("r1").named] == ["n1"]


@pytest.mark.parametrize("engine_name", ["profiles", "reference"])
def test_multipliers_of_aggregates_whose_sum_no_result_could_carry_do_not_count(engine_name: str) -> None:
    there = world()
    for node_id, memory_mib in (("n1", 8192), ("n2", 65_536)):
        there.host(node_id, memory_mib=memory_mib)
        aggregates = (Aggregate(name="a", metadata={"ram_weight_multiplier": "-1.7e308", "cpu_weight_multiplier": "-1.7e308"}),)
        there.say(CLAIMS, NodeConfigured(node_id=node_id, record_id=f"x {node_id}", fields=OperatorFields(aggregates=aggregates)))
    there.request("r1")

    settle(there.scheduler(policy=NOVA, engine_name=engine_name))

    assert [named.node_id for named in there.answer("r1").named] == ["n2"]


def test_the_boot_clock_only_runs() -> None:
    before = boot_clock_ms()

    assert boot_clock_ms() >= before


def test_while_requests_wait_batches_grow_and_shrink_again_where_deciding_takes_long() -> None:
    here, step_ms = world(), [0]
    here.host("n1", vcpus=4000, memory_mib=4_000_000)
    for number in range(1500):
        here.request(f"r{number}")

    def boot() -> int:
        here.clock.now_ms += step_ms[0]
        return here.clock.boot()

    scheduler = Scheduler(here.log, "s", clocks=Clocks(here.clock.wall, boot))
    grown = [scheduler.turn() and scheduler.placer.decisions_per_turn for _ in range(3)]
    step_ms[0] = ACT_MS_MAX + 1
    shrunk = [scheduler.turn() and scheduler.placer.decisions_per_turn for _ in range(5)]
    step_ms[0] = 0
    settle(scheduler)

    assert grown[-1] == DECISIONS_MAX
    assert shrunk[-1] == DECISIONS_MIN
    assert scheduler.placer.counters.placed == 1500


def test_no_request_waits_for_what_the_engine_builds_first_nor_for_what_a_fleet_twice_as_large_takes() -> None:
    here = world()
    here.host("n1")
    scheduler = here.scheduler(engine_name="profiles")
    settle(scheduler)
    built = list(scheduler.placer.fleet.followers.values())
    for number in range(2, 5):
        here.host(f"n{number}")
    settle(scheduler)

    decided = scheduler.placer.counters.decisions

    assert [type(each) for each in built] == [ProfileEngine]
    assert isinstance(built[0], ProfileEngine)
    assert len(built[0].view.rooms) == 4
    assert decided == 0


def test_of_partitions_with_more_than_a_batch_another_one_comes_first_each_turn() -> None:
    here = world()
    here.host("n1")
    scheduler = here.scheduler()
    settle(scheduler)
    for number in range(20):
        here.request(f"r{number}", vcpus=0)
    scheduler.placer.decisions_per_turn = 1

    for _ in range(2):
        scheduler.turn()

    assert all(any(work.seats[0].claim_id for work in desk.works.values()) for desk in scheduler.placer.desks.values())


def test_each_fold_tells_where_digests_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.scheduler.DIGEST_EVERY", 2)
    here, told = world(claims=1), list[int]()
    for number in range(5):
        here.host(f"n{number}")
    scheduler = here.scheduler()
    scheduler.each_digest = lambda ledger: told.append(ledger.next_offset - 1)

    settle(scheduler)

    assert told == [0, 2, 4]


class Lent(At):
    """The log of a scheduler that owns what the test says, and may not hear where `claims` end."""

    def __init__(self, here: World) -> None:
        super().__init__(here.log, lambda *_: None)
        self.mine, self.is_deaf = frozenset({0, 1}), False

    def lease(self, group: str, topic: str, member: str, timeout_seconds: float = 10.0) -> Lease:
        del group, topic, member, timeout_seconds
        return self

    def partitions(self) -> frozenset[int]:
        return self.mine

    def waits_for(self) -> str:
        return ""

    def is_rest_at_work(self, _seconds: float) -> bool:
        return True

    def release(self) -> None:
        self.mine = frozenset()

    def ends(self, topic: str) -> dict[int, int]:
        if self.is_deaf and topic == CLAIMS:
            raise LogUnreachable("no answer")
        found: dict[int, int] = self._log.ends(topic)
        return found


def test_what_was_read_of_a_partition_before_it_was_lost_is_its_next_owners() -> None:
    here = world()
    here.host("n1")
    lent = Lent(here)
    scheduler = here.scheduler(log=lent)
    settle(scheduler)
    names = [next(name for n in range(50) if here.log.partition(REQUESTS, (name := f"r{n}").encode()) == p) for p in range(2)]
    for name in names:
        here.request(name)
    lent.is_deaf = True
    with pytest.raises(LogUnreachable):
        scheduler.turn()
    lent.is_deaf, lent.mine = False, frozenset({1})

    settle(scheduler)
    meanwhile = [name for name in names if any(name in placements.answers for placements in here.placements())]
    lent.mine = frozenset({0, 1})
    settle(scheduler)

    assert meanwhile == names[1:]
    assert all(here.answer(name).placed for name in names)


class Forgetful(Far):
    """A log that stores soon only what it comes to."""

    def __init__(self, here: World) -> None:
        super().__init__(here)
        self.soon: list[Mapping[int, int]] = []
        self.stored: list[Mapping[int, int]] = []

    def commit_soon(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        del group, topic
        self.soon.append(offsets)

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self.stored.append(offsets)
        self._log.commit(group, topic, offsets)


def test_on_a_log_far_away_nobody_waits_for_a_commit_but_who_leaves() -> None:
    here = world(requests=1)
    here.host("n1")
    far = Forgetful(here)
    scheduler = here.scheduler(log=far)
    here.request("r")
    settle(scheduler)
    here.clock.now_ms += COMMIT_EVERY_MS
    scheduler.turn()
    meanwhile = far.stored[:]

    scheduler.close()

    assert (far.soon[-1], meanwhile) == ({0: 1}, [])
    assert (far.stored, here.log.committed(GROUP, REQUESTS)) == ([{0: 1}], {0: 1})


def storing(monkeypatch: pytest.MonkeyPatch) -> tuple[World, Scheduler, list[dict[int, int]]]:
    """A scheduler that is asked for something, and what it has its log store."""
    here, stored = world(requests=1), list[dict[int, int]]()
    monkeypatch.setattr(here.log, "commit", lambda _group, _topic, offsets: stored.append(dict(offsets)))
    here.host("n1")
    scheduler = here.scheduler()
    here.request("r")
    return here, scheduler, stored


def test_on_a_log_at_hand_only_what_moved_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    here, scheduler, stored = storing(monkeypatch)
    for _ in range(4):
        settle(scheduler)
        here.clock.now_ms += COMMIT_EVERY_MS

    scheduler.close()

    assert stored == [{0: 0}, {0: 1}]


def test_what_a_broker_may_forget_is_stored_again_each_day_though_nobody_asks_for_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    here, scheduler, stored = storing(monkeypatch)
    settle(scheduler)
    for passed_ms in (COMMIT_EVERY_MS, COMMIT_EVERY_MS, int(RENEWED_SECONDS * 1000), COMMIT_EVERY_MS):
        here.clock.now_ms += passed_ms
        scheduler.turn()

    assert stored[-2:] == [{0: 1}, {0: 1}]
    assert len(stored) == 3
