"""Of all results of a request one counts, and everybody who reads the log agrees which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.placements import Answered, Asked, Cancel, Placements
from projections.reading import OffsetGap
from schemas.codec import Unreadable, encode
from schemas.requests import Flavor, PlacementCancelled, PlacementRequested
from schemas.resources import Resources
from schemas.results import InstancesPlaced, Placement, PlacementFailed, SchedulerStarted

KEY = b"r"


def requested(request_id: str = "r") -> bytes:
    return encode(PlacementRequested(request_id=request_id, flavor=Flavor(vcpus=1)))


def placed(claim: str, owner: str = "s", commit_by_ms: int = 100, request_id: str = "r") -> bytes:
    placement = Placement(instance_id="i", claim_id=claim, partition=1, node_id="n", resources=Resources())
    return encode(InstancesPlaced(request_id=request_id, owner=owner, taken_up_ms=1, commit_by_ms=commit_by_ms, placements=(placement,)))


def failed(reason: str = "no-valid-node") -> bytes:
    return encode(PlacementFailed(request_id="r", owner="s", taken_up_ms=1, reason=reason))  # type: ignore[arg-type]


def result(placements: Placements, value: bytes, time_ms: int = 50, key: bytes = KEY) -> Answered:
    answered = placements.apply_result(placements.results_next, time_ms, key, value)
    assert isinstance(answered, Answered)
    return answered


def open_request() -> Placements:
    placements = Placements(0, 1)
    assert isinstance(placements.apply_request(0, 10, KEY, requested()), Asked)
    return placements


def test_the_first_result_in_time_counts_and_answers_the_request() -> None:
    placements = open_request()

    first, second = result(placements, placed("c1", "one")), result(placements, placed("c2", "two"))

    assert (first.counts, second.counts) == (True, False)
    assert first.asked is not None
    assert placements.open == {}
    assert placements.answers["r"].names("c1")
    assert not placements.answers["r"].names("c2")
    assert [answer.owner for answer in placements.losing["r"]] == ["two"]


def test_a_placement_appended_after_its_commit_by_does_not_count_and_the_next_one_may() -> None:
    placements = open_request()

    late = result(placements, placed("c1", commit_by_ms=100), time_ms=101)
    next_one = result(placements, placed("c2", commit_by_ms=200), time_ms=101)

    assert (late.answer.late, late.counts, next_one.counts) == (True, False, True)


def test_a_placement_appended_at_its_commit_by_counts() -> None:
    assert result(open_request(), placed("c1", commit_by_ms=100), time_ms=100).counts


def test_append_times_never_run_backwards_so_a_late_result_stays_late() -> None:
    placements = open_request()
    placements.apply_result(0, 500, b"s", encode(SchedulerStarted(owner="s", started_ms=1, policy_digest="d", policy="{}")))

    answered = result(placements, placed("c1", commit_by_ms=100), time_ms=50)

    assert (answered.counts, answered.answer.time_ms) == (False, 500)


def test_a_failure_counts_whenever_it_comes() -> None:
    answered = result(open_request(), failed(), time_ms=10**12)

    assert answered.counts
    assert not answered.answer.placed


def test_a_request_made_twice_or_answered_already_changes_nothing() -> None:
    placements = open_request()
    again = placements.apply_request(1, 11, KEY, requested())
    result(placements, failed())

    once_more = placements.apply_request(2, 12, KEY, requested())

    assert (again, once_more, placements.open) == (None, None, {})


def test_the_first_cancellation_is_kept_and_each_is_told() -> None:
    placements = open_request()

    first = placements.apply_request(1, 11, KEY, encode(PlacementCancelled(request_id="r", record_id="a")))
    second = placements.apply_request(2, 12, KEY, encode(PlacementCancelled(request_id="r", record_id="b")))

    assert isinstance(first, Cancel)
    assert isinstance(second, Cancel)
    assert placements.cancels == {"r": first}


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [(b"other", placed("c"), "wrong-key"), (KEY, b"{", "unreadable"), (b"x", placed("c", request_id="x"), "wrong-partition")],
)
def test_what_is_no_record_answers_nothing(key: bytes, value: bytes, kind: str) -> None:
    placements = Placements(1, 2)

    found = placements.apply_result(0, 1, key, value)

    assert isinstance(found, Unreadable)
    assert found.kind == kind
    assert (placements.answers, placements.dead, placements.results_next) == ({}, 1, 1)


def test_a_gap_is_an_error_and_a_copy_is_not() -> None:
    placements = open_request()

    assert placements.apply_request(0, 10, KEY, requested()) is None
    placements.apply_request(1, 10, KEY, requested())
    assert placements.apply_request(0, 10, KEY, requested()) is None
    assert (result(placements, failed()).counts, result(placements, failed()).counts) == (True, False)
    assert placements.apply_result(0, 50, KEY, failed()) is None
    assert (placements.requests_next, placements.results_next) == (2, 2)
    with pytest.raises(OffsetGap, match="placement-requests/0: expected offset 2, got 3"):
        placements.apply_request(3, 10, KEY, requested())
    with pytest.raises(OffsetGap, match="placement-results/0: expected offset 2, got 3"):
        placements.apply_result(3, 10, KEY, failed())


def test_of_an_answer_that_is_filed_away_only_that_there_was_one_is_kept() -> None:
    placements = open_request()
    placements.apply_request(1, 11, KEY, encode(PlacementCancelled(request_id="r", record_id="a")))
    result(placements, placed("c1", "one"))
    result(placements, placed("c2", "two"))

    filed = placements.file_away(51)

    assert [(answer.request_id, answer.owner) for answer in filed] == [("r", "one")]
    assert (placements.filed.next_offset, placements.filed.time_ms) == (1, 50)
    assert placements.apply_request(2, 60, KEY, requested()) is None
    assert not result(placements, placed("c3", "three")).counts
    assert (placements.answers, placements.losing, placements.cancels, placements.open) == ({}, {}, {}, {})


def test_answers_are_filed_away_oldest_first_up_to_the_first_that_is_too_new_or_busy() -> None:
    placements = Placements(0, 1)
    for number, request_id in enumerate("rstu"):
        result(placements, placed("c", request_id=request_id), 10 * number, request_id.encode())

    def filed(before_ms: int, *but: str, answers_max: int | None = None) -> str:
        return "".join(answer.request_id for answer in placements.file_away(before_ms, frozenset(but), answers_max))

    assert filed(20, "r") == ""
    assert filed(20, "t", answers_max=1) == "r"
    assert filed(20) == "s"
    assert (filed(99, "u"), list(placements.answers)) == ("t", ["u"])


def test_an_open_request_is_answered_though_its_number_is_that_of_one_filed_away() -> None:
    placements = open_request()
    placements.filed.add(0, "r", 0, 1)

    assert result(placements, placed("c1")).counts


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(0, 20)), max_size=12))
def test_exactly_the_first_in_time_counts_whatever_comes(history: list[tuple[bool, int, int]]) -> None:
    placements = open_request()
    counting: list[int] = []
    now_ms, expected = 0, None
    for offset, (is_placed, step_ms, by_ms) in enumerate(history):
        now_ms += step_ms
        answered = result(placements, placed(f"c{offset}", commit_by_ms=by_ms * 5) if is_placed else failed(), now_ms)
        counting += [offset] if answered.counts else []
        if expected is None and (not is_placed or now_ms <= by_ms * 5):
            expected = offset

    assert counting == ([] if expected is None else [expected])
    assert ("r" in placements.open) == (expected is None)
