"""The rules of placement, one history each (DESIGN section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from projections.placements import Asked, Placements
from schemas.claims import ClaimReleased, ClaimRequested, NodeConfigured, NodeObserved
from schemas.codec import decode, encode, key_of
from schemas.inventory import Hypervisor, OperatorFields, PciDevice
from schemas.requests import INSTANCES_MAX, Flavor, PciWant, PlacementRequested
from schemas.results import InstancesPlaced, PlacementFailed, SchedulerStarted
from schemas.topics import CLAIMS, REQUESTS, RESULTS, TOPICS
from streams.cli.run import PROCESS_CHARACTERS_MAX
from streams.log.base import LogUnreachable, Message, Record
from streams.placement.checks import unfit
from streams.placement.placer import RESTARTS_MAX, Placer
from streams.scheduler import COMMIT_EVERY_MS, EAGER_MS, GROUP, Scheduler
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import DEFAULT, digest, text
from streams.scheduling.select import engine
from tests.scheduling_world import START_MS, TTL_MS, At, World, hosts, rival, said, settle, wrongs

LIKELY_TURNS = 12


def held(here: World) -> set[str]:
    return {claim_id for ledger in here.ledgers() for claim_id in ledger.claims}


class Deaf:
    """A log of which claims from some offset on are not heard."""

    def __init__(self, here: World) -> None:
        self._log = here.log
        self.from_offset: int | None = None

    def read(self, topic: str, partition: int, offset: int, limit: int = 1000) -> Sequence[Record]:
        is_deaf = topic == CLAIMS and self.from_offset is not None and offset >= self.from_offset
        return () if is_deaf else self._log.read(topic, partition, offset, limit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def nothing(_: str, __: Sequence[Message]) -> None:
    """No weather at all."""


def test_a_placement_is_a_result_that_names_a_held_claim_with_its_evidence() -> None:
    here = hosts("n1")
    here.request("r")

    settle(here.scheduler())

    (result,) = said(here, RESULTS, InstancesPlaced)
    assert {placement.claim_id for placement in result.placements} == held(here)
    assert (result.placements[0].node_id, result.decisions[0].chosen) == ("n1", "n1")
    assert result.commit_by_ms == START_MS + TTL_MS // 4 + 5000
    assert wrongs(here) == []


def test_a_scheduler_says_once_at_its_start_what_its_policy_digest_stands_for() -> None:
    here = hosts()

    settle(here.scheduler())

    (started,) = said(here, RESULTS, SchedulerStarted)
    assert (started.policy_digest, started.policy, started.started_ms) == (digest(DEFAULT), text(DEFAULT), START_MS)


def test_a_request_before_any_node_is_known_fails_with_what_to_wait_for() -> None:
    here = hosts()
    here.request("r")

    settle(here.scheduler())

    (result,) = said(here, RESULTS, PlacementFailed)
    assert result.message == "no node for instance 0 of 1: no node is known yet; ask again when a hypervisor has been audited"


def test_a_request_that_fits_nowhere_fails_at_once_with_counts_and_the_nearest_miss() -> None:
    here = hosts("n1", "n2", vcpus=2)
    here.request("r", vcpus=3)

    settle(here.scheduler())

    (result,) = said(here, RESULTS, PlacementFailed)
    assert result.reason == "no-valid-node"
    assert result.message.startswith("no node for instance 0 of 1: of 2 nodes rejected by CoreFilter 2; nearest n1: vcpus: 3 needed")
    assert said(here, CLAIMS, ClaimRequested) == []


def test_a_failure_says_which_of_the_nodes_that_it_asks_for_nobody_knows() -> None:
    here = hosts("n1")
    here.request("one", requested_nodes=("n1", "n9", "n9"), vcpus=100)
    here.request("all", forced_nodes=("n6", "n7", "n8", "n9"))

    settle(here.scheduler())

    messages = {result.request_id: result.message for result in said(here, RESULTS, PlacementFailed)}
    assert messages["one"].endswith("; nearest n1: vcpus: 100 needed of 8; no node is known as n9")
    assert messages["all"].endswith("; no node is known as n6, n7, n8 and 1 more")


def test_several_instances_are_one_record_a_partition_and_one_result() -> None:
    here = hosts("n0", "n1", "n2", "n3", vcpus=1)
    here.request("r", count=4)

    settle(here.scheduler())

    records = said(here, CLAIMS, ClaimRequested)
    assert sorted(len(record.items) for record in records) == sorted(
        sum(here.log.partition(CLAIMS, name.encode()) == partition for name in ("n0", "n1", "n2", "n3")) for partition in (0, 1)
    )
    (result,) = said(here, RESULTS, InstancesPlaced)
    assert sorted(placement.node_id for placement in result.placements) == ["n0", "n1", "n2", "n3"]


def test_all_or_nothing_if_one_instance_has_no_place_none_is_claimed() -> None:
    here = hosts("n0", "n1", vcpus=1)
    here.request("r", count=3)

    settle(here.scheduler())

    assert [result.reason for result in said(here, RESULTS, PlacementFailed)] == ["no-valid-node"]
    assert said(here, CLAIMS, ClaimRequested) == []


def test_nothing_is_refused_before_the_fold_reached_the_ends_read_after_the_request() -> None:
    here = hosts("n1", claims=1)
    ledgers = here.ledgers()
    placer = Placer("s", 1, Fleet(ledgers), DEFAULT, engine("reference"), 1)
    placer.own(0, Placements(0, 1), [1])
    request = PlacementRequested(request_id="r", flavor=Flavor(vcpus=99))
    placements = placer.desks[0].placements
    placements.open["r"] = asked = Asked(request, 0, START_MS)
    placer.asked(0, asked, [2])

    before = placer.act(START_MS, 0)
    here.host("n2")
    (record,) = here.log.read(CLAIMS, 0, 1)
    step = ledgers[0].apply(record.offset, record.time_ms, record.key, record.value)
    assert step is not None
    placer.folded(0, step)
    after = [decode(message.topic, message.value) for message in placer.act(START_MS, 0)]

    assert before == []
    assert [(type(event), event.decisions[0].nodes_known) for event in after] == [(PlacementFailed, 2)]


def test_a_request_is_decided_at_once_and_refused_only_after_the_ends_were_read() -> None:
    here = hosts("n1", "n3", "n4", claims=1)
    ledgers = here.ledgers()
    placer = Placer("s", 1, Fleet(ledgers), DEFAULT, engine("reference"), 1)
    placer.own(0, Placements(0, 1), [3])
    for number, vcpus in enumerate((1, 99, 9)):
        request = PlacementRequested(request_id=f"r{number}", flavor=Flavor(vcpus=vcpus), dry_run=number == 2)
        placer.desks[0].placements.open[request.request_id] = asked = Asked(request, number, START_MS)
        placer.asked(0, asked)

    at_once = [decode(message.topic, message.value) for message in placer.act(START_MS, 0)]
    (claimed,) = at_once
    step = ledgers[0].apply(3, START_MS, key_of(claimed) or b"", encode(claimed))
    assert step is not None
    placer.folded(0, step)
    still = [decode(message.topic, message.value) for message in placer.act(START_MS, 0)]
    wanted = placer.wants_ends
    placer.ends_are([5])
    behind = placer.act(START_MS, 0)
    here.host("n2", vcpus=12)
    (record,) = here.log.read(CLAIMS, 0, 3)
    step = ledgers[0].apply(4, record.time_ms, record.key, record.value)
    assert step is not None
    placer.folded(0, step)
    at_last = [decode(message.topic, message.value) for message in placer.act(START_MS, 0)]

    assert (type(claimed), claimed.request_id) == (ClaimRequested, "r0")
    assert [(type(event), event.request_id) for event in still] == [(InstancesPlaced, "r0")]
    assert (wanted, placer.wants_ends, behind) == (True, False, [])
    assert [(type(event), event.request_id, event.decisions[0].chosen) for event in at_last] == [
        (PlacementFailed, "r1", ""),
        (InstancesPlaced, "r2", "n2"),
    ]


def zone(here: World, node_id: str, name: str) -> None:
    """The operator puts a node into a zone."""
    ends = sum(here.log.ends(CLAIMS).values())
    here.say(CLAIMS, NodeConfigured(node_id=node_id, record_id=f"zone {ends}", fields=OperatorFields(zone=name)))


def test_who_asks_for_a_zone_is_placed_as_the_zones_were_when_it_asked() -> None:
    old, new = ("n1", "n2", "n3", "n4", "n5"), ("n6", "n7", "n8", "n9", "n10")
    here = hosts(*old, *new, claims=1)
    for name in old:
        zone(here, name, "a")
    deaf = Deaf(here)
    scheduler = here.scheduler(log=At(deaf, nothing))
    settle(scheduler)
    here.clock.now_ms += EAGER_MS
    deaf.from_offset = here.log.end(CLAIMS, 0)
    for name in new:
        zone(here, name, "a")
    for name in old:
        zone(here, name, "b")

    here.request("no matter where")
    scheduler.turn()
    here.request("in a zone", availability_zone="a")
    scheduler.turn()
    at_once = [claim.request_id for claim in said(here, CLAIMS, ClaimRequested)]
    deaf.from_offset = None
    settle(scheduler)

    assert at_once == ["no matter where"]
    assert here.answer("in a zone").named[0].node_id in new


@pytest.mark.parametrize("room_elsewhere", [True, False])
def test_a_conflict_is_counted_and_the_request_goes_elsewhere_or_fails(room_elsewhere: bool) -> None:
    """Another claim slips in between the fold and the append."""
    here = hosts("n1", vcpus=1, claims=1)
    here.request("r")
    slipped: list[ClaimRequested] = []

    def slip_in(when: str, messages: Sequence[Message]) -> None:
        claims = [event for message in messages if isinstance(event := decode(message.topic, message.value), ClaimRequested)]
        if when == "before" and claims and not slipped:
            slipped.append(rival(claims[0]))
            here.say(CLAIMS, slipped[0])
            if room_elsewhere:
                here.host("n2", vcpus=1)

    scheduler = here.scheduler(log=At(here.log, slip_in))
    settle(scheduler)

    (result,) = said(here, RESULTS, InstancesPlaced, PlacementFailed)
    (decision,) = result.decisions
    assert scheduler.placer.counters.conflicts == 1
    assert (decision.attempt, decision.chosen, [str(lack) for lack in decision.refused]) == (
        2,
        "n2" if room_elsewhere else "",
        ["vcpus: 1 needed of 0"],
    )
    assert scheduler.placer.fleet.overlay == ()


def test_a_claim_closed_before_the_commit_is_made_again() -> None:
    here = hosts("n1", claims=1)
    here.request("r")
    scheduler = here.scheduler()
    scheduler.turn()
    (claim_id,) = held(here)

    here.say(CLAIMS, ClaimReleased(node_id="n1", record_id="operator", claim_id=claim_id, reason="operator"))
    settle(scheduler)

    (result,) = said(here, RESULTS, InstancesPlaced)
    assert result.placements[0].claim_id != claim_id
    assert wrongs(here) == []


def test_giving_up_is_a_failure_first_and_a_release_only_when_that_was_read_back() -> None:
    here = hosts("n1", claims=1)
    here.request("r")
    deaf = Deaf(here)
    scheduler = here.scheduler(log=At(deaf, nothing))
    scheduler.turn()
    deaf.from_offset = here.log.end(CLAIMS, 0) - 1

    for _ in range(TTL_MS // 4 // 1000 + 1):
        here.clock.now_ms += 1000
        scheduler.turn()
    after_giving_up = held(here)
    deaf.from_offset = None
    settle(scheduler)

    (result,) = said(here, RESULTS, PlacementFailed)
    assert (result.reason, result.message) == ("gave-up", "not placed within 150000 ms: of 1 claims 0 held, 1 in flight")
    assert len(after_giving_up) == 1
    assert held(here) == set()


def test_a_scheduler_that_was_held_up_begins_its_requests_again_with_claims_of_its_own() -> None:
    here = hosts("n1", claims=1)
    here.request("r")
    scheduler = here.scheduler()
    scheduler.turn()
    before = held(here)
    here.clock.now_ms += TTL_MS // 4 + 1

    settle(scheduler)

    (result,) = said(here, RESULTS, InstancesPlaced)
    assert (result.taken_up_ms, result.commit_by_ms) == (here.clock.now_ms, here.clock.now_ms + TTL_MS // 4 + 5000)
    assert {placement.claim_id for placement in result.placements} == held(here)
    assert not held(here) & before
    assert wrongs(here) == []


def test_results_appended_after_their_commit_by_do_not_count_and_in_the_end_a_failure_follows() -> None:
    here = hosts("n1", claims=1)
    here.request("r")

    def freeze(when: str, messages: Sequence[Message]) -> None:
        if when == "before" and any(isinstance(decode(message.topic, message.value), InstancesPlaced) for message in messages):
            here.clock.now_ms += TTL_MS

    scheduler = here.scheduler(log=At(here.log, freeze))
    settle(scheduler)

    assert [result.reason for result in said(here, RESULTS, PlacementFailed)] == ["gave-up"]
    assert (scheduler.placer.counters.late_results, scheduler.placer.counters.failed) == (1 + RESTARTS_MAX, {"gave-up": 1})
    assert held(here) == set()
    assert wrongs(here) == []


def test_a_clock_that_was_an_hour_ahead_once_makes_no_result_late() -> None:
    here = hosts("n1", claims=1)
    here.clock.now_ms += 3_600_000
    here.say(RESULTS, PlacementFailed(request_id="asked of who was ahead", owner="t", taken_up_ms=1, reason="no-valid-node"))
    here.clock.now_ms -= 3_600_000
    here.request("r")

    scheduler = here.scheduler()
    settle(scheduler)

    assert [result.request_id for result in said(here, RESULTS, InstancesPlaced)] == ["r"]
    assert scheduler.placer.counters.late_results == 0
    assert wrongs(here) == []


def test_a_cancellation_before_the_request_is_taken_up_is_its_result() -> None:
    here = hosts("n1")
    here.request("r")
    here.cancel("r")

    settle(here.scheduler())

    assert [result.reason for result in said(here, RESULTS, PlacementFailed)] == ["cancelled"]
    assert said(here, CLAIMS, ClaimRequested) == []


def test_a_cancellation_of_claims_in_flight_is_a_result_first_and_releases_them_after() -> None:
    here = hosts("n1")
    here.request("r")
    scheduler = here.scheduler()
    scheduler.turn()
    here.cancel("r")

    scheduler.turn()
    when_cancelled = held(here)
    settle(scheduler)

    assert [result.reason for result in said(here, RESULTS, PlacementFailed)] == ["cancelled"]
    assert said(here, RESULTS, InstancesPlaced) == []
    assert len(when_cancelled) == 1
    assert [release.reason for release in said(here, CLAIMS, ClaimReleased)] == ["loser"]
    assert held(here) == set()


def test_a_cancellation_after_the_placement_is_a_release_and_holds_the_commit_until_it_is_read_back() -> None:
    here = hosts("n1")
    here.request("r")
    scheduler = here.scheduler()
    settle(scheduler)
    here.cancel("r")

    scheduler.turn()
    when_sent = scheduler.placer.commit_offsets()
    settle(scheduler)

    assert (when_sent, scheduler.placer.commit_offsets()) == ({0: 1}, {0: 2})
    assert [release.reason for release in said(here, CLAIMS, ClaimReleased)] == ["cancelled"]
    assert held(here) == set()


def test_who_takes_a_partition_over_again_does_not_repeat_cancellations_that_are_done_with() -> None:
    here = hosts("n1")
    here.request("r")
    scheduler = here.scheduler()
    settle(scheduler)
    here.cancel("r")
    settle(scheduler)
    here.clock.now_ms += COMMIT_EVERY_MS
    scheduler.turn()

    scheduler.placer.disown(0)
    settle(scheduler)

    assert scheduler.partitions == {0}
    assert len(said(here, CLAIMS, ClaimReleased)) == 1


def test_it_commits_only_below_the_first_request_without_counting_result() -> None:
    here = hosts("n1")
    here.request("r1")
    here.request("r2")
    scheduler = here.scheduler()

    scheduler.turn()
    before = (here.log.committed(GROUP, REQUESTS), scheduler.placer.commit_offsets())
    settle(scheduler)
    here.clock.now_ms += COMMIT_EVERY_MS
    scheduler.turn()

    assert before == ({0: 0}, {0: 0})
    assert here.log.committed(GROUP, REQUESTS) == {0: 2}


def test_a_new_owner_makes_claims_of_its_own_and_the_old_ones_go() -> None:
    here = hosts("n1", vcpus=1)
    here.request("r")
    old = here.scheduler("old")
    old.turn()
    (old_claim,) = held(here)

    new = here.scheduler("new", log=At(here.log, nothing, owns_all=True))
    settle(new)

    (result,) = said(here, RESULTS, InstancesPlaced)
    assert result.placements[0].claim_id != old_claim
    assert held(here) == {result.placements[0].claim_id}
    assert wrongs(here) == []


def test_a_restarted_scheduler_releases_what_the_results_of_answered_requests_do_not_name() -> None:
    here = hosts("n1")
    here.request("r")
    settle(here.scheduler("first"))
    (claim,) = said(here, CLAIMS, ClaimRequested)
    here.log.append([_again(claim, "r/0/zombie-1.1")])

    settle(here.scheduler("second", log=At(here.log, nothing, owns_all=True)))

    assert [release.claim_id for release in said(here, CLAIMS, ClaimReleased)] == ["r/0/zombie-1.1"]
    assert wrongs(here) == []


def _again(record: Any, claim_id: str) -> Message:
    again = structs.replace(record, owner="zombie", items=(structs.replace(record.items[0], claim_id=claim_id),))
    return Message(CLAIMS, key_of(again) or b"", encode(again))


def test_a_restart_has_a_higher_epoch_even_if_the_clock_went_back() -> None:
    here = hosts("n1")
    first = here.scheduler()
    settle(first)
    here.clock.now_ms -= 60_000

    second = here.scheduler()

    assert second.epoch > first.epoch


def test_an_append_without_acknowledgement_is_made_again_byte_for_byte() -> None:
    here = hosts("n1", claims=1)
    here.request("r")
    tried: list[bytes] = []

    def lose_one(when: str, messages: Sequence[Message]) -> None:
        claims = [message.value for message in messages if message.topic == CLAIMS]
        tried.extend(claims if when == "before" else [])
        if when == "after" and len(tried) == 1:
            raise LogUnreachable("the acknowledgement was lost")

    scheduler = here.scheduler(log=At(here.log, lose_one))
    with pytest.raises(LogUnreachable):
        scheduler.turn()
    settle(scheduler)

    assert len(tried) == 2
    assert tried[0] == tried[1]
    assert len(said(here, CLAIMS, ClaimRequested)) == 2
    assert wrongs(here) == []


def test_what_own_claims_in_flight_leave_no_room_for_is_decided_again_when_they_are_read_back() -> None:
    here = hosts("n1", "n2", vcpus=1, claims=1)
    for name in ("r0", "r1", "r2"):
        here.request(name)
    scheduler = here.scheduler()
    scheduler.turn()
    while_in_flight = said(here, RESULTS, PlacementFailed)

    settle(scheduler)

    (failed,) = said(here, RESULTS, PlacementFailed)
    assert while_in_flight == []
    assert (failed.request_id, failed.decisions[0].overlay, failed.decisions[0].attempt) == ("r2", (), 1)
    assert scheduler.placer.counters.decisions == 4


def test_the_evidence_of_a_failure_holds_nothing_of_an_earlier_pass() -> None:
    here = hosts("n1", vcpus=3)
    here.request("first", vcpus=1)
    here.request("three", vcpus=1, count=3)  # Two of them find room beside the claim in flight, so it waits for that.
    scheduler = here.scheduler()
    turns(scheduler, until_decisions=4)

    here.set_status("n1", "disabled")
    settle(scheduler)

    (failed,) = said(here, RESULTS, PlacementFailed)
    assert [decision.chosen for decision in failed.decisions] == [""]


def turns(scheduler: Scheduler, until_decisions: int) -> None:
    for _ in range(LIKELY_TURNS):
        if scheduler.placer.counters.decisions >= until_decisions:
            return
        scheduler.turn()
    raise AssertionError(f"{scheduler.placer.counters.decisions} decisions were made; expected {until_decisions}")


def test_a_dry_run_is_a_result_without_claims() -> None:
    here = hosts("n1")
    here.request("r", dry_run=True)
    scheduler = here.scheduler()

    settle(scheduler)

    (result,) = said(here, RESULTS, InstancesPlaced)
    assert (result.placements, result.decisions[0].chosen) == ((), "n1")
    assert (said(here, CLAIMS, ClaimRequested), scheduler.placer.fleet.overlay) == ([], ())


def test_a_request_whose_ids_would_be_too_long_is_invalid_and_says_how_long_they_may_be() -> None:
    here = hosts("n1")
    here.request("r" * 230)

    settle(here.scheduler())

    (result,) = said(here, RESULTS, PlacementFailed)
    assert result.reason == "invalid"
    assert "request_id has 230 characters; expected at most" in result.message


def test_the_longest_request_id_that_is_accepted_is_placed_and_released() -> None:
    here = hosts("n1", claims=1)
    name = "r" * 200
    here.request(name)
    scheduler = here.scheduler()
    settle(scheduler)
    here.cancel(name)
    settle(scheduler)

    assert len(said(here, CLAIMS, ClaimRequested, ClaimReleased)) == 2
    assert held(here) == set()


def test_an_id_of_100_characters_is_accepted_by_the_scheduler_with_the_longest_name_as_place_says() -> None:
    request = PlacementRequested(request_id="r" * 100, flavor=Flavor(), count=INSTANCES_MAX)

    assert not unfit(request, DEFAULT, "s" * PROCESS_CHARACTERS_MAX, 9_999_999_999_999, Fleet([]))


def test_the_largest_request_stays_under_the_limits_of_its_records() -> None:
    here = hosts(*[f"node-{number:03}" for number in range(40)], vcpus=100, memory_mib=100_000)
    here.request("r", count=1000)

    settle(here.scheduler())

    (result,) = said(here, RESULTS, InstancesPlaced)
    assert len(result.placements) == 1000
    assert all(len(record.value) <= TOPICS[RESULTS].value_bytes_max for record in here.log.read(RESULTS, 0, 0))
    assert [bool(decision.best) for decision in result.decisions[:11]] == [True] * 10 + [False]
    assert len(held(here)) == 1000


# A character of this has six bytes in JSON.
LONG = "\x01" * 200


def test_a_placement_whose_result_nobody_could_read_is_invalid_and_gives_its_claims_back() -> None:
    here = hosts("n1")
    here.request(LONG, vcpus=0, memory_mib=0, count=720)
    scheduler = here.scheduler()

    settle(scheduler)

    (result,) = said(here, RESULTS, InstancesPlaced, PlacementFailed)
    assert result.reason == "invalid"
    assert "of 900000 that a record may have: ask for fewer instances at once" in result.message
    assert scheduler.placer.is_idle()
    assert wrongs(here) == []


def test_a_claim_that_the_ledger_would_pass_over_is_not_made_and_nobody_waits_for_it() -> None:
    """Within some bytes of the largest request: its claim has a few more."""
    here = hosts("n1")
    device = PciDevice(address="0000:01:00.0", vendor_id="8086")
    has = Hypervisor(vcpus=8, memory_mib=16_384, disk_mib=102_400, pci_devices=(device,))
    here.say(
        CLAIMS,
        NodeObserved(node_id="n2", producer="a", epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=1, hypervisor=has, instances=()),
    )
    words: dict[str, str] = {f"word {number:02}": "x" * 4000 for number in range(64)}
    room = TOPICS[REQUESTS].value_bytes_max - len(encode(_wanting(words | {"last": "", "very last": ""})))
    here.say(REQUESTS, _wanting(words | {"last": "x" * (room // 2), "very last": "x" * (room - room // 2)}))
    here.request("none has room", vcpus=99)
    scheduler = here.scheduler()

    settle(scheduler)

    reasons = {result.request_id: result.reason for result in said(here, RESULTS, PlacementFailed)}
    assert reasons == {"large": "invalid", "none has room": "no-valid-node"}
    assert (scheduler.placer.fleet.overlay, said(here, CLAIMS, ClaimRequested)) == ((), [])


def _wanting(spec: dict[str, str]) -> PlacementRequested:
    return PlacementRequested(request_id="large", flavor=Flavor(vcpus=1), pci=(PciWant(specs=({"vendor_id": "8086"}, spec)),))


def test_placements_failures_and_latencies_are_counted() -> None:
    here = hosts("n1", vcpus=1)
    for name in ("r1", "r2"):
        here.request(name)
    here.clock.now_ms += 7
    scheduler = here.scheduler()

    settle(scheduler)

    counters = scheduler.placer.counters
    assert (counters.placed, counters.failed, counters.claims) == (1, {"no-valid-node": 1}, 1)
    assert list(counters.latencies_ms) == [7, 7]
