"""Members of a group divide partitions fairly, and nobody loses one without need."""

from hypothesis import given
from hypothesis import strategies as st

from streams.log.leases import Group, Heartbeat, RosterLease, divide, turn, without

members = st.lists(st.sampled_from("abcdefg"), min_size=1, unique=True)


@given(st.integers(1, 40), members, st.dictionaries(st.integers(0, 50), st.sampled_from("abcxyz")))
def test_every_partition_has_one_owner_and_shares_differ_by_one_at_most(partitions: int, live: list[str], held: dict[int, str]) -> None:
    owners = divide(partitions, live, held)

    shares = [list(owners.values()).count(member) for member in live]
    assert sorted(owners) == list(range(partitions))
    assert set(owners.values()) <= set(live)
    assert max(shares) - min(shares) <= 1


@given(st.integers(1, 40), members, st.dictionaries(st.integers(0, 50), st.sampled_from("abcxyz")))
def test_dividing_again_moves_nothing(partitions: int, live: list[str], held: dict[int, str]) -> None:
    owners = divide(partitions, live, held)

    assert divide(partitions, live, owners) == owners


@given(st.integers(1, 40), members, st.sampled_from("xyz"))
def test_a_newcomer_takes_only_its_own_share(partitions: int, live: list[str], newcomer: str) -> None:
    before = divide(partitions, live, {})

    after = divide(partitions, [*live, newcomer], before)

    moved = {number for number in after if after[number] != before[number]}
    assert moved == {number for number, member in after.items() if member == newcomer}


def test_nobody_there_means_nobody_owns() -> None:
    assert divide(4, [], {0: "a"}) == {}


def test_a_heartbeat_is_written_only_when_it_is_due() -> None:
    group = turn(Group({}, {}), 2, "a", 1000, now_ms=0, beat=None)
    beat = group.heartbeats["a"]

    assert turn(group, 2, "a", 1000, now_ms=200, beat=beat) == group
    assert turn(group, 2, "a", 1000, now_ms=300, beat=beat).heartbeats["a"].at_ms == 300


def test_a_clock_that_is_set_back_does_not_keep_a_dead_member_alive() -> None:
    group = Group({"dead": Heartbeat("dead", 10_000_000, 1000)}, {0: "dead"})

    assert turn(group, 1, "a", 1000, now_ms=5000, beat=None).held == {0: "a"}


def test_a_member_counts_until_its_time_out_and_not_when_it_is_up() -> None:
    beat = Heartbeat("a", 5_000, 1_000)

    assert [beat.is_alive(now_ms) for now_ms in (4_000, 4_001, 5_000, 5_999, 6_000)] == [False, True, True, True, False]


def test_a_member_that_leaves_frees_what_it_held() -> None:
    beat = Heartbeat("a", 0, 1000)
    group = Group({"a": beat, "b": Heartbeat("b", 0, 1000)}, {0: "a", 1: "b"})

    assert without(group, "a", beat) == Group({"b": Heartbeat("b", 0, 1000)}, {1: "b"})


def test_a_heartbeat_is_due_by_how_long_ago_the_last_one_was() -> None:
    group = turn(Group({}, {}), 2, "a", 1000, now_ms=10_000, beat=None)
    beat = group.heartbeats["a"]

    assert turn(group, 2, "a", 1000, now_ms=10_249, beat=beat) == group
    assert turn(group, 2, "a", 1000, now_ms=10_250, beat=beat).heartbeats["a"].at_ms == 10_250
    assert turn(group, 2, "a", 1000, now_ms=9_999, beat=beat).heartbeats["a"].at_ms == 9_999, "the clock was set back"


def test_a_member_that_was_away_for_longer_than_its_time_out_is_one_again() -> None:
    group = turn(Group({}, {}), 2, "a", 1000, now_ms=0, beat=None)
    beat = group.heartbeats["a"]

    again = turn(group, 2, "a", 1000, now_ms=5000, beat=beat)

    assert again == Group({"a": Heartbeat("a", 5000, 1000)}, {0: "a", 1: "a"})


class Kept:
    """A group's state, and when somebody looked at it."""

    def __init__(self) -> None:
        self.group = Group({}, {})
        self.looked_ms: list[int] = []

    def turn(self, member: str, timeout_ms: int, now_ms: int, beat: Heartbeat | None) -> Group:
        self.looked_ms.append(now_ms)
        self.group = turn(self.group, 2, member, timeout_ms, now_ms, beat)
        return self.group

    def leave(self, member: str, beat: Heartbeat | None) -> None:
        self.group = without(self.group, member, beat)


def test_a_member_looks_for_others_so_often_in_a_time_out_and_at_once_when_the_clock_was_set_back() -> None:
    kept = Kept()
    times = iter((1000, 1000, 1001, 1049, 1050, 1049, 1049))
    lease = RosterLease(kept, "a", 1000, lambda: next(times))

    owned = [lease.partitions() for _ in range(7)]

    assert kept.looked_ms == [1000, 1050, 1049]
    assert set(owned) == {frozenset({0, 1})}


def test_who_left_looks_no_more() -> None:
    kept = Kept()
    lease = RosterLease(kept, "a", 1000, lambda: 1000)
    lease.partitions()
    lease.release()

    assert (lease.partitions(), kept.looked_ms, kept.group) == (frozenset(), [1000], Group({}, {}))
