"""Several schedulers on one log, interleaved by a seeded driver, while what can go wrong does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from projections import filed
from schemas.topics import ANSWERED, CLAIMS, REQUESTS, RESULTS
from streams import scheduler as scheduling
from streams.log.base import LogUnreachable, Message, TopicSpec
from streams.log.sqlite import SqliteLog
from streams.placement import filing
from streams.scheduler import Scheduler
from streams.scheduling.policy import PACK, SPREAD
from tests.scheduling_world import At, Clock, Killed, Weather, World, total, world, wrongs

ROUNDS = 60
REST_ROUNDS = 80


class Driver:
    """Schedulers in turns chosen by one seed. `owns_all`: each believes that it owns every partition of requests."""

    def __init__(self, here: World, rng: random.Random, weather: Weather, *, schedulers: int, owns_all: bool, cancels: float) -> None:
        self.here, self.rng, self.weather = here, rng, weather
        self.owns_all, self.cancels = owns_all, cancels
        self.kills = self.lost = self.midway = 0
        self.busy: set[str] = set()
        self.policy = rng.choice([SPREAD, PACK, PACK])
        """Who packs meets others: they all want the same node."""
        self.schedulers: dict[str, Scheduler] = {}
        self.schedulers = {f"s{number}": self.start(f"s{number}") for number in range(schedulers)}

    def start(self, name: str) -> Scheduler:
        seen = At(self.here.log, self.meanwhile, owns_all=self.owns_all)
        return self.here.scheduler(name, log=seen, policy=self.policy, lease_timeout_seconds=2.0)

    def meanwhile(self, when: str, messages: Sequence[Message]) -> None:
        """Between one's fold and its append others take turns of their own; then the weather has its say."""
        others = sorted(self.schedulers.keys() - self.busy)
        if when == "before" and others and not self.weather.is_calm and self.rng.random() < 0.3:
            self.turn(self.rng.choice(others))
        self.weather.act(when, messages)

    def turn(self, name: str) -> None:
        """One turn of one scheduler; if it is killed a new process of the same name takes its place."""
        self.busy.add(name)
        try:
            self.schedulers[name].turn()
            self.midway += bool(self.schedulers[name]._beginning)
        except Killed:
            self.kills += 1
            self.schedulers[name] = self.start(name)
        except LogUnreachable:
            self.lost += 1
        finally:
            self.busy.discard(name)

    def ask(self, name: str) -> None:
        """Somebody asks for a few instances."""
        self.here.request(name, vcpus=self.rng.randint(1, 4), count=self.rng.choice([1, 1, 1, 2, 5]))

    def run(self, requests: int) -> None:
        """Requests come, are cancelled and answered; then all is calm and everybody finishes."""
        made: list[str] = []
        for _ in range(ROUNDS):
            while len(made) < requests and self.rng.random() < 0.4:
                made.append(f"r{len(made)}")
                self.ask(made[-1])
                if self.rng.random() < 0.1:
                    self.here.say(REQUESTS, self.here.requests[-1])
            if made and self.rng.random() < self.cancels:
                self.here.cancel(self.rng.choice(made))
            self.here.clock.now_ms += self.rng.choice([0, 1, 5, 300])
            self.turn(self.rng.choice(sorted(self.schedulers)))
        self.weather.is_calm = True
        for _ in range(REST_ROUNDS):
            self.here.clock.now_ms += 100
            for name in sorted(self.schedulers):
                self.turn(name)


def drive(here: World, seed: int, *, schedulers: int = 2, owns_all: bool = False, cancels: float = 0.0, **chances: Any) -> Driver:
    rng = random.Random(seed)
    for number in range(6):
        here.host(f"n{number}")
    driver = Driver(here, rng, Weather(rng, here.clock, **chances), schedulers=schedulers, owns_all=owns_all, cancels=cancels)
    driver.run(requests=30)
    return driver


def seeds(seed: int, count: int) -> range:
    return range(seed % 1_000_000, seed % 1_000_000 + count)


