"""What a guest keeps on the node that it leaves, one history each (rule 7): until the move is confirmed or reverted."""

from __future__ import annotations

from schemas.claims import GroupMember
from schemas.inventory import Hypervisor, NumaCell
from schemas.requests import NumaWant
from schemas.resources import Resources
from tests.ledger_history import History, fates, shortfalls


def fleet() -> History:
    history = History()
    history.audit(at_s=0)
    return history


def kept() -> History:
    """A guest of 5 MiB, confirmed, and a claim that keeps its place for a minute."""
    history = fleet()
    history.claim("old", "vm", 5, at_s=1)
    history.event("started", "vm", size=5, at_s=2)
    history.claim("kept", "vm", 5, keep=True, at_s=10)
    return history


def test_what_is_kept_is_neither_confirmed_by_the_guest_that_is_still_there_nor_added_to_it() -> None:
    history = kept()

    step = history.audit({"vm": 5}, at_s=20)

    assert fates(step) == []
    assert (history.used(), history.ledger.claims["kept"].confirmed_ms) == (5, None)


def test_a_departure_closes_the_guests_own_claim_and_leaves_what_is_kept() -> None:
    history = kept()
    history.event("departed", "vm", at_s=20)
    for second in (26, 45):
        history.audit({}, at_s=second)

    assert history.held() == ["kept"]
    assert history.used() == 5


def test_what_is_kept_goes_when_the_move_is_confirmed_or_expires_when_nobody_says_so() -> None:
    released, forgotten = kept(), kept()
    for history in (released, forgotten):
        history.event("departed", "vm", at_s=20)
    released.release("kept", reason="migrated", at_s=30)
    for second in (70, 100, 131):
        forgotten.audit({}, at_s=second)

    assert ("released", "kept") in released.fates()
    assert ("expired", "kept") in forgotten.fates()
    assert (released.held(), forgotten.held()) == (["old"], [])


def test_a_guest_shown_after_the_deadline_has_come_back_and_takes_what_it_shows() -> None:
    history = kept()
    history.event("departed", "vm", at_s=20)
    for second in (26, 45):
        history.audit({}, at_s=second)

    early = history.event("started", "vm", size=4, at_s=60)
    back = history.audit({"vm": 4}, at_s=71)

    assert (fates(early), fates(back)) == ([], [("confirmed", "kept")])
    assert (history.used(), history.ledger.claims["kept"].amounts[2]) == (4, 4)


def test_once_confirmed_what_is_kept_is_shown_by_every_showing_whatever_its_deadline() -> None:
    history = kept()
    history.audit({"vm": 5}, at_s=71)
    history.renew("kept", at_s=80)
    history.event("started", "vm", size=5, at_s=90)

    step = history.event("deleted", "vm", at_s=92)

    assert fates(step) == []
    assert history.held() == ["kept", "old"]


def test_only_what_an_instance_uses_can_be_kept() -> None:
    history = fleet()
    history.event("started", "vm", size=3, at_s=1)

    more, stranger = history.claim("a", "vm", 4, keep=True, at_s=2), history.claim("b", "nobody", 1, keep=True, at_s=3)
    history.configure(status="draining", reason="told", at_s=4)
    same = history.claim("c", "vm", 3, keep=True, at_s=5)

    assert shortfalls(more) == ["keep: memory_mib: 4 to keep, the instance uses 3"]
    assert shortfalls(stranger) == ["keep: the instance is neither claimed nor shown here, so there is nothing to keep"]
    assert fates(same) == [("granted", "c")]


def test_kept_is_what_the_guest_has_of_cpus_as_well_and_nobody_else_gets_them() -> None:
    history = History()
    host = Hypervisor(vcpus=8, pcpus=2, memory_mib=8, numa_cells=(NumaCell(cell_id=0, dedicated_cpus=(0, 1), memory_mib=8),))
    history.audit(hypervisor=host, at_s=0)
    want = (NumaWant(cpus=(0, 1), cpu_policy="dedicated", memory_mib=1),)
    size = Resources(pcpus=2, memory_mib=1)
    history.claim("old", "vm", 0, resources=size, numa=want, at_s=1)
    kept = history.claim("kept", "vm", 0, resources=size, keep=True, at_s=2)
    history.release("old", at_s=3)

    other = history.claim("other", "vm2", 0, resources=Resources(memory_mib=1), numa=want, at_s=4)

    granted = kept.outcomes[0].granted
    assert granted is not None
    assert granted.cells[0].pinned_cpus == (0, 1)
    assert fates(other) == [("refused", "other")]


def test_a_home_does_not_close_while_a_members_place_is_kept_there() -> None:
    history = fleet()
    member = GroupMember(group_id="g", policy="affinity", epoch=1)
    history.claim("old", "vm", 1, group=member, at_s=1)
    history.claim("kept", "vm", 1, group=member, keep=True, at_s=2)
    history.release("old", at_s=3)

    assert history.node().members("g") == {"vm"}
