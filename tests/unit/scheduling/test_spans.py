"""The columns that follow the profiles say what a look at all of them says, whatever changed in between."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.scheduling.profiles.profile import Profiles
from streams.scheduling.profiles.ring import greatest
from streams.scheduling.profiles.spans import Spans
from streams.scheduling.profiles.sums import LEADING

LOWEST, HIGHEST, MULTIPLIERS = (0.0, None, None), (None, None, 5.0), (1.0, -2.5)
FAR = (0, 0, 2**52, -(2**52))
"""How far from 0 the figures of a row that has no bounds may all be."""


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_spans_that_follow_equal_a_look_at_all_candidates(seed: int) -> None:
    rng = Random(seed)
    far = rng.choice(FAR)
    keys = [drawn(rng, far) for _ in range(40)]
    profiles = Profiles(1, 3, lambda key, _: ((0,), tuple(map(float, key))))
    profiles.fill((ordinal, ordinal, key) for ordinal, key in enumerate(keys))
    spans = Spans(profiles, range(3), LOWEST, HIGHEST, MULTIPLIERS)
    masks = [[rng.random() < 0.5 for _ in keys] for _ in range(3)]
    """Classes of requests come back, each with its candidates."""

    for _ in range(rng.randrange(1, 60)):
        for _ in range(rng.choice((0, 1, 2, 30))):
            ordinal = rng.randrange(len(keys))
            keys[ordinal] = drawn(rng, far)
            profiles.move(ordinal, keys[ordinal])
        inside = None if rng.random() < 0.3 else np.array(rng.choice(masks)[: profiles.live])
        beside = [0] if rng.random() < 0.5 else rng.sample(range(profiles.live), rng.randrange(1, 3))
        floor = None if inside is None else np.where(inside, 0.0, -np.inf)
        spans.sync()
        lows, widths = spans.bounds(floor, beside)
        sums, slack = spans.sums(floor)
        scores = spans.scores(np.arange(profiles.live)).tolist()

        among = [slot for slot in range(profiles.live) if inside is None or inside[slot] or slot in beside]
        columns = [[max(profiles.floats[0, slot], 0.0) for slot in range(profiles.live)], profiles.floats[1].tolist()]
        columns.append([min(profiles.floats[2, slot], 5.0) for slot in range(profiles.live)])
        wanted = [0.0, min(columns[1][slot] for slot in among), min(columns[2][slot] for slot in among)]
        ends = [max(columns[0][slot] for slot in among), max(columns[1][slot] for slot in among), 5.0]
        assert lows == wanted
        assert widths == [end - low for end, low in zip(ends, wanted, strict=True)]
        for slot in range(profiles.live):
            total = 0.0
            for k, multiplier in enumerate(MULTIPLIERS):
                total += multiplier * ((columns[k][slot] - lows[k]) / widths[k]) if widths[k] else 0.0
            assert scores[slot] == spans.score(slot) == total
        candidates = [slot for slot in range(profiles.live) if inside is None or inside[slot]]
        assert all(sums[slot] == -np.inf for slot in set(range(profiles.live)).difference(candidates))
        for one in candidates:
            for other in candidates:
                assert abs((sums[one] - sums[other]) - (scores[one] - scores[other])) <= slack


def drawn(rng: Random, far: int) -> tuple[int, ...]:
    return rng.randrange(-3, 8), far + rng.randrange(-3, 8), rng.randrange(-3, 8)


def test_an_end_that_came_and_went_before_anybody_asked_for_it_is_none() -> None:
    profiles = Profiles(1, 1, lambda key, _: ((0,), tuple(map(float, key))))
    profiles.fill((ordinal, ordinal, (ordinal,)) for ordinal in range(4))
    spans = Spans(profiles, range(1), (None,), (None,), (1.0,))
    spans.sync()
    spans.bounds(None, ())

    for figure in (-7, 9, 1.5):
        profiles.move(2, (figure,))
        spans.sync()

    assert spans.bounds(None, ()) == ([0.0], [3.0])


def test_what_was_worked_out_over_bounds_is_there_when_they_come_back() -> None:
    profiles = Profiles(1, 1, lambda key, _: ((0,), tuple(map(float, key))))
    profiles.fill((ordinal, ordinal, (ordinal,)) for ordinal in range(2 * LEADING))
    spans = Spans(profiles, range(1), (None,), (None,), (1.0,))
    upper = np.where(np.arange(2 * LEADING) >= LEADING, 0.0, -np.inf)
    looks = {"all": 0, "upper": 0}

    for number in range(20):
        profiles.move(3, (3.5 + number / 64,))
        spans.sync()
        for name, floor in (("all", None), ("upper", upper)):
            spans.bounds(floor, ())
            looks[name] += spans.leading(2, -1, floor) is None

    assert looks == {"all": 1, "upper": 1}


@given(figures=st.lists(st.sampled_from((float("-inf"), 0.0, 1.0, 2.0, 3.0)), max_size=40), count=st.integers(1, 5))
def test_the_greatest_come_with_all_that_are_near_the_last_of_them(figures: list[float], count: int) -> None:
    scores = np.array(figures)

    found = set(greatest(scores, count, 1.0))

    real = sorted((score for score in figures if score != float("-inf")), reverse=True)
    least = real[min(count, len(real)) - 1] - 1.0 if real else 0.0
    assert found == {at for at, score in enumerate(figures) if score != float("-inf") and score >= least}
    assert scores.tolist() == figures


@given(figures=st.lists(st.sampled_from((float("-inf"), 0.0, 1.0, 2.0, 3.0)), max_size=40), count=st.integers(1, 5))
def test_the_greatest_come_with_all_their_equals_and_nothing_is_changed(figures: list[float], count: int) -> None:
    scores = np.array(figures)

    found = greatest(scores, count)

    real = sorted((score for score in figures if score != float("-inf")), reverse=True)
    wanted = [score for score in real if len(real) <= count or score >= real[count - 1]]
    assert [figures[at] for at in found] == wanted
    assert len(set(found)) == len(found)
    assert scores.tolist() == figures


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_those_that_lead_the_sums_are_found_as_by_a_look_at_all(seed: int) -> None:
    assert led_as_by_a_look_at_all(seed) <= 30


def test_often_nobody_needs_to_look_at_all_for_those_that_lead() -> None:
    assert sum(led_as_by_a_look_at_all(seed) for seed in range(20)) > 20 * 30 / 3


def test_hardly_more_than_the_best_are_candidates_for_them_where_sums_differ() -> None:
    rng = Random(1)
    keys = [(rng.random(), rng.random(), rng.random(), 0.0) for _ in range(2 * LEADING)]
    profiles = Profiles(1, 4, lambda key, _: ((0,), key))
    profiles.fill((ordinal, ordinal, key) for ordinal, key in enumerate(keys))
    spans = Spans(profiles, range(3), (None,) * 3, (None,) * 3, MULTIPLIERS)

    for _ in range(40):
        ordinal = rng.randrange(len(keys))
        profiles.move(ordinal, (rng.random(), rng.random(), rng.random(), 0.0))
        spans.sync()
        spans.bounds(None, ())
        leading = spans.leading(3, -1, None)
        sums, slack = spans.sums(None)

        assert len(greatest(sums, 3, slack)) == 3
        assert leading is None or len(leading) == 3


def led_as_by_a_look_at_all(seed: int) -> int:
    """How many of 30 times the leaders said who they are, which is what a look at all finds."""
    rng = Random(seed)
    size = rng.choice((3, 40, 2 * LEADING))
    keys = [tuple(rng.randrange(-3, 8) for _ in range(4)) for _ in range(size)]
    profiles = Profiles(1, 4, lambda key, _: ((abs(key[3]) % 2,), tuple(map(float, key))))
    profiles.fill((ordinal, ordinal, key) for ordinal, key in enumerate(keys))
    spans = Spans(profiles, range(3), LOWEST, HIGHEST, MULTIPLIERS)
    masks = [np.where(np.array([rng.random() < 0.8 for _ in range(size)]), 0.0, -np.inf) for _ in range(3)]
    answered = 0

    for _ in range(30):
        for _ in range(rng.choice((0, 1, 2, 30))):
            ordinal = rng.randrange(len(keys))
            profiles.move(ordinal, tuple(rng.randrange(-3, 8) for _ in range(4)))
        floor = None if rng.random() < 0.5 else rng.choice(masks)[: profiles.live]
        partition, count = rng.choice((-1, 0, 1)), rng.randrange(1, 5)
        spans.sync()
        spans.bounds(floor, (0,))
        found = spans.leading(count, partition, floor)
        sums, slack = spans.sums(floor)

        beside = [slot for slot in range(profiles.live) if partition in (-1, profiles.figures[0, slot])]
        if found is not None:
            answered += 1
            assert sorted(found) == sorted(beside[at] for at in greatest(sums[beside], count, slack))

    return answered
