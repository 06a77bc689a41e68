"""What observations do to a node and its claims: rules 4 to 7. Constants: skew 5 s, grace 15 s, TTL 60 s unless a claim says otherwise."""

from __future__ import annotations

import pytest

from projections.rules import GRACE_MS, SKEW_MS
from schemas.claims import Change, GroupMember, NodeObserved
from schemas.inventory import Hypervisor
from schemas.resources import RESOURCES, ObservedResources, Resources
from tests.ledger_history import START_MS, History, digest_of, fates, item, report, shortfalls, state

HELD = ["c"]


def claimed(*, ttl_s: int = 60, size: int = 4) -> History:
    """A node of 8 with one claim of `vm`, granted at second 100."""
    history = History()
    history.audit(at_s=90)
    history.claim("c", "vm", size, ttl_s=ttl_s, at_s=100)
    return history


def running(*, size: int = 4) -> History:
    """As `claimed`; the guest started and an audit at second 120 lists it."""
    history = claimed(size=size)
    history.event("started", "vm", size=size, at_s=105)
    history.audit({"vm": size}, at_s=120)
    return history


def audits(history: History, *seconds: int, epoch: int = 1) -> list[tuple[str, str]]:
    """Complete audits that list nothing, and what came of them."""
    return [fate for second in seconds for fate in fates(history.audit(at_s=second, epoch=epoch))]


def test_these_tests_know_the_constants() -> None:
    assert (SKEW_MS, GRACE_MS) == (5_000, 15_000)


# Rule 4: the order of observations


def test_an_audit_not_above_the_last_of_its_producer_is_ignored() -> None:
    history = History()
    history.audit({"vm": 3}, at_s=10, epoch=2, counter=5)

    older_counter = history.audit(at_s=11, epoch=2, counter=4)
    same_counter = history.audit(at_s=11, epoch=2, counter=5)
    older_epoch = history.audit(at_s=11, epoch=1, counter=99)

    assert all(step.ignored == "not above the last audit of audits" for step in (older_counter, same_counter, older_epoch))
    assert history.used() == 3


def test_a_zombies_copy_of_an_event_is_ignored() -> None:
    history = History()
    history.audit(at_s=0)
    started = history.event("started", "vm", size=3, at_s=10)
    history.event("departed", "vm", at_s=20)

    copy = history.again(started, at_s=21)

    assert copy.ignored
    assert history.used() == 0


def test_a_new_epoch_starts_its_counter_anew() -> None:
    history = History()
    history.audit(at_s=10, epoch=1, counter=50)

    step = history.audit({"vm": 3}, at_s=11, epoch=2, counter=1)

    assert not step.ignored
    assert history.used() == 3


def test_producers_and_topics_are_counted_apart() -> None:
    history = History()
    history.audit(at_s=10, producer="p", epoch=9)

    of_another_topic = history.event("started", "vm1", size=1, at_s=11, producer="p", epoch=1)
    of_another_producer = history.event("started", "vm2", size=1, at_s=11, producer="nova", epoch=1)

    assert not of_another_topic.ignored
    assert not of_another_producer.ignored


def test_a_re_created_host_keeps_its_row_and_its_claims_go_by_evidence() -> None:
    history = running()
    reinstalled = Hypervisor(memory_mib=16, host_uuid="another")

    history.audit(hypervisor=reinstalled, at_s=130, epoch=2)

    assert history.held() == HELD
    assert (history.node().total("memory_mib"), history.used()) == (16, 4)


# Rule 5: audit against event


def test_an_audit_taken_before_a_start_does_not_remove_the_guest() -> None:
    history = History()
    history.audit(at_s=0)
    history.event("started", "vm", size=3, at_s=12)

    history.audit(at_s=13, taken_s=11)

    assert history.used() == 3


@pytest.mark.parametrize(("taken_s", "used"), [(17, 3), (18, 0)])
def test_the_skew_is_given_to_the_event_to_the_second(taken_s: int, used: int) -> None:
    history = History()
    history.audit(at_s=0)
    history.event("started", "vm", size=3, at_s=12)

    history.audit(at_s=20, taken_s=taken_s)

    assert history.used() == used


