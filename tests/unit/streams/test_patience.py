"""A log that is full or out of reach is waited for: said once, and ended where nobody but a person can help."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.log.base import LogFull, LogUnreachable
from streams.patience import UNREACHABLE_SECONDS_MAX, Patience

AWAY, FULL = LogUnreachable("nobody answers"), LogFull("no room left")


class Told:
    """A patience, what it said, and its clock."""

    def __init__(self) -> None:
        self.now, self.said = 0.0, list[str]()
        self.patience = Patience(self.said.append, lambda: self.now)


def test_each_trouble_is_said_once_and_its_end_too() -> None:
    told = Told()

    for trouble in (AWAY, AWAY, FULL, FULL):
        told.patience.met(trouble)
    told.patience.over()
    told.patience.over()

    assert told.said == ["trying again for 300 s: nobody answers", "waiting for room: no room left", "there is room again"]


def test_a_log_out_of_reach_for_too_long_is_raised_and_a_full_one_never() -> None:
    told = Told()
    told.patience.met(AWAY)
    told.now = UNREACHABLE_SECONDS_MAX
    told.patience.met(AWAY)
    told.now += 0.1

    with pytest.raises(LogUnreachable):
        told.patience.met(AWAY)
    told.patience.met(FULL)
    told.now = 1e9
    told.patience.met(FULL)

    assert told.patience.trouble is FULL


@given(st.lists(st.tuples(st.sampled_from([AWAY, FULL, None]), st.floats(0, 200)), max_size=20))
def test_the_time_of_a_trouble_begins_anew_with_its_kind(met: list[tuple[LogUnreachable | LogFull | None, float]]) -> None:
    told, since, before = Told(), 0.0, None
    for trouble, passes in met:
        told.now += passes
        since = since if trouble is before else told.now
        before = trouble
        if trouble is None:
            told.patience.over()
        elif trouble is AWAY and told.now - since > UNREACHABLE_SECONDS_MAX:
            with pytest.raises(LogUnreachable):
                told.patience.met(trouble)
        else:
            told.patience.met(trouble)

    assert all(one != other for one, other in pairwise(told.said))
