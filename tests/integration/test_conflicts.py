"""Schedulers that race for the same nodes: alternates make nearly every conflict free, and equal nodes are shared out without a word."""

from __future__ import annotations

from msgspec.structs import replace

from benchmarks.bench_conflicts import run
from schemas.claims import ClaimRequested
from schemas.codec import decode
from streams.scheduling.policy import PACK
from tests.scheduling_world import At, settle, world

SCHEDULERS, RATE, LAG_MS, GUESTS_PER_NODE, ASKED = 4, 1000, 2, 6, 700


def test_of_four_that_pack_at_a_thousand_a_second_hardly_one_loses_a_claim_because_alternates_are_at_hand() -> None:
    """The clock is simulated: the figures are the same on every machine."""
    plain = run(replace(PACK, alternates_max=0), SCHEDULERS, RATE, LAG_MS, GUESTS_PER_NODE, ASKED)

    figures = run(PACK, SCHEDULERS, RATE, LAG_MS, GUESTS_PER_NODE, ASKED)

    assert plain["conflicts"] > 10, "nobody met anybody: this shows nothing"
    assert figures["alternates"] > 10
    assert figures["conflicts"] <= 1


def test_where_all_pack_and_see_each_other_late_more_alternates_keep_most_of_the_claims_that_two_would_lose() -> None:
    two = run(replace(PACK, alternates_max=2), SCHEDULERS, RATE, 10, GUESTS_PER_NODE, 1200)

    five = run(PACK, SCHEDULERS, RATE, 10, GUESTS_PER_NODE, 1200)

    assert PACK.alternates_max == 5
    assert two["conflicts"] > 3, "two are enough: this shows nothing"
    assert five["conflicts"] * 2 < two["conflicts"]


def test_schedulers_that_see_nothing_of_each_other_choose_different_ones_of_equal_nodes() -> None:
    here = world(claims=1, requests=4)
    for number in range(200):
        here.host(f"n{number:03}")
    crew = [here.scheduler(f"s{number}", log=At(here.log, lambda *_: None, owns_all=True)) for number in range(4)]
    for scheduler in crew:
        settle(scheduler)
    here.request("r")

    # All four decide on the same fold; each one's claims come after the others have decided.
    for scheduler in crew:
        scheduler._read_requests()
        scheduler._fold()
    said = [message for scheduler in crew for message in scheduler.placer.act(here.clock.wall(), here.clock.boot())]
    claims = [event for message in said if isinstance(event := decode(message.topic, message.value), ClaimRequested)]

    assert len(claims) == 4
    assert len({event.items[0].nodes[0] for event in claims}) == 4
    assert all(len({*event.items[0].nodes}) == 3 for event in claims), "the chosen one and two alternates, all of one partition"