def test_an_audit_does_not_shrink_what_an_event_just_resized() -> None:
    history = History()
    history.audit({"vm": 2}, at_s=0)
    history.event("resized", "vm", size=6, at_s=12)

    history.audit({"vm": 2}, at_s=13, taken_s=11)
    protected = history.used()
    history.audit({"vm": 2}, at_s=30)

    assert (protected, history.used()) == (6, 2)


def test_an_event_older_than_the_last_audit_does_not_add_what_the_audit_omits() -> None:
    history = History()
    history.audit(at_s=50)

    step = history.event("started", "vm", size=3, event_s=45, at_s=56)

    assert step.ignored == "older than the last audit, which omits the instance"
    assert history.used() == 0


def test_a_late_event_does_not_take_back_a_newer_size() -> None:
    history = History()
    history.audit({"vm": 6}, at_s=50)

    history.event("resized", "vm", size=2, event_s=40, at_s=51)

    assert history.used() == 6


def test_an_unchanged_audit_stands_for_the_last_full_one_not_for_what_events_made_of_it() -> None:
    history = History()
    history.audit({"vm": 3}, at_s=0)
    history.event("departed", "vm", at_s=10)
    gone = history.used()

    history.audit(at_s=30, unchanged=digest_of({"vm": 3}))

    assert (gone, history.used()) == (0, 3)


def test_an_unchanged_audit_whose_full_one_was_not_applied_counts_as_failed() -> None:
    history = History()
    history.audit({"vm": 3}, at_s=0)

    other_digest = history.audit(at_s=30, unchanged="never seen")
    reason = history.node().unknown_reason
    other_epoch = history.audit(at_s=31, unchanged=digest_of({"vm": 3}), epoch=2)

    assert not other_digest.outcomes
    assert not other_epoch.outcomes
    assert reason == "an unchanged audit whose full one was not applied"
    assert history.node().unknown_since_ms == START_MS + 30_000


def test_a_failed_audit_is_unknown_since_and_never_an_empty_list() -> None:
    history = running()

    history.audit(at_s=130, failed="no route to host")
    history.audit(at_s=200, failed="no route to host")

    assert (history.used(), history.held()) == (4, HELD)
    assert (history.node().unknown_since_ms, history.node().unknown_reason) == (START_MS + 130_000, "no route to host")

    history.audit({"vm": 4}, at_s=210)

    assert history.node().unknown_since_ms is None


def test_an_incomplete_audit_shows_but_its_silence_says_nothing() -> None:
    history = running()

    history.audit({"new": 1}, at_s=140, complete=False)
    for second in range(150, 400, 30):
        history.audit({"new": 1}, at_s=second, complete=False)

    assert sorted(history.node().shown) == ["new", "vm"]
    assert history.held() == HELD


def test_an_unchanged_audit_gives_back_the_totals_that_an_incomplete_one_did_not_know() -> None:
    history = History()
    history.audit(at_s=0, memory_mib=8)
    history.audit(at_s=10, complete=False, memory_mib=None)

    history.audit(at_s=20, unchanged=digest_of(None))
    step = history.claim("c", "vm", 2, at_s=21)

    assert history.node().total("memory_mib") == 8
    assert fates(step) == [("granted", "c")]


def test_an_incomplete_full_audit_is_not_what_an_unchanged_one_stands_for() -> None:
    history = History()
    history.audit({"vm": 3}, at_s=0)
    history.audit({"other": 1}, at_s=10, complete=False)

    history.audit(at_s=20, unchanged=digest_of({"other": 1}))

    assert history.node().unknown_reason == "an unchanged audit whose full one was not applied"


def test_a_showing_that_does_not_report_a_resource_leaves_it_as_it_was_last_reported() -> None:
    history = History()
    history.audit({"vm": ObservedResources(vcpus=2, memory_mib=6)}, at_s=0)

    history.event("stopped", "vm", at_s=10)
    history.event("resized", "vm", size=ObservedResources(disk_mib=9), at_s=11)
    history.audit({"vm": ObservedResources(memory_mib=5)}, at_s=30)

    assert history.node().used == [2, 0, 5, 9]
    assert shortfalls(history.claim("c", "vm2", 4, at_s=31)) == ["memory_mib: 4 needed of 3"]


