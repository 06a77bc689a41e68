"""What a fleet keeps side by side says at every moment what a look at each room says."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from schemas.claims import NodeConfigured, NodeSilent
from schemas.inventory import OperatorFields, ResourceRule
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import Limits
from schemas.results import Decision
from schemas.topics import CLAIMS
from streams.scheduling.crowd import Crowd, Figures
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import DEFAULT, PACK, Policy, digest
from streams.scheduling.reference import by_score, prepare, reference_select, rooms_for, run_filters
from tests.scheduling_world import World, world

NODES = 6
SEEDS = st.integers(0, 1 << 40)
SIZES = st.tuples(st.integers(0, 4), st.sampled_from((0, 512, 1024, 4096)))
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("host"), st.integers(0, NODES), st.tuples(st.integers(1, 6), st.sampled_from((1024, 4096, 8192)))),
        st.tuples(st.just("status"), st.integers(0, NODES), st.sampled_from(("enabled", "disabled"))),
        st.tuples(st.just("units"), st.integers(0, NODES), st.integers(1, 2)),
        st.tuples(st.just("silent"), st.integers(0, NODES), st.just(0)),
        st.tuples(st.just("lay"), st.just(0), SIZES),
        st.tuples(st.just("lift"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("ask"), st.just(0), SIZES),
    ),
    max_size=12,
)


@given(CHANGES, SIZES, SEEDS, st.sampled_from((DEFAULT, PACK)), st.sampled_from((None, Limits(vcpus=4))))
def test_every_decision_is_that_of_a_look_at_each_room(
    changes: list[tuple[str, int, Any]], size: tuple[int, int], seed: int, policy: Policy, limits: Limits | None
) -> None:
    here = world()
    for number in range(3):
        here.host(f"n{number}", vcpus=4, memory_mib=4096)
    ledgers = here.ledgers()
    fleet = Fleet(ledgers)
    laid: list[str] = []

    for number, (kind, at, what) in enumerate(changes):
        _change(here, fleet, laid, f"c{number}", kind, at, what)
        _fold(here, fleet)
        wanted = request(f"r{number}", size, limits)
        ask = fleet.ask_seeded(wanted, 0, seed=seed)
        found = reference_select(fleet, ask, policy, digest(policy))

        plain = run_filters(rooms_for(fleet.rooms(), ask), prepare(ask, policy))
        places, best = by_score(plain.passed, ask, policy) if plain.passed else ([], [])
        names = [plain.passed[at].node_id for at in places]
        expected = (tuple(plain.rejections), len(plain.passed), names, tuple(best))
        assert (found.rejections, found.passed, _named(found), found.best) == expected


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=6), st.lists(st.tuples(st.integers(0, 5), st.integers(-5, 5))))
def test_least_and_most_stay_those_of_the_list(values: list[int], changes: list[tuple[int, int]]) -> None:
    figures = Figures(list(values))
    for at, value in changes:
        figures.put(at % len(values), value)

        assert (figures.least(), figures.most()) == (min(figures.values), max(figures.values))


def test_figures_are_those_of_the_rooms_it_was_told_of_last() -> None:
    here = world()
    here.host("n1", vcpus=4)
    rooms = Fleet(here.ledgers()).rooms()
    vcpus, crowd = attrgetter("vcpus_total"), Crowd()
    crowd.begin(rooms)
    assert crowd.figures(vcpus).values == [4]

    crowd.begin([])

    assert crowd.figures(vcpus).values == []


def test_a_fleet_without_nodes_has_none_to_choose() -> None:
    fleet = Fleet(world().ledgers())

    decision = reference_select(fleet, fleet.ask(request("r", (1, 1024)), 0, owner="s"), DEFAULT, "")

    assert (decision.chosen, decision.nodes_known, decision.passed) == ("", 0, 0)


def request(request_id: str, size: tuple[int, int], limits: Limits | None = None) -> PlacementRequested:
    return PlacementRequested(request_id=request_id, flavor=Flavor(vcpus=size[0], memory_mib=size[1]), limits=limits)


def _named(decision: Decision) -> list[str]:
    return [name for name in (decision.chosen, *decision.alternates) if name]


def _change(here: World, fleet: Fleet, laid: list[str], name: str, kind: str, at: int, what: Any) -> None:
    node_id = f"n{at}"
    match kind:
        case "host":
            here.host(node_id, vcpus=what[0], memory_mib=what[1])
        case "status":
            here.say(CLAIMS, NodeConfigured(node_id=node_id, record_id=name, status=what, fields=OperatorFields()))
        case "units":
            rule = ResourceRule(min_unit=what)
            here.say(CLAIMS, NodeConfigured(node_id=node_id, record_id=name, fields=OperatorFields(vcpus=rule)))
        case "silent":
            silent = NodeSilent(node_id=node_id, record_id=name, producer=f"audits of {node_id}", epoch=1, counter=1, silent_since_ms=1)
            here.say(CLAIMS, silent)
        case "lay" if fleet.rooms():
            room = fleet.rooms()[at]
            item = structs.replace(fleet.ask(request(name, what), 0, owner="s").item, claim_id=name)
            fleet.lay(item, room.node_id, room.partition)
            laid.append(name)
        case "lift" if laid:
            fleet.lift(laid.pop(at % len(laid)))
        case _:
            reference_select(fleet, fleet.ask(request(name, (1, 512)), 0, owner="s"), DEFAULT, "")


def _fold(here: World, fleet: Fleet) -> None:
    for ledger in fleet.ledgers:
        for record in here.log.read(CLAIMS, ledger.partition, ledger.next_offset):
            step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
            assert step is not None
            fleet.touch(ledger.partition, step.node_ids)
