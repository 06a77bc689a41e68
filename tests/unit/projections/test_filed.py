"""What was answered long ago: the ids are known, whoever comes next learns them from records, and no record of a lost past is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from projections import filed as module
from projections.filed import Filed, filed_by
from schemas.codec import Unreadable, decode_keyed, encode, key_of
from schemas.results import RequestsAnswered
from schemas.topics import ANSWERED

names = st.text(min_size=1, max_size=40)


@pytest.fixture(autouse=True)
def three_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAID_REQUESTS", 3)


def answered(count: int, first: int = 0, before: Filed | None = None) -> Filed:
    """So many requests, answered at every second offset."""
    known = Filed() if before is None else before
    for number in range(first, first + count):
        known.add(1, f"r{number}", 2 * number, 1000 + number)
    return known


def everywhere(_: RequestsAnswered) -> bool:
    return True


@given(there=st.sets(names, min_size=1, max_size=60), others=st.sets(names, max_size=60))
def test_it_has_what_was_added_and_nothing_else(there: set[str], others: set[str]) -> None:
    known = Filed()
    for offset, request_id in enumerate(sorted(there)):
        known.add(0, request_id, offset, 0)

    assert all(request_id in known for request_id in there)
    assert not any(request_id in known for request_id in others - there)
    assert (len(known), known.next_offset) == (len(there), len(there))


@given(count=st.integers(min_value=0, max_value=40))
def test_who_comes_next_knows_all_that_was_said_and_says_what_follows_in_the_same_chain(count: int) -> None:
    before = answered(count)

    after = filed_by(before.due, everywhere)

    said = count - count % 3
    assert [f"r{number}" in after for number in range(count)] == [number < said for number in range(count)]
    assert (len(after), after.next_offset) == (said, 2 * said - 1 if said else 0)
    answered(6, said, after)
    assert len(filed_by([*before.due, *after.due], everywhere)) == said + 6


def test_what_two_owners_said_at_once_is_as_good_in_any_order() -> None:
    one, other = answered(9), answered(6)

    for records in ([*one.due, *other.due], [*other.due, *one.due], [*one.due[::-1], *other.due]):
        assert len(filed_by(records, everywhere)) == 9


def test_nothing_is_believed_of_results_that_are_gone_and_all_of_those_before() -> None:
    lost = answered(9)
    begun_again = filed_by(lost.due[:1], everywhere)
    for number in range(3):
        begun_again.add(1, f"again{number}", 10 + number, 2000)

    known = filed_by([*lost.due, *begun_again.due], lambda newest: newest.last_request_id not in {"r5", "r8"})

    assert ["r2" in known, "r3" in known, "again2" in known] == [True, False, True]
    assert known.next_offset == 13


def test_without_the_beginning_of_the_chain_nothing_is_filed() -> None:
    known = filed_by(answered(9).due[1:], everywhere)

    assert (len(known), known.next_offset, "r8" in known) == (0, 0, False)


@pytest.mark.parametrize(
    "change", [{"numbers": "AAAAAAAAAAA="}, {"last_offset": 99}, {"previous": "x"}, {"last_request_id": "r9"}, {"last_time_ms": 1}]
)
def test_a_record_that_was_changed_is_passed_over(change: dict[str, object]) -> None:
    first, second = answered(6).due

    assert len(filed_by([first, structs.replace(second, **change)], everywhere)) == 3


def test_numbers_that_are_none_are_passed_over_though_their_writer_stands_by_them() -> None:
    first, second = answered(6).due
    for numbers in ("é", "AAA", "AAAAAAAAAA=="):
        wrong = structs.replace(second, numbers=numbers)
        wrong = structs.replace(wrong, digest=module._digest(wrong))

        assert len(filed_by([first, wrong], everywhere)) == 3


def test_a_record_of_the_usual_size_fits_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (record,) = answered(module.SAID_REQUESTS).due

    value = encode(record)

    assert not isinstance(decode_keyed(ANSWERED, key_of(record) or b"", value), Unreadable)
    assert 100_000 < len(value) < 120_000