# Rule 6: a claim goes by evidence


def test_an_audit_that_lists_the_instance_confirms_its_claim() -> None:
    history = claimed()

    step = history.audit({"vm": 4}, at_s=110)

    assert fates(step) == [("confirmed", "c")]
    assert history.node().io_claims == 0


@pytest.mark.parametrize("change", ["arrived", "started", "stopped", "paused", "resized"])
def test_every_event_but_a_departure_shows_the_instance_and_confirms(change: Change) -> None:
    history = claimed()

    step = history.event(change, "vm", size=4, at_s=101)

    assert fates(step) == [("confirmed", "c")]


def test_a_showing_older_than_the_grant_less_the_skew_does_not_confirm() -> None:
    history = claimed()

    too_old = history.audit({"vm": 4}, at_s=101, taken_s=94)
    just_right = history.audit({"vm": 4}, at_s=102, taken_s=95)

    assert (fates(too_old), fates(just_right)) == ([], [("confirmed", "c")])


def test_an_event_older_than_a_known_departure_does_not_confirm() -> None:
    history = claimed()
    history.event("departed", "vm", at_s=108, producer="nova")

    step = history.event("started", "vm", size=4, event_s=105, at_s=109)

    assert fates(step) == []


def test_time_passing_closes_nothing_without_evidence() -> None:
    history = claimed()

    history.configure("n2", at_s=100_000)
    history.audit({"vm": 4}, at_s=200_000)

    assert history.held() == HELD


def test_an_unconfirmed_claim_expires_after_a_run_of_its_ttl_once_its_deadline_is_past() -> None:
    history = claimed()

    outcomes = audits(history, 105, 125, 145, 164, 165)

    assert outcomes == [("expired", "c")]
    assert history.now_s == 165
    assert history.used() == 0


def test_the_run_starts_only_the_skew_after_the_grant() -> None:
    history = claimed()

    outcomes = audits(history, 104, 164)

    assert outcomes == []
    assert history.held() == HELD


def test_the_deadline_is_that_of_the_append_so_a_host_whose_clock_is_behind_cannot_cut_it_short() -> None:
    history = claimed(ttl_s=600)

    for second in range(105, 105 + 590, 30):
        history.audit(at_s=second)

    assert history.held() == HELD


def test_a_clock_that_jumps_ahead_does_not_expire_a_claim_before_its_ttl_on_the_monotonic_clock() -> None:
    history = claimed()

    history.audit(at_s=106, taken_s=100_106, mono_s=106)
    history.audit(at_s=126, taken_s=100_126, mono_s=126)
    held = history.held()
    step = history.audit(at_s=167, taken_s=100_167, mono_s=167)

    assert held == HELD
    assert fates(step) == [("expired", "c")]


def test_a_late_audit_of_a_host_whose_clock_is_ahead_does_not_expire_a_claim_before_its_deadline() -> None:
    history = claimed()

    history.audit(at_s=101, taken_s=100_040, mono_s=40)
    step = history.audit(at_s=111, taken_s=100_111, mono_s=111)

    assert fates(step) == []
    assert history.held() == HELD


def test_what_a_host_with_a_clock_ahead_has_shown_is_taken_back_as_soon_as_its_clock_is_right() -> None:
    history = claimed()
    history.event("started", "vm", size=4, event_s=1_000_000, at_s=105)
    history.audit({"vm": 4, "ghost": 2}, taken_s=1_000_010, at_s=110)
    history.event("started", "other ghost", size=1, event_s=1_000_011, at_s=111)

    outcomes = audits(history, 117, 150, 177)

    assert outcomes == [("vanished", "c")]
    assert history.used() == 0


