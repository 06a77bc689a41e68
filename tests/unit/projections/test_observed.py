"""What audits report and life cycles track, beside the ledger."""

from __future__ import annotations

import random

import pytest

from projections.ledger import Ledger
from projections.node import ObservedAmounts
from projections.observed import DEPARTED_MAX, Observed, total
from schemas.claims import Change
from schemas.resources import RESOURCES, ObservedResources
from tests.ledger_history import START_MS, History, Size, digest_of


def observed(history: History) -> Observed:
    """The views of everything in a history."""
    ledger, views = Ledger(0, 1), Observed(0)
    for written in history.records:
        step = ledger.apply(*written)
        assert step is not None
        views.apply(ledger, step)
    return views


def memory(history: History) -> tuple[int | None, int | None]:
    """Reported and tracked memory of n1, MiB."""
    view = observed(history).view("n1")
    return (None if view.reported is None else view.reported[2], view.tracked_amounts()[2])


@pytest.fixture
def history() -> History:
    return History()


def test_a_node_that_nobody_reports_or_tracks_is_unknown_and_not_empty(history: History) -> None:
    history.configure("n1")

    assert memory(history) == (None, None)


def test_an_audit_is_no_life_cycle_and_an_event_is_no_audit(history: History) -> None:
    history.audit({"i": 4}, at_s=0)
    assert memory(history) == (4, None)

    other = History()
    other.event("started", "i", at_s=0, size=4)
    assert memory(other) == (None, 4)


def test_reported_is_the_last_complete_audit_whatever_came_after(history: History) -> None:
    history.audit({"i": 4, "j": 2}, at_s=0)
    history.audit({"i": 4}, at_s=60, complete=False)
    history.audit(at_s=120, failed="unreachable")
    history.audit(at_s=180, unchanged=digest_of({"i": 4, "j": 2}))

    assert memory(history) == (6, None)
    history.audit({}, at_s=240)
    assert memory(history) == (0, None)


def test_the_life_cycle_adds_resizes_and_removes(history: History) -> None:
    changes: list[tuple[Change, int, int]] = [("arrived", 4, 4), ("started", 4, 4), ("resized", 6, 6), ("stopped", 6, 6), ("paused", 6, 6)]
    for at_s, (change, size, tracked) in enumerate(changes):
        history.event(change, "i", at_s=at_s, size=size)
        assert memory(history)[1] == tracked

    history.event("departed", "i", at_s=10)
    assert memory(history)[1] == 0


def test_a_copy_and_an_older_event_change_nothing(history: History) -> None:
    started = history.event("started", "i", at_s=10, size=4)
    history.event("departed", "i", at_s=20)
    history.again(started, at_s=30)
    history.event("started", "i", at_s=31, event_s=15, size=4, producer="nova")

    assert memory(history)[1] == 0
    history.event("started", "i", at_s=40, size=4, producer="nova")
    history.event("resized", "i", at_s=41, event_s=35, size=9)
    history.event("departed", "i", at_s=42, event_s=36)
    assert memory(history)[1] == 4


def test_a_size_that_is_not_reported_makes_its_sum_unknown_until_it_is(history: History) -> None:
    history.audit({"i": 4, "j": ObservedResources(vcpus=1)}, at_s=0)
    history.event("started", "i", at_s=1, size=4)
    history.event("started", "j", at_s=2, size=ObservedResources(vcpus=1))
    assert memory(history) == (None, None)

    history.event("departed", "j", at_s=3)
    assert memory(history) == (None, 4)


@pytest.mark.parametrize("resource", RESOURCES)
def test_each_resource_is_unknown_by_itself(history: History, resource: str) -> None:
    sizes: dict[str, int | None] = dict(zip(RESOURCES, (1, 2, 3, 4), strict=True))
    history.event("started", "i", at_s=0, size=ObservedResources(**sizes))
    history.event("started", "j", at_s=1, size=ObservedResources(**sizes | {resource: None}))

    tracked = observed(history).view("n1").tracked_amounts()

    assert dict(zip(RESOURCES, tracked, strict=True)) == {"vcpus": 2, "pcpus": 4, "memory_mib": 6, "disk_mib": 8} | {resource: None}


def test_of_two_words_of_an_owner_at_one_time_the_later_record_counts(history: History) -> None:
    history.event("started", "i", at_s=10, size=4, producer="nova")
    history.event("departed", "i", at_s=11, event_s=10, producer="nova")

    assert memory(history)[1] == 0


