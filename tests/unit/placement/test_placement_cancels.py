"""Cancellations while the scheduler does not know yet what is held, and after it had let its partition go."""

from __future__ import annotations

import pytest

from projections import filed
from schemas.claims import ClaimReleased
from schemas.results import PlacementFailed
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.scheduler import COMMIT_EVERY_MS, GROUP
from tests.scheduling_world import At, hosts, said, settle
from tests.unit.placement.test_placement import Deaf, held, nothing
from tests.unit.placement.test_placement_filing import placed_long_ago


def test_a_cancellation_of_what_was_placed_long_ago_waits_until_it_is_known_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filed, "SAID_REQUESTS", 2)
    here, first = placed_long_ago("r1", "r2")
    first.close()
    here.cancel("r1")
    offset = here.log.end(REQUESTS, 0) - 1
    deaf = Deaf(here)
    deaf.from_offset = 0
    scheduler = here.scheduler("second", log=At(deaf, nothing))
    for _ in range(5):
        scheduler.turn()
    behind = scheduler.placer.commit_offsets(), said(here, CLAIMS, ClaimReleased)

    deaf.from_offset = None
    settle(scheduler)

    assert behind == ({0: offset}, [])
    assert [(release.claim_id.split("/")[0], release.reason) for release in said(here, CLAIMS, ClaimReleased)] == [("r1", "cancelled")]
    assert said(here, RESULTS, PlacementFailed) == []
    assert scheduler.placer.commit_offsets() == {0: offset + 1}


def test_who_gets_a_partition_back_goes_on_with_a_cancellation_that_it_had_not_seen_through() -> None:
    here = hosts("n1", claims=1)
    here.request("r")
    deaf = Deaf(here)
    scheduler = here.scheduler(log=At(deaf, nothing))
    settle(scheduler)
    deaf.from_offset = here.log.end(CLAIMS, 0)
    here.cancel("r")
    for _ in range(2):
        scheduler.turn()
        here.clock.now_ms += COMMIT_EVERY_MS
    scheduler.turn()

    scheduler.placer.disown(0)
    scheduler.turn()
    again = scheduler.placer.commit_offsets()
    deaf.from_offset = None
    settle(scheduler)

    assert (here.log.committed(GROUP, REQUESTS), again) == ({0: 1}, {0: 1})
    assert scheduler.placer.commit_offsets() == {0: 2}
    assert held(here) == set()


def test_releases_are_counted_as_they_are_said() -> None:
    here = hosts("n1")
    here.request("r", count=2)
    scheduler = here.scheduler()
    settle(scheduler)
    before = scheduler.placer.counters.releases
    here.cancel("r")

    settle(scheduler)

    assert (before, scheduler.placer.counters.releases) == (0, 2)
    assert scheduler.placer.counters.alternates_used == 0