def test_audits_that_waited_and_come_all_at_once_close_nothing() -> None:
    history = claimed()
    history.event("started", "vm", size=4, event_s=205, at_s=105)

    outcomes = [fates(history.audit(at_s=160, taken_s=taken_s, mono_s=taken_s)) for taken_s in (120, 140, 160, 185)]
    step = history.audit({"vm": 4}, at_s=161, taken_s=210)

    assert outcomes == [[], [], [], []]
    assert fates(step) == []
    assert (history.held(), history.used()) == (HELD, 4)


def test_another_epoch_of_the_producer_ends_the_run() -> None:
    history = claimed()

    outcomes = audits(history, 105, 125, 145) + audits(history, 165, 185, 224, epoch=2)
    later = audits(history, 225, epoch=2)

    assert (outcomes, later) == ([], [("expired", "c")])


def test_another_producer_ends_the_run_even_with_the_same_epoch() -> None:
    history = claimed()
    history.audit(at_s=110, mono_s=110)

    step = history.audit(at_s=160, mono_s=900_000, producer="another machine")
    audits_of_it = [fates(history.audit(at_s=at, mono_s=900_000 + at - 160, producer="another machine")) for at in (219, 220)]

    assert fates(step) == []
    assert audits_of_it == [[], [("expired", "c")]]


def test_a_showing_ends_the_run() -> None:
    history = running()
    audits(history, 130, 160, 180)

    history.audit({"vm": 4}, at_s=185)
    outcomes = audits(history, 191, 220, 250)
    later = audits(history, 251)

    assert (outcomes, later) == ([], [("vanished", "c")])


def test_a_departure_from_before_a_renewal_shortens_nothing() -> None:
    history = claimed()
    history.audit({"vm": 4}, at_s=98)
    history.event("departed", "vm", at_s=99)
    history.renew("c", at_s=107)

    closed_by_grace = audits(history, 113, 130)
    closed_by_ttl = audits(history, 174)

    assert closed_by_grace == []
    assert closed_by_ttl == [("vanished", "c")]


@pytest.mark.parametrize(("departed_s", "outcome"), [(102, "departed"), (101, None)])
def test_the_skew_is_given_to_a_departure_before_a_renewal_to_the_second(departed_s: int, outcome: str | None) -> None:
    history = claimed()
    history.audit({"vm": 4}, at_s=98)
    history.event("departed", "vm", at_s=departed_s)
    history.renew("c", at_s=107)

    closed_by_grace = audits(history, 112, 127)

    assert closed_by_grace == ([] if outcome is None else [(outcome, "c")])


def test_a_renewal_ends_the_run_and_moves_the_deadline() -> None:
    history = claimed()
    audits(history, 105, 125, 145)

    history.renew("c", at_s=150)
    outcomes = audits(history, 151, 155, 166, 200, 214)
    later = audits(history, 215)

    assert (outcomes, later) == ([], [("expired", "c")])


def test_a_failed_audit_neither_ends_nor_lengthens_the_run() -> None:
    history = claimed()
    audits(history, 105)

    history.audit(at_s=130, failed="time-out")
    history.audit(at_s=164, failed="time-out")
    outcomes = audits(history, 165)

    assert outcomes == [("expired", "c")]


def test_an_incomplete_audit_that_lists_the_instance_ends_the_run() -> None:
    history = running()
    audits(history, 130, 160)

    history.audit({"vm": 4}, at_s=170, complete=False)
    outcomes = audits(history, 176, 190, 235)

    assert outcomes == []


def test_a_departure_closes_the_claim_after_the_grace() -> None:
    history = running()
    history.event("departed", "vm", at_s=130)

    outcomes = audits(history, 131, 145)
    later = audits(history, 146)

    assert (outcomes, later) == ([], [("departed", "c")])


def test_a_reboot_that_undefines_and_defines_again_keeps_the_claim() -> None:
    history = running()
    history.event("departed", "vm", at_s=130)
    history.audit(at_s=131)

    history.event("arrived", "vm", size=4, at_s=134)
    outcomes = [fate for second in (140, 160, 180) for fate in fates(history.audit({"vm": 4}, at_s=second))]

    assert outcomes == []
    assert (history.held(), history.used()) == (HELD, 4)