@pytest.mark.parametrize(("gone_s", "remembered"), [(54, False), (55, False), (56, True)])
def test_a_departure_is_remembered_until_an_audit_is_past_all_doubt_of_it(history: History, gone_s: int, *, remembered: bool) -> None:
    history.audit({}, at_s=0, producer="host")
    history.event("departed", "i", at_s=gone_s, producer="host")
    history.event("departed", "j", at_s=gone_s, producer="nova")
    history.audit({}, at_s=60, producer="host")

    view = observed(history).view("n1")

    assert ("i" in view.departed, "j" in view.left) == (remembered, remembered)
    assert view.gone_ms("i") == view.gone_ms("j") == (START_MS + gone_s * 1000 if remembered else -1)


def test_an_owners_word_of_a_departure_still_stands_when_it_has_become_the_nodes_auditor(history: History) -> None:
    history.audit({}, at_s=0, producer="host")
    history.event("departed", "i", at_s=62, producer="nova")
    history.audit({}, at_s=63, taken_s=60, producer="nova")
    history.event("started", "i", at_s=64, event_s=61, size=4, producer="nova")
    assert memory(history)[1] == 0

    history.event("started", "i", at_s=70, size=4, producer="nova")
    assert memory(history)[1] == 4


def test_a_release_ends_the_tracking_of_an_instance_that_audits_no_longer_list_and_of_no_other(history: History) -> None:
    history.audit({}, at_s=0, memory_mib=16)
    for instance in ("i", "j"):
        history.claim(f"of {instance}", instance, 4, at_s=1)
        history.event("started", instance, at_s=2, size=4)
    history.audit({"j": 4}, at_s=60, memory_mib=16)
    assert memory(history) == (4, 8)

    history.release("of i", at_s=61, reason="deleted")
    history.release("of j", at_s=62, reason="operator")

    assert memory(history) == (4, 4)


@pytest.mark.parametrize("started_s", [50, 58, 60])
def test_what_went_while_its_hypervisors_producer_was_away_is_tracked_until_an_audit_of_its_new_start_is_past_all_doubt(
    history: History, started_s: int
) -> None:
    history.audit({}, at_s=0, producer="host")
    history.event("started", "gone", at_s=started_s, size=4, producer="host")
    history.audit({}, at_s=60, producer="host", epoch=2)
    history.event("started", "late", at_s=61, size=2, producer="host", epoch=2)
    doubtful = started_s > 55
    assert memory(history) == (0, 6 if doubtful else 2)

    history.audit(at_s=64, unchanged=digest_of({}), producer="host", epoch=2)
    assert memory(history) == (0, 6 if started_s == 60 else 2)
    history.audit(at_s=66, unchanged=digest_of({}), producer="host", epoch=2)
    assert memory(history) == (0, 2)

    # "late" began under the producer's eyes: its departure will be told.
    history.audit(at_s=120, unchanged=digest_of({}), producer="host", epoch=2)
    assert memory(history) == (0, 2)


def test_departures_that_no_audit_follows_are_not_remembered_for_ever(history: History) -> None:
    for number in range(DEPARTED_MAX + 10):
        history.event("departed", f"i{number}", at_s=number * 60)

    assert len(observed(history).view("n1").departed) < DEPARTED_MAX


def test_the_kept_sums_are_the_sums_of_what_is_kept(history: History, seed: int) -> None:
    rng, sizes = random.Random(seed), list[Size]([1, 2, 5, ObservedResources(vcpus=2, disk_mib=7)])
    for at_s in range(300):
        instance, when_s = f"i{rng.randrange(12)}", max(0, at_s - rng.randrange(8))
        size: Size = rng.choice(sizes)
        change: Change = rng.choice(["arrived", "started", "resized", "stopped", "departed", "deleted"])
        history.event(change, instance, at_s=at_s, event_s=when_s, size=size, producer=rng.choice(["libvirt", "nova"]))
        if rng.random() < 0.1:
            history.audit({f"i{n}": 1 for n in range(rng.randrange(12))}, at_s=at_s)

    view = observed(history).view("n1")

    assert view.tracked is not None
    plain: ObservedAmounts = total(tracked.amounts for tracked in view.tracked.values())
    assert view.tracked_amounts() == plain
