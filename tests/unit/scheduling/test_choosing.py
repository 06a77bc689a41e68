"""The choice among the best, as Nova makes it, and what a decision does with it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from schemas.requests import Flavor, PlacementRequested
from streams.scheduling.choosing import draw_first, drawn_by, shuffled
from streams.scheduling.fleet import Fleet
from streams.scheduling.options import Options
from streams.scheduling.policy import DEFAULT, POLICIES, digest
from streams.scheduling.select import engine
from tests.scheduling_world import world


def test_one_of_the_first_few_comes_first_and_the_others_keep_their_order() -> None:
    def second(few: Sequence[str]) -> str:
        return few[1]

    assert draw_first(["a", "b", "c"], 2, second) == ["b", "a", "c"]
    assert draw_first(["a", "b", "c"], 0, drawn_by(7)) == ["a", "b", "c"]
    assert draw_first(["a", "b", "c"], 20, drawn_by(8)) == ["c", "a", "b"]
    assert draw_first([], 3, drawn_by(1)) == []


def test_only_the_best_are_shuffled() -> None:
    assert shuffled(["a", "b", "c", "d"], [2.0, 2.0, 1.0, 1.0], lambda best: best[::-1]) == ["b", "a", "c", "d"]
    assert shuffled([], [], lambda best: best) == []


def test_a_decision_takes_the_first_of_equals_or_a_drawn_one_of_the_best() -> None:
    here = world(claims=1)
    for number in range(6):
        here.host(f"n{number}", memory_mib=8192 if number < 5 else 4096)
    fleet = Fleet(here.ledgers())

    def choices(options: Options) -> set[str]:
        policy = structs.replace(DEFAULT, options=options)
        found = set()
        for number in range(30):
            asked = fleet.ask(PlacementRequested(request_id=f"r{number}", flavor=Flavor(memory_mib=512)), 0, owner="s")
            decision = engine("profiles")(fleet, asked, policy, digest(policy))
            assert decision == structs.replace(engine("reference")(fleet, asked, policy, digest(policy)), engine=decision.engine)
            assert decision.chosen not in decision.alternates
            assert decision.chosen in {each.node_id for each in decision.best}
            found.add(decision.chosen)
        return found

    assert choices(Options(shuffle_best_same_weighed_hosts=False)) == {"n0"}
    assert choices(Options(shuffle_best_same_weighed_hosts=False, host_subset_size=2)) == {"n0", "n1"}
    assert choices(Options(host_subset_size=20)) == {f"n{number}" for number in range(6)}


def test_both_engines_count_a_node_without_shared_cpus_as_empty_of_them_until_somebody_asks_for_one() -> None:
    here = world(claims=1)
    here.host("pinned", vcpus=0, pcpus=8)
    here.host("mixed", vcpus=8, pcpus=8)
    fleet, policy = Fleet(here.ledgers()), POLICIES["bin-pack"]
    asked = fleet.ask(PlacementRequested(request_id="r", flavor=Flavor(pcpus=2, memory_mib=1024)), 0, owner="s")

    found = [engine(name)(fleet, asked, policy, digest(policy)) for name in ("profiles", "reference")]

    assert found[0] == structs.replace(found[1], engine="profiles")
    assert found[0].best[0].score == found[0].best[1].score