def test_a_departure_older_than_the_last_showing_by_more_than_the_skew_is_none() -> None:
    history = running()

    history.event("departed", "vm", event_s=114, at_s=125)
    audits(history, 130, 150)

    assert history.held() == HELD


def test_a_guest_that_was_shown_once_and_is_gone_without_a_departure_vanished() -> None:
    history = running()

    outcomes = audits(history, 125, 150, 184)
    later = audits(history, 185)

    assert (outcomes, later) == ([], [("vanished", "c")])


def test_a_deletion_newer_than_the_last_showing_closes_at_once() -> None:
    history = running()

    step = history.event("deleted", "vm", at_s=126)

    assert fates(step) == [("deleted", "c")]
    assert history.used() == 0


def test_a_deletion_within_the_skew_of_a_showing_waits_for_evidence_unless_it_names_the_claim() -> None:
    unnamed, named = running(), running()

    waits = unnamed.event("deleted", "vm", at_s=125)
    closes = named.event("deleted", "vm", at_s=125, claim_id="c")

    assert (fates(waits), fates(closes)) == ([], [("deleted", "c")])
    assert audits(unnamed, 130, 145) == [("departed", "c")]


def test_a_deletion_of_an_earlier_stay_does_not_close_a_newer_claim() -> None:
    history = claimed()

    step = history.event("deleted", "vm", event_s=99, at_s=101, producer="nova")

    assert fates(step) == []
    assert history.held() == HELD


@pytest.mark.parametrize("change", ["departed", "stopped", "paused"])
def test_nothing_but_a_deletion_closes_at_once(change: Change) -> None:
    history = running()

    step = history.event(change, "vm", size=4, at_s=200)

    assert fates(step) == []
    assert history.held() == HELD


def test_on_a_node_without_audits_only_a_deletion_or_a_release_closes() -> None:
    history = claimed()
    history.event("started", "vm", size=4, at_s=105)
    history.event("departed", "vm", at_s=130)
    history.configure("n2", at_s=100_000)
    held = history.held()

    step = history.event("deleted", "vm", at_s=100_001)

    assert held == HELD
    assert fates(step) == [("deleted", "c")]


def test_confirmations_come_in_the_order_of_claim_ids_whatever_the_order_of_the_grants() -> None:
    history = History()
    history.audit(at_s=0)
    history.claim("z", "vm", 2, at_s=1)
    history.claim("a", "vm", 2, at_s=1)

    shown = history.event("started", "vm", size=2, at_s=2)
    deleted = history.event("deleted", "vm", at_s=20)

    assert fates(shown) == [("confirmed", "a"), ("confirmed", "z")]
    assert fates(deleted) == [("deleted", "a"), ("deleted", "z")]


# Rule 7: resize


def resizing() -> History:
    """A guest of 2, and at second 130 the claim `r` to make it 6."""
    history = running(size=2)
    history.claim("r", "vm", 6, resize=True, at_s=130)
    return history


def test_a_resize_is_confirmed_only_by_exactly_its_size() -> None:
    history = resizing()

    not_yet = history.audit({"vm": 2}, at_s=140)
    nearly = history.event("resized", "vm", size=5, at_s=150)
    exactly = history.event("resized", "vm", size=6, at_s=151)

    assert (fates(not_yet), fates(nearly), fates(exactly)) == ([], [], [("confirmed", "r")])
    assert history.used() == 6


def test_until_it_is_confirmed_a_resize_counts_with_the_larger_size() -> None:
    history = resizing()

    assert history.used() == 6


def test_an_abandoned_resize_expires_though_its_guest_is_listed() -> None:
    history = resizing()

    outcomes = [fate for second in (136, 160, 196) for fate in fates(history.audit({"vm": 2}, at_s=second))]

    assert outcomes == [("expired", "r")]
    assert (history.held(), history.used()) == (HELD, 2)


