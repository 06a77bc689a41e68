"""Live profiles are what a plain look at all nodes gives, whatever moves were made."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from streams.scheduling.profiles.profile import JOURNAL_LEAST, Journal, Key, Profiles

KEYS = st.tuples(st.integers(0, 2), st.integers(0, 4))
MARKS = [0x9E3779B97F4A7C15 * (number + 1) % 2**64 for number in range(200)]


def made() -> Profiles:
    return Profiles(1, 1, lambda *_: ((7,), (0.5,)))


def plain(keys: list[Key]) -> dict[Key, list[int]]:
    found: dict[Key, list[int]] = {}
    for ordinal, key in enumerate(keys):
        found.setdefault(key, []).append(ordinal)
    return found


@given(st.lists(KEYS, min_size=1, max_size=150), st.lists(st.tuples(st.integers(0, 149), KEYS), max_size=60))
def test_columns_and_members_are_those_of_the_nodes_after_any_moves(keys: list[Key], moves: list[tuple[int, Key]]) -> None:
    profiles = made()
    profiles.fill((ordinal, MARKS[ordinal], key) for ordinal, key in enumerate(keys))
    for at, key in moves:
        ordinal = at % len(keys)
        keys[ordinal] = key
        profiles.move(ordinal, key)

    expected = plain(keys)

    live = profiles.live
    columns = zip([each.key for each in profiles.at], profiles.counts[:live].tolist(), profiles.firsts[:live].tolist(), strict=True)
    assert sorted(columns) == sorted((key, len(ordinals), ordinals[0]) for key, ordinals in expected.items())
    assert (profiles.figures[0, :live].tolist(), profiles.floats[0, :live].tolist()) == ([7] * live, [0.5] * live)
    for profile in profiles.at:
        assert profile.ordinals == expected[profile.key]
        assert profile.marks == sorted(MARKS[ordinal] for ordinal in profile.ordinals)
        assert profiles.at[profile.slot] is profile
        assert all(profiles.of(ordinal) is profile for ordinal in profile.ordinals)
    assert len(profiles) == len(keys)


@example(1, 0, 1, {0})  # the only one there is
@given(st.integers(1, 120), st.integers(0, 2**64 - 1), st.integers(1, 5), st.sets(st.integers(0, 119)))
def test_ties_follow_the_ring_of_marks_from_where_the_seed_says(nodes: int, start: int, count: int, without: set[int]) -> None:
    profiles = made()
    profiles.fill((ordinal, MARKS[ordinal], (0, 0)) for ordinal in range(nodes))

    found = [profiles.ordinal(mark) for mark in profiles.marked(0, start, count, without)]

    left = [ordinal for ordinal in range(nodes) if ordinal not in without]
    assert found == sorted(left, key=lambda ordinal: (MARKS[ordinal] - start) % 2**64)[:count]
    assert profiles.first(0, without) == (left[0] if left else None)


def test_a_journal_knows_what_changed_since_or_that_it_has_forgotten() -> None:
    journal, slots = Journal(), list(range(3 * JOURNAL_LEAST))
    for slot in slots:
        journal.note(slot, live=10)

    assert journal.now == len(slots)
    assert journal.changes(0) is None
    for since in range(0, len(slots) + 1, 64):
        assert journal.changes(since) in (None, set(slots[since:]))
    assert journal.changes(len(slots) - JOURNAL_LEAST // 4) == set(slots[-JOURNAL_LEAST // 4 :])


def test_a_journal_that_began_anew_knows_nothing_of_before() -> None:
    journal = Journal()
    before = journal.now
    journal.restart()

    assert journal.changes(before) is None
    assert journal.changes(journal.now) == set()
