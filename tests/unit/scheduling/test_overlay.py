"""The notation of own claims in flight: short, and nothing is lost in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import claim_id
from streams.scheduling.overlay import RANGES_PER_TEXT, InFlight, Named, count, spelled, with_one

PROCESSES = st.sampled_from(["s", "a.b", "x/y", "m@n", "p-1"])
REQUESTS = st.sampled_from(["r", "r/0/s-7", "r@n", "7.9"])
HISTORY = st.lists(st.tuples(st.booleans(), REQUESTS, st.integers(0, 30)), max_size=60)


def test_a_batch_is_one_range() -> None:
    flying = InFlight("s1-1700")
    for counter in (17, 18, 19, 43):
        flying.lay(claim_id("r", 0, "s1", 1700, counter), counter)

    flying.lift(claim_id("r", 0, "s1", 1700, 18))

    assert flying.texts() == ("s1-1700.17,19,43@",)
    assert count((*flying.texts(), "r/0/s1-1.1@n1")) == 4


def test_nothing_in_flight_says_nothing() -> None:
    flying = InFlight("s1-1700")
    flying.lay("r/0/s1-1700.1", 1)
    flying.lift("r/0/s1-1700.1")
    flying.lift("never laid")

    assert flying.texts() == ()


@given(PROCESSES, HISTORY)
def test_what_is_in_flight_is_what_its_texts_name_in_the_order_it_was_laid(process: str, history: list[tuple[bool, str, int]]) -> None:
    flying, laid, others = InFlight(f"{process}-9"), list[str](), list[str]()
    for counter, (lays, request, which) in enumerate(history, 1):
        if lays or not laid:
            laid.append(claim_id(request, which, process, 9, counter))
            flying.lay(laid[-1], counter)
            others += [claim_id(request, which, process, 8, counter), claim_id(request, which, f"z{process}", 9, counter)]
        else:
            flying.lift(gone := laid.pop(which % len(laid)))
            others.append(gone)
        texts = flying.texts()

        again = InFlight(f"{process}-9")
        for each in laid:
            again.lay(each, int(each.rpartition(".")[2]))
        assert texts == again.texts()
        assert [each for text in texts for each in spelled(text, {*laid, *others})] == laid
        named = Named(texts)
        assert named.size == count(texts) == len(laid)
        assert all(each in named for each in laid)
        assert not any(each in named for each in others)
        more = claim_id(request, which, process, 9, counter + 1)
        again.lay(more, counter + 1)
        assert with_one(texts, f"{process}-9", more) == again.texts()
        assert [each for text in with_one(texts, f"{process}-9", more) for each in spelled(text, {*laid, more})] == [*laid, more]


def test_claims_far_apart_take_several_texts_each_short_enough_for_evidence() -> None:
    flying = InFlight("s-1700000000000")
    ids = [claim_id("r", 0, "s", 1_700_000_000_000, counter) for counter in range(10**15, 10**15 + 3 * 2 * RANGES_PER_TEXT, 2)]
    for each in ids:
        flying.lay(each, int(each.rpartition(".")[2]))

    texts = flying.texts()

    flying.lift("not laid")
    flying.lift(ids[-1])

    assert len(texts) == 3
    assert with_one(flying.texts(), "s-1700000000000", ids[-1]) == texts
    assert max(map(len, texts)) <= 4096
    assert [each for text in texts for each in spelled(text, ids)] == ids