def test_an_event_too_late_to_change_what_is_shown_confirms_no_resize() -> None:
    history = resizing()
    history.audit({"vm": 2}, at_s=150)

    late = history.event("resized", "vm", size=6, event_s=140, at_s=151)
    used = history.used()
    step = history.audit({"vm": 6}, at_s=170)

    assert (fates(late), used) == ([], 6)
    assert fates(step) == [("confirmed", "r")]


def test_what_the_confirming_observation_does_not_report_counts_as_claimed_unless_more_was_known() -> None:
    history = History()
    history.audit({"vm": ObservedResources(memory_mib=2, disk_mib=10, vcpus=4)}, at_s=0)
    history.claims(item("r", "vm", 0, resources=Resources(vcpus=2, memory_mib=6, disk_mib=20), resize=True), at_s=10)

    step = history.event("resized", "vm", size=6, at_s=20)

    assert fates(step) == [("confirmed", "r")]
    assert history.node().used == [4, 0, 6, 20]


def test_an_observation_that_reports_no_size_confirms_no_resize() -> None:
    history = resizing()

    step = history.event("resized", "vm", at_s=140)

    assert fates(step) == []


def test_a_resize_of_two_resources_is_confirmed_by_both_as_far_as_they_are_reported() -> None:
    history = running(size=2)
    history.claims(item("r", "vm", 0, resources=Resources(vcpus=2, memory_mib=6), resize=True), at_s=130)

    half = history.event("resized", "vm", size=ObservedResources(vcpus=1, memory_mib=6), at_s=140)
    reported = history.event("resized", "vm", size=6, at_s=141)

    assert (fates(half), fates(reported)) == ([], [("confirmed", "r")])


def test_a_resize_in_place_to_a_smaller_size_gives_back_only_when_it_is_seen() -> None:
    history = running(size=6)
    history.claim("r", "vm", 2, resize=True, at_s=130)
    before = history.used()

    history.event("resized", "vm", size=2, at_s=140)

    assert (before, history.used()) == (6, 2)


def test_once_a_smaller_size_is_confirmed_an_older_larger_claim_takes_no_room_when_the_guest_has_left() -> None:
    history = running(size=6)
    history.claim("r", "vm", 2, resize=True, at_s=130)
    history.event("resized", "vm", size=2, at_s=140)
    history.claim("other", "vm2", 6, at_s=141)

    history.event("departed", "vm", at_s=150)
    left = history.used()
    history.release("r", at_s=151)

    assert (left, history.used()) == (8, 8)
    assert shortfalls(history.claim("back", "vm", 6, at_s=152)) == ["memory_mib: 4 needed of 0"]


@pytest.mark.parametrize("smaller", [(1, 6, 7, 8), (5, 2, 3, 4)])
def test_a_confirmed_resize_leaves_an_older_claim_the_smaller_size_of_each_resource(smaller: tuple[int, int, int, int]) -> None:
    history = History()
    history.audit(at_s=0, hypervisor=Hypervisor(vcpus=64, pcpus=64, memory_mib=64, disk_mib=64))
    history.claims(item("c", "vm", 0, resources=Resources(vcpus=3, pcpus=4, memory_mib=5, disk_mib=6)), at_s=1)
    history.event("started", "vm", at_s=2)
    size = dict(zip(RESOURCES, smaller, strict=True))
    history.claims(item("r", "vm", 0, resources=Resources(**size), resize=True), at_s=3)

    step = history.event("resized", "vm", size=ObservedResources(**size), at_s=4)

    assert fates(step) == [("confirmed", "r")]
    assert history.ledger.claims["c"].amounts == tuple(min(pair) for pair in zip((3, 4, 5, 6), smaller, strict=True))


def test_a_confirmed_resize_cuts_no_claim_of_its_own_record() -> None:
    history = History()
    history.audit(at_s=0)
    history.claims(item("c", "vm", 6), item("r", "vm", 2, resize=True), at_s=1, request_id="both")
    history.event("started", "vm", size=6, at_s=2)

    step = history.event("resized", "vm", size=2, at_s=3)

    assert fates(step) == [("confirmed", "r")]
    assert history.ledger.claims["c"].amounts[2] == 6


