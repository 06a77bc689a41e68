"""The simulated fleet: what happens to guests is told by events and seen by audits, unless it happens silently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.load import KINDS, SimulatedFleet
from producers.workload import FLAVORS
from schemas.audits import InstanceReport
from schemas.codec import decode, encode
from schemas.lifecycle import (
    InstanceArrived,
    InstanceDeparted,
    InstanceStarted,
)
from schemas.resources import Resources
from schemas.topics import AUDITS, LIFECYCLE

SMALL = Resources(vcpus=2, memory_mib=3_584, disk_mib=20_480)
LARGE = Resources(vcpus=4, memory_mib=7_168, disk_mib=20_480)


def fleet(nodes: int = 2) -> SimulatedFleet:
    return SimulatedFleet(nodes, seed=1, epoch=5, name="n{}")


def seen(load: SimulatedFleet, node_id: str) -> tuple[InstanceReport, ...]:
    """What a first look at the node by a new producer shows."""
    load.restart_producers(node_id, 6)
    audit = load.audit(node_id, 1_000, 10)
    assert audit.instances is not None
    return audit.instances


def test_a_guest_that_starts_is_told_and_seen() -> None:
    load = fleet()

    events = load.start_guest("n0", "i-1", SMALL, 100, name="web", project_id="p", claim_id="c-1")

    assert [type(event) for event in events] == [InstanceArrived, InstanceStarted]
    assert [(event.counter, event.epoch, event.event_time_ms, event.claim_id) for event in events] == [
        (1, 5, 100, "c-1"),
        (2, 5, 100, "c-1"),
    ]
    assert seen(load, "n0") == (events[0].instance,)
    assert seen(load, "n1") == ()


def test_what_happens_silently_is_seen_but_not_told() -> None:
    load = fleet()

    assert load.start_guest("n0", "i-1", SMALL, 100, silently=True) == ()

    assert [report.instance_id for report in seen(load, "n0")] == ["i-1"]
    assert load.destroy("i-1", 102, silently=True) == ()
    assert seen(load, "n0") == ()


def test_a_guest_may_leave_without_the_owners_final_word() -> None:
    load = fleet()
    load.start_guest("n0", "i-1", SMALL, 100)

    assert [type(event) for event in load.destroy("i-1", 101, deleted=False)] == [InstanceDeparted]


def test_nothing_changed_is_said_briefly_and_a_change_in_full() -> None:
    load = fleet()
    load.start_guest("n0", "i-1", SMALL, 100)

    audits = [load.audit("n0", 1_000, 0), load.audit("n0", 2_000, 1_000)]
    load.start_guest("n0", "i-2", SMALL, 2_500)
    audits.append(load.audit("n0", 3_000, 2_000))

    assert [audit.instances is not None for audit in audits] == [True, False, True]
    assert [audit.counter for audit in audits] == [1, 2, 3]


def test_a_new_producer_finds_what_is_there_in_its_own_epoch() -> None:
    load = fleet()
    load.start_guest("n0", "i-2", SMALL, 100)
    load.start_guest("n0", "i-1", SMALL, 100)

    load.restart_producers("n0", 9)

    found = load.resync("n0", 200)
    assert [(event.instance.instance_id, event.epoch, event.counter, event.resync) for event in found] == [
        ("i-1", 9, 1, True),
        ("i-2", 9, 2, True),
    ]


def test_a_guest_is_in_one_place_only() -> None:
    load = fleet()
    load.start_guest("n0", "i-1", SMALL, 100)

    with pytest.raises(ValueError, match="guest i-1 is on n0 already; destroy it first"):
        load.start_guest("n1", "i-1", SMALL, 101)


def test_the_largest_flavor_of_the_workload_fits_on_every_kind() -> None:
    for kind in KINDS:
        assert kind.vcpus >= max(vcpus for vcpus, _, _ in FLAVORS)
        assert kind.memory_mib >= max(memory_mib for _, memory_mib, _ in FLAVORS)


@given(st.integers(0, 1 << 32))
def test_the_same_seed_gives_the_same_fleet_and_readable_records(seed: int) -> None:
    one, two = (SimulatedFleet(12, seed=seed) for _ in range(2))

    assert one.kinds == two.kinds
    for node_id in one.nodes:
        (event, _), audit = one.start_guest(node_id, f"i-{node_id}", SMALL, 7), one.audit(node_id, 1_000, 0)
        assert (
            decode(AUDITS, encode(audit)) == audit == (two.start_guest(node_id, f"i-{node_id}", SMALL, 7), two.audit(node_id, 1_000, 0))[1]
        )
        assert decode(LIFECYCLE, encode(event)) == event


def test_a_large_fleet_has_all_kinds_by_their_shares() -> None:
    load = SimulatedFleet(1_000, seed=3)

    counts = {kind.name: sum(each.name == kind.name for each in load.kinds.values()) for kind in KINDS}
    assert counts == {kind.name: pytest.approx(100 * kind.share, rel=0.3) for kind in KINDS}
