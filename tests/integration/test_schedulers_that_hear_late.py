"""Schedulers that read back late what they and others said, each partition at its own pace, as on a log that is far away.

Whatever is asked for, cancelled and moved meanwhile: what was said is not said again, what fits is placed, and every decision can be made
again from its evidence.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from projections.ledger import Ledger
from schemas.claims import ClaimRequested
from schemas.codec import decode
from schemas.envelope import from_headers
from schemas.requests import ServerGroup
from schemas.results import PlacementFailed
from schemas.topics import CLAIMS, RESULTS
from streams.log.base import Message, Record
from streams.scheduler import Scheduler
from tests.faults.demands import demands_wrong, not_made_again
from tests.integration.test_schedulers_on_one_log import Driver, seeds
from tests.scheduling_world import At, Weather, World, groups_wrong, world, wrongs

GROUPS = (
    ServerGroup(group_id="together", policy="affinity"),
    ServerGroup(group_id="apart", policy="anti-affinity", max_per_node=6),
    None,
    None,
)


class Late(At):
    """The log as one scheduler hears it: `claims`, and the results of partitions that it owns, up to where it has heard them."""

    def __init__(self, log: Any, act: Any, rng: random.Random, *, owns_all: bool) -> None:
        super().__init__(log, act, owns_all=owns_all)
        self._rng = rng
        self.scheduler: Scheduler | None = None
        self._heard: dict[tuple[str, int], int] = {}

    def hear(self, most: float) -> None:
        """Of each partition a little more is heard now, or with `most` 1.0 all."""
        for topic in (CLAIMS, RESULTS):
            for partition, end in self._log.ends(topic).items():
                heard = self._heard.get((topic, partition), 0)
                self._heard[topic, partition] = end if self._rng.random() < most else self._rng.randint(heard, end)

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        found: list[Record] = self._log.read(topic, partition, offset, records_max, bytes_max)
        is_late = topic == CLAIMS or (topic == RESULTS and self.scheduler is not None and partition in self.scheduler.partitions)
        heard = self._heard.get((topic, partition), 0) if is_late else None
        return found if heard is None else [record for record in found if record.offset < heard]


class Deaf(Driver):
    """All sorts of requests, to schedulers that hear late; on hosts that have room for all of it."""

    def __init__(self, here: World, rng: random.Random, *, schedulers: int) -> None:
        self.ears: dict[str, Late] = {}
        self.said: Counter[tuple[str, str, str]] = Counter()
        self.cancelled: set[str] = set()
        super().__init__(here, rng, Weather(rng, here.clock), schedulers=schedulers, owns_all=True, cancels=0.0)

    def start(self, name: str) -> Scheduler:
        def act(when: str, messages: Sequence[Message]) -> None:
            if when == "before":
                self.said.update((name, message.topic, from_headers(message.headers).event_id) for message in messages)
            self.meanwhile(when, messages)

        self.ears[name] = ear = Late(self.here.log, act, self.rng, owns_all=True)
        ear.scheduler = self.here.scheduler(name, log=ear, policy=self.policy)
        return ear.scheduler

    def turn(self, name: str) -> None:
        waiting = {request.request_id for request in self.here.requests} - self.cancelled
        if waiting and not self.weather.is_calm and self.rng.random() < 0.1:
            self.cancelled.add(unwanted := self.rng.choice(sorted(waiting)))
            self.here.cancel(unwanted)
        self.ears[name].hear(1.0 if self.weather.is_calm else 0.1)
        super().turn(name)

    def ask(self, name: str) -> None:
        placed = [each for placements in self.here.placements() for each in placements.answers.values() if each.named]
        if placed and self.rng.random() < 0.15:
            from_where = self.rng.choice(placed).named[0]
            claim = self.here.ledgers()[from_where.partition].claims.get(from_where.claim_id)
            if claim is not None:
                who: dict[str, Any] = {"instance_ids": (claim.instance_id,), "source_node": claim.node_id}
                self.here.request(name, action="migrate", live=self.rng.random() < 0.3, **who)
                return
        group, is_dry = self.rng.choice(GROUPS), self.rng.random() < 0.15
        self.here.request(name, vcpus=self.rng.randint(1, 4), count=self.rng.choice([1, 1, 2, 5]), group=group, dry_run=is_dry)


def hears_late(seed: int) -> tuple[World, Deaf]:
    here, rng = world(claims=3, requests=2), random.Random(seed)
    for number in range(8):
        here.host(f"n{number}", vcpus=400, memory_mib=400_000)
    driver = Deaf(here, rng, schedulers=1 + seed % 2)
    driver.run(requests=30)
    return here, driver


def twice(here: World, driver: Deaf) -> list[str]:
    """What a scheduler said more than once, and the instances that one on its own was granted more than once."""
    found = [f"{name}: {topic} {event_id}" for (name, topic, event_id), count in driver.said.items() if count > 1]
    granted = Counter[tuple[str, str, str, bool]]()

    def look(_: Ledger, step: Any) -> None:
        if isinstance(step.event, ClaimRequested):
            items = {item.claim_id: item for item in step.event.items}
            new = [items[outcome.claim_id] for outcome in step.outcomes if outcome.outcome == "granted"]
            granted.update((step.event.owner, step.event.request_id, item.instance_id, item.keep) for item in new)

    if len(driver.schedulers) == 1:  # Of two the one whose result came later claims again when the other has released what it had.
        here.ledgers(look)
    return found + [f"granted twice: {claim}" for claim, count in granted.items() if count > 1]


def refused(here: World) -> list[str]:
    """Requests that failed where all fit. One whose guest was cancelled before it could move is refused with reason."""
    results = [decode(RESULTS, record.value) for partition in here.log.ends(RESULTS) for record in here.records(RESULTS, partition)]
    failures = [each for each in results if isinstance(each, PlacementFailed)]
    return [f"{each.request_id}: {each.message}" for each in failures if each.reason not in {"cancelled", "refused"}]


def test_who_hears_late_says_nothing_twice_refuses_nothing_that_fits_and_can_make_every_decision_again(seed: int) -> None:
    for each in seeds(seed, 8):
        here, driver = hears_late(each)

        assert wrongs(here) + groups_wrong(here) + demands_wrong(here.log) == [], f"seed {each}"
        assert twice(here, driver) + refused(here) == [], f"seed {each}"
        assert not_made_again(here.log, 12, driver.rng) == [], f"seed {each}"
        assert all(scheduler.placer.is_idle() for scheduler in driver.schedulers.values()), f"seed {each}"
