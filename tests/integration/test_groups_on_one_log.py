"""Server groups under several schedulers that know nothing of each other: interleaved by a seeded driver, and as processes of their own.

Whatever they do at the same time, an affinity group is on one node and an anti-affinity group on as many as it has to be.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from schemas.claims import GroupHomeClosed, GroupHomeProposed
from schemas.codec import decode
from schemas.requests import ServerGroup
from schemas.topics import CLAIMS
from streams.log.base import Log
from tests.faults.checkers import counting
from tests.faults.harness import Site, site, until
from tests.faults.shared_site import SharedSite, shared_site
from tests.integration.test_schedulers_on_one_log import Driver, seeds
from tests.scheduling_world import Clock, Weather, World, groups_wrong, world, wrongs

REQUESTS_MADE = 50
SCHEDULERS = ("s0", "s1", "s2", "s3")
# Imports of four processes on a busy machine, then milliseconds.
ANSWERED_SECONDS = 90.0
GROUPS = (
    ServerGroup(group_id="together", policy="affinity"),
    ServerGroup(group_id="together-too", policy="affinity"),
    ServerGroup(group_id="apart", policy="anti-affinity"),
    ServerGroup(group_id="pairs", policy="anti-affinity", max_per_node=2),
    ServerGroup(group_id="near", policy="soft-affinity"),
)


class Grouped(Driver):
    """Requests of a few groups, on nodes that are disabled, withdrawn and enabled again while members come and go."""

    nodes = 6

    def ask(self, name: str) -> None:
        rng = self.rng
        # Some fit where others do not: then one wants to leave a home at the moment when another moves in.
        group = rng.choice([GROUPS[0], GROUPS[0], *GROUPS, None])
        self.here.request(name, vcpus=rng.choice([1, 1, 2, 6]), count=rng.choice([1, 1, 1, 2]), group=group)
        if rng.random() < 0.3:
            self.here.set_status(f"n{rng.randrange(self.nodes)}", rng.choice(["disabled", "withdrawn", "enabled", "enabled"]))


def drive(here: World, seed: int, *, schedulers: int = 4, owns_all: bool = False, cancels: float = 0.4, **chances: Any) -> Grouped:
    rng = random.Random(seed)
    for number in range(Grouped.nodes):
        here.host(f"n{number}")
    driver = Grouped(here, rng, Weather(rng, here.clock, **chances), schedulers=schedulers, owns_all=owns_all, cancels=cancels)
    driver.run(requests=40)
    return driver


def homes_said(log: Log) -> tuple[int, int]:
    """How many homes were proposed, and how many closed."""
    events = [decode(CLAIMS, record.value) for number in log.ends(CLAIMS) for record in log.read(CLAIMS, number, 0, 100_000, 1 << 30)]
    return sum(isinstance(each, GroupHomeProposed) for each in events), sum(isinstance(each, GroupHomeClosed) for each in events)


@pytest.mark.parametrize("owns_all", [False, True])
def test_no_group_breaks_while_homes_move_under_four_schedulers(seed: int, owns_all: bool) -> None:
    proposed = closed = 0
    for each in seeds(seed, 6):
        here = world(claims=3, requests=2)

        drive(here, each, owns_all=owns_all)

        assert groups_wrong(here) + wrongs(here) == [], f"seed {each}"
        homes = homes_said(here.log)
        proposed, closed = proposed + homes[0], closed + homes[1]
    assert proposed > 6 * 2
    assert closed > 0, "no home ever moved: the driver does not empty them"


def test_no_group_breaks_while_schedulers_are_killed_frozen_and_told_nothing(seed: int) -> None:
    kills = 0
    for each in seeds(seed, 6):
        here = world(claims=3, requests=2)

        driver = drive(here, each, owns_all=each % 2 == 0, kill=0.06, lost_acknowledgement=0.06, freeze=0.04)

        assert groups_wrong(here) + wrongs(here) == [], f"seed {each}"
        kills += driver.kills
    assert kills > 6


def together(here: World, name: str, count: int) -> list[str]:
    """So many requests of one affinity group at once; their ids."""
    names = [f"{name}-{number}" for number in range(count)]
    for each in names:
        here.request(each, group=GROUPS[0])
    return names


def answered(here: World, processes: Site, names: list[str]) -> list[str]:
    """The nodes of these requests, all of which are placed; waits for their results."""

    def all_are() -> bool:
        processes.all_must_run()
        return counting(here.log)[0].keys() >= set(names)

    until(all_are, ANSWERED_SECONDS, f"{names[0]} and the others are answered")
    answers = {request_id: answer for placements in here.placements() for request_id, answer in placements.answers.items()}
    failed = {name: answers[name].reason for name in names if not answers[name].placed}
    assert failed == {}
    return [named.node_id for name in names for named in answers[name].named]


def members(here: World, group_id: str) -> set[str]:
    """All instances of a group that are held anywhere."""
    return {member for ledger in here.ledgers() for node in ledger.nodes.values() for member in node.members(group_id)}


def play(where: Site | SharedSite, log: Log, count: int) -> World:
    """`count` concurrent requests of a group each time: that go together and that stay apart, while homes empty, leave and die."""
    here, processes = World(log, Clock()), where.site if isinstance(where, SharedSite) else where
    # As many as those that stay apart need: none is to spare for requests that change hands while schedulers come and share them.
    for number in range(count):
        here.host(f"n{number}", vcpus=2 * count, memory_mib=2048 * count)
    for name in SCHEDULERS:
        where.scheduler(name, "--engine", "profiles")
    apart = [f"apart-{number}" for number in range(count)]
    first = together(here, "first", count)
    for each in apart:
        here.request(each, group=GROUPS[2])

    (home,) = set(answered(here, processes, first))
    assert len(set(answered(here, processes, apart))) == count
    for each in first:
        here.cancel(each)
    until(lambda: not members(here, "together"), ANSWERED_SECONDS, "the cancelled ones are gone")
    here.set_status(home, "withdrawn")
    (second,) = set(answered(here, processes, together(here, "second", count)))
    assert second != home
    # The second home dies with its members: nobody may take their place but the operator's word.
    here.set_status(second, "disabled")
    here.say(CLAIMS, GroupHomeClosed(node_id=second, record_id="operator", group_id="together", epoch=2, unconditional=True))
    (third,) = set(answered(here, processes, together(here, "third", count)))
    assert third not in {home, second}
    return here


def test_50_concurrent_requests_of_a_group_never_break_it_on_four_scheduler_processes(tmp_path: Path) -> None:
    with site(tmp_path) as processes, processes.opened(ledger_partitions=4) as log:
        here = play(processes, log, REQUESTS_MADE)
        processes.stop_all()

        left_behind = [wrong for wrong in groups_wrong(here) if "members on" in wrong]
        assert groups_wrong(here) == left_behind, "each epoch's members were granted on its home only"
        assert len(left_behind) == 1, "those on the home that the operator closed"
        assert homes_said(log)[1] >= 2


def test_requests_of_a_group_never_break_it_on_four_scheduler_processes_on_kafka(tmp_path: Path) -> None:
    with shared_site(tmp_path) as processes, processes.opened(ledger_partitions=4) as log:
        here = play(processes, log, 12)
        for name in SCHEDULERS:
            processes.stop(name)

        assert [wrong for wrong in groups_wrong(here) if "members on" not in wrong] == []