def test_a_list_from_before_a_departure_does_not_begin_the_run_against_a_resized_guest() -> None:
    history = resizing()
    history.event("resized", "vm", size=6, at_s=131)
    history.release("c", at_s=132)
    history.event("departed", "vm", at_s=142)

    older = history.audit({"vm": 6}, taken_s=138, at_s=143)
    outcomes = audits(history, 154)

    assert (fates(older), outcomes, history.held()) == ([], [], ["r"])


# The settled state is a short cut and nothing else


def test_a_settled_node_says_the_same_as_one_whose_times_are_spelled_out() -> None:
    settled, spelled = History(), History(spelled=True)
    for history in (settled, spelled):
        history.audit({"vm": 4}, at_s=10)
        history.claim("c", "vm", 4, at_s=11)
        history.audit({"vm": 4}, at_s=20)
        for second in range(30, 300, 30):
            history.audit(at_s=second, unchanged=digest_of({"vm": 4}))
    was_settled = settled.node().settled_ms is not None
    for history in (settled, spelled):
        history.event("departed", "vm", at_s=301, event_s=266)
        audits(history, 330, 350, 389, 390)

    assert was_settled
    assert spelled.node().settled_ms is None
    assert settled.fates() == spelled.fates() == [("granted", "c"), ("confirmed", "c"), ("departed", "c")]
    assert state(settled.ledger) == state(spelled.ledger)


def test_the_same_audit_listing_an_instance_twice_is_folded_like_one_that_lists_the_last() -> None:
    history = History()
    twice = NodeObserved(
        node_id="n1", producer="p", epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=0, digest="d",
        hypervisor=Hypervisor(memory_mib=8), instances=(report("vm", 5), report("vm", 3)),
    )  # fmt: skip

    history.say(twice, at_s=0)

    assert history.used() == 3


def test_an_audit_settles_a_guest_of_whom_it_says_nothing_new_and_an_unchanged_one_then_moves_only_times() -> None:
    history = running()

    unchanged = history.audit(at_s=150, unchanged=digest_of({"vm": 4}))
    loose = set(history.node().loose)
    history.event("departed", "vm", at_s=160)
    history.event("started", "vm", size=4, at_s=161)

    assert unchanged.times_only
    assert (loose, history.node().loose) == (set(), {"vm"})


def test_a_guest_is_not_settled_while_it_is_claimed_or_shown_otherwise_than_it_is_listed() -> None:
    history = running()
    history.event("resized", "vm", size=5, at_s=140)
    history.claim("r", "other", 1, at_s=140)
    history.event("started", "third", size=1, at_s=140)

    history.audit({"vm": 4, "fourth": 1}, taken_s=139, at_s=141)

    assert history.node().loose == {"vm", "other", "third"}


def test_a_guest_whose_claim_is_renewed_after_the_look_is_not_settled_by_it() -> None:
    settled, spelled = History(), History(spelled=True)
    for history in (settled, spelled):
        history.audit(at_s=90)
        history.claim("c", "vm", 4, at_s=100)
        history.audit({"vm": 4}, at_s=120)
        history.renew("c", at_s=150)

        history.audit({"vm": 4}, taken_s=144, at_s=151)

    assert spelled.ledger.claims["c"].seen_ms == START_MS + 120_000
    assert state(settled.ledger) == state(spelled.ledger)


def test_a_guest_claimed_anew_for_another_group_is_a_member_of_that_one_from_its_confirmation_on() -> None:
    first, second = (GroupMember(group_id=group, policy="anti-affinity") for group in ("first", "second"))
    history = History()
    history.audit(at_s=0)
    history.claim("c", "vm", 1, group=first, at_s=1)
    history.event("started", "vm", size=1, at_s=2)
    history.release("c", at_s=3)
    history.claim("d", "vm", 1, group=second, at_s=4)
    before = [history.node().members(group) for group in ("first", "second")]

    history.event("started", "vm", size=1, at_s=5)

    assert before == [{"vm"}, {"vm"}]
    assert [history.node().members(group) for group in ("first", "second")] == [set(), {"vm"}]
