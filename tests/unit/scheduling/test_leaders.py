"""The leaders that are kept up while scores change are those that a look at all would find."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.scheduling.profiles.leaders import KEPT, Leaders

NOBODY = float("-inf")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), slots=st.integers(1, 6 * KEPT), steps=st.sampled_from((3, 40, 10**9)))
def test_leaders_that_follow_equal_a_look_at_all(seed: int, slots: int, steps: int) -> None:
    rng = Random(seed)
    scores = [rng.choice((NOBODY, rng.randrange(steps) / 8.0)) for _ in range(slots)]
    leaders, looks = Leaders(), 0

    for _ in range(60):
        for _ in range(rng.randrange(12)):
            slot = rng.randrange(slots)
            scores[slot] = rng.choice((NOBODY, rng.randrange(steps) / 8.0, 1e9 + rng.random()))
            leaders.put(slot, scores[slot])
        count = rng.randrange(1, 5)
        found = leaders.few(count)
        if found is None:
            looks += 1
            leaders.fill(np.array(scores), np.arange(slots))
            found = leaders.few(count)

        real = sorted([(-score, slot) for slot, score in enumerate(scores) if score != NOBODY])
        last = real[count - 1][0] if len(real) >= count else 0.0
        assert found == [(-score, slot) for score, slot in real if score <= last]

    assert looks >= 1


def test_hardly_anybody_is_looked_for_anew_where_few_fall() -> None:
    scores = np.arange(10_000, dtype=np.float64)
    leaders = Leaders()
    leaders.fill(scores, np.arange(10_000))

    for slot in range(9_999, 9_999 - KEPT // 2, -1):
        leaders.put(slot, 0.0)
        assert leaders.few(3) == [(float(slot - 1 - n), slot - 1 - n) for n in range(3)]


def test_the_leaders_of_a_rank_are_the_best_of_it_or_a_look_at_all_is_asked_for() -> None:
    scores = np.arange(10 * KEPT, dtype=np.float64)
    leaders = Leaders()
    leaders.fill(scores, np.arange(10 * KEPT), np.arange(10 * KEPT) % 4)

    found, too_few = leaders.few(3, 1), leaders.few(KEPT // 4 + 1, 1)

    last = 10 * KEPT - 3
    assert found == [(float(slot), slot) for slot in (last, last - 4, last - 8)]
    assert too_few is None


def test_so_many_equals_that_none_can_go_are_not_looked_through_for_each_change() -> None:
    leaders = Leaders()
    leaders.fill(np.zeros(8 * KEPT), np.arange(8 * KEPT))

    for slot in range(8 * KEPT, 12 * KEPT):
        leaders.put(slot, -1.0)

    assert len(leaders.known) < 10 * KEPT
    assert leaders.few(1) == [(0.0, slot) for slot in range(8 * KEPT)]


def test_equals_that_come_one_after_the_other_all_stand_here() -> None:
    leaders = Leaders()
    leaders.fill(np.zeros(10), np.arange(10))

    for slot in range(10, 8 * KEPT):
        leaders.put(slot, 0.0)

    assert leaders.few(1) == [(0.0, slot) for slot in range(8 * KEPT)]


def test_who_is_left_out_may_be_as_near_the_best_as_is_asked_for() -> None:
    leaders = Leaders()
    leaders.fill(np.arange(10.0 * KEPT), np.arange(10 * KEPT))

    assert leaders.few(1, slack=2.0) == [(float(slot), slot) for slot in range(10 * KEPT - 1, 10 * KEPT - 4, -1)]
    assert leaders.few(1, slack=2.0 * KEPT) is None


def test_what_rises_pushes_others_out_and_is_not_forgotten() -> None:
    leaders = Leaders()
    leaders.fill(np.zeros(10), np.arange(10))

    for slot in range(10, 10 + 4 * KEPT):
        leaders.put(slot, float(slot))

    most = 9 + 4 * KEPT
    assert leaders.few(2) == [(float(most), most), (float(most - 1), most - 1)]


@given(scores=st.lists(st.sampled_from((NOBODY, 0.0, 1.0)), max_size=90), seed=st.integers(0, 99))
def test_of_equals_the_first_is_the_one_of_least_rank(scores: list[float], seed: int) -> None:
    ranks = Random(seed).sample(range(1000), len(scores))
    filled, grown = Leaders(), Leaders()
    filled.fill(np.array(scores), np.arange(len(scores)), np.array(ranks, np.int64))
    grown.fill(np.zeros(0), np.zeros(0, np.intp))

    for slot, (score, rank) in enumerate(zip(scores, ranks, strict=True)):
        grown.put(slot, score, rank)

    real = [(-score, rank, slot) for slot, (score, rank) in enumerate(zip(scores, ranks, strict=True)) if score != NOBODY]
    assert filled.first == grown.first == (min(real)[2] if real else -1)
    assert Leaders().first is None


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), slots=st.integers(1, 6 * KEPT))
def test_leaders_that_follow_many_changes_at_once_are_those_that_follow_one_by_one(seed: int, slots: int) -> None:
    rng = Random(seed)
    scores = np.array([rng.choice((NOBODY, float(rng.randrange(40)))) for _ in range(slots)])
    at_once, one_by_one = Leaders(), Leaders()
    for each in (at_once, one_by_one):
        each.fill(scores, np.arange(slots))

    for _ in range(10):
        changed = rng.sample(range(slots), rng.randrange(slots))
        others = np.array([rng.choice((NOBODY, float(rng.randrange(50)))) for _ in changed])
        at_once.follow(changed, others)
        for slot, score in zip(changed, others.tolist(), strict=True):
            one_by_one.put(slot, score)
        found, expected = at_once.few(3), one_by_one.few(3)

        assert found == expected or None in (found, expected)
        scores[changed] = others
        if found is not None:
            least = found[-1][0] if found else NOBODY
            assert set(found) == {(score, slot) for slot, score in enumerate(scores.tolist()) if least <= score != NOBODY}