def test_schedulers_that_share_the_work_answer_every_request_once(seed: int) -> None:
    placed = conflicts = 0
    for number, each in enumerate(seeds(seed, 60)):
        if number >= 12 and conflicts:
            break
        here = world()

        driver = drive(here, each, schedulers=3)

        assert wrongs(here) == [], f"seed {each}"
        counted = total(driver.schedulers)
        placed += counted.placed
        conflicts += counted.conflicts + counted.alternates_used
    assert placed > 12 * 3
    assert conflicts > 0, "nobody met anybody: the driver does not interleave"


def test_two_that_both_believe_they_own_everything_do_no_harm(seed: int) -> None:
    races = 0
    for each in seeds(seed, 8):
        here = world()

        driver = drive(here, each, schedulers=2, owns_all=True)

        assert wrongs(here) == [], f"seed {each}"
        races += total(driver.schedulers).lost_races
    assert races > 0


@pytest.mark.parametrize("owns_all", [False, True])
def test_a_scheduler_killed_at_any_append_leaves_nothing_held_that_no_result_names(seed: int, owns_all: bool) -> None:
    kills = 0
    for each in seeds(seed, 10):
        here = world()

        driver = drive(here, each, owns_all=owns_all, kill=0.12)

        assert wrongs(here) == [], f"seed {each}"
        kills += driver.kills
    assert kills > 10


def test_a_lost_acknowledgement_is_appended_again_and_changes_nothing(seed: int) -> None:
    lost = 0
    for each in seeds(seed, 8):
        here = world()

        driver = drive(here, each, lost_acknowledgement=0.2)

        assert wrongs(here) == [], f"seed {each}"
        lost += driver.lost
    assert lost > 8


def test_a_cancellation_at_any_time_leaves_no_claim(seed: int) -> None:
    for each in seeds(seed, 10):
        here = world()

        drive(here, each, owns_all=each % 2 == 0, cancels=0.3)

        assert wrongs(here) == [], f"seed {each}"


def test_a_scheduler_frozen_before_its_commit_does_not_commit_late(seed: int) -> None:
    late = 0
    for each in seeds(seed, 10):
        here = world()

        driver = drive(here, each, freeze=0.15, owns_all=each % 2 == 0)

        assert wrongs(here) == [], f"seed {each}"
        late += total(driver.schedulers).late_results
    assert late > 0


def test_everything_at_once(seed: int) -> None:
    for each in seeds(seed, 12):
        here = world(claims=3, requests=2)

        drive(here, each, schedulers=3, owns_all=each % 2 == 0, cancels=0.2, kill=0.06, lost_acknowledgement=0.06, freeze=0.05)

        assert wrongs(here) == [], f"seed {each}"


def test_everything_at_once_where_answers_are_filed_away_within_seconds_and_taking_over_takes_many_turns(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filing, "KEPT_MS", 1000)
    monkeypatch.setattr(filed, "SAID_REQUESTS", 2)
    monkeypatch.setattr(scheduling, "RESULTS_PER_TURN", 2)
    monkeypatch.setattr(scheduling, "RECORDS_PER_READ", 2)
    filed_away = said = midway = 0
    for each in seeds(seed, 12):
        here = world(claims=3, requests=2)

        driver = drive(here, each, schedulers=3, owns_all=each % 2 == 0, cancels=0.2, kill=0.06, lost_acknowledgement=0.06, freeze=0.05)

        assert wrongs(here) == [], f"seed {each}"
        desks = [desk for scheduler in driver.schedulers.values() for desk in scheduler.placer.desks.values()]
        filed_away += sum(len(desk.placements.filed) for desk in desks)
        said += sum(here.log.ends(ANSWERED).values())
        midway += driver.midway
    assert midway > 0
    assert filed_away > 0
    assert said > 0


def test_the_same_on_the_embedded_log_each_process_with_its_own_handle(seed: int, tmp_path: Path) -> None:
    clock = Clock()
    with SqliteLog.open(tmp_path / "log", create=True) as log:
        log.create([TopicSpec(CLAIMS, 2), TopicSpec(REQUESTS, 2), TopicSpec(RESULTS, 2)])
        here = World(log, clock)

        driver = drive(here, seed % 1_000_000, kill=0.08, cancels=0.1, owns_all=True)

        assert wrongs(here) == []
        assert driver.kills > 0
