"""Which result counts, as whoever asks hears it: the one that counts for schedulers, whatever the brokers' clocks say."""

from __future__ import annotations

import pytest

from projections.placements import Placements
from schemas.codec import encode
from schemas.results import InstancesPlaced, PlacementFailed
from schemas.topics import REQUESTS, RESULTS
from streams.cli.reading.answers import awaited, request_history
from streams.log.base import Message, Partition, TopicSpec
from streams.log.memory import MemoryLog
from tests.scheduling_world import START_MS, Clock


class Stamped(MemoryLog):
    """A log whose records keep the times that its brokers gave them, as on Kafka: a leader's clock may be behind the one before."""

    def _put(self, message: Message, number: int, now_ms: int) -> int:
        self._shelf(*Partition(message.topic, number)).time_ms = 0
        return super()._put(message, number, now_ms)

    def at_time(self, topic: str, partition: int, time_ms: int) -> int:
        later = (record.offset for record in self.read(topic, partition, 0) if record.time_ms >= time_ms)
        return next(later, self.end(topic, partition))


def placed(request_id: str, commit_by_ms: int) -> Message:
    result = InstancesPlaced(request_id=request_id, owner="s", taken_up_ms=START_MS, commit_by_ms=commit_by_ms, placements=())
    return Message(RESULTS, request_id.encode(), encode(result))


@pytest.mark.parametrize("ahead_ms", [0, 60_000])
def test_a_result_behind_one_that_is_later_than_its_commit_by_does_not_count(ahead_ms: int) -> None:
    clock = Clock()
    log = Stamped([TopicSpec(REQUESTS, 1), TopicSpec(RESULTS, 1)], clock.wall)
    clock.now_ms += ahead_ms  # The clock of the broker that leads until now.
    log.append([placed("another", clock.now_ms + 5000)])
    clock.now_ms -= ahead_ms
    since = log.end(RESULTS, 0)
    log.append([placed("r", clock.now_ms + 5000)])
    failed = PlacementFailed(request_id="r", owner="s", taken_up_ms=START_MS, reason="gave-up")
    log.append([Message(RESULTS, b"r", encode(failed))])
    schedulers = Placements(0, 1)
    for record in log.read(RESULTS, 0, 0):
        schedulers.apply_result(record.offset, record.time_ms, record.key, record.value)

    found, awaits = request_history(log, "r").counting, awaited(log, "r", 0, since, 0)

    assert found is not None
    assert awaits == found
    assert found.position.offset == schedulers.answers["r"].offset == (2 if ahead_ms else 1)
