"""The table of steps: what it says of each engine is what that engine reads and writes, on a log that tells who asked for what."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs

from projections import filed
from schemas.codec import decode, encode, key_of
from schemas.requests import Flavor, PlacementRequested
from schemas.results import LedgerDigest
from schemas.topics import AUDITS, CLAIMS, DEAD_LETTERS, DIGESTS, MADE_AGAIN, NODE_RESOURCES, REQUESTS, SNAPSHOTS, TOPICS, VERDICTS
from streams import digest_check
from streams import folder as folder_module
from streams import scheduler as scheduler_module
from streams.cli.run import Pace, _processor
from streams.log.base import Log, Message
from streams.metrics import Metrics
from streams.placement import filing
from streams.runner import Engine
from streams.scheduling.policy import DEFAULT
from streams.scheduling_engine import SchedulerEngine
from streams.topology import DERIVED_TOPICS, WIRING
from tests.cli_log import PARTITIONS, FleetLog, LogClock

OWN = frozenset(range(PARTITIONS))
AFTER_FAULTS = {
    ("carrier", "reads", DEAD_LETTERS),  # Where a broker forgot how far was carried: test_engines.
    ("digest-check", "reads", SNAPSHOTS),  # Where records have left the log, and where a process was found to be wrong: test_digest_check.
    ("digest-check", "writes", SNAPSHOTS),
}
"""What stands in the table and not in this story; each has a test of its own."""


class Told:
    """A log that keeps which topics the step at work reads and appends to."""

    def __init__(self, log: Log) -> None:
        self._log, self.step = log, ""
        self.touched: set[tuple[str, str, str]] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        return partial(self._noting, found, name.partition("_")[0]) if name.startswith(("read", "append")) else found

    def _noting(self, call: Callable[..., Any], verb: str, what: Any, *others: Any) -> Any:
        topics = {message.topic for message in what} if verb == "append" else {what}
        self.touched |= {(self.step, {"append": "writes", "read": "reads"}[verb], topic) for topic in topics}
        return call(what, *others)


def test_the_table_of_steps_is_what_each_of_them_reads_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts, a guest that nobody claimed, requests, poison wherever it may come, an older row, and a digest that is another one."""
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", 1)
    monkeypatch.setattr(filing, "KEPT_MS", 0)
    monkeypatch.setattr(filed, "SAID_REQUESTS", 1)
    monkeypatch.setattr(scheduler_module, "DIGEST_EVERY", 1)
    monkeypatch.setattr(digest_check, "LOOK_SECONDS", 0.0)
    fleet = FleetLog(tmp_path)
    told = Told(fleet.log)
    pace = Pace(10_000, 60.0)
    log, metrics, clock = cast(Log, told), Metrics("test"), LogClock(fleet)

    def turns(*engines: Engine) -> None:
        for engine in engines * 4:
            told.step = engine.name
            fleet.now_ms += 100
            engine.turn(OWN)

    def poison(*topics: str) -> None:
        fleet.log.append([Message(topic, b"n1", b"{", partition=0) for topic in topics])

    fleet.audit("n1", {"stranger": 512}, carry=False)
    fleet.audit("n2", {}, carry=False)
    poison(AUDITS, CLAIMS)
    processor = _processor(log, tmp_path / "state", "p", metrics, clock, pace)
    turns(*processor)
    told.step = "scheduler"
    scheduler = SchedulerEngine(log, "s", DEFAULT, "auto", clock, metrics, print, lease_timeout_seconds=10.0, version="")
    for number in range(4):
        fleet.append(REQUESTS, PlacementRequested(request_id=f"r{number}", flavor=Flavor(vcpus=1, memory_mib=64)))
        turns(*processor, scheduler)
    poison(REQUESTS, VERDICTS)
    row, *_ = fleet.log.read(NODE_RESOURCES, 0, 0)
    digests = [decode(DIGESTS, record.value) for record in fleet.log.read(DIGESTS, 0, 0)]
    digest = next(each for each in reversed(digests) if isinstance(each, LedgerDigest) and each.process == "p")
    fleet.log.append([Message(NODE_RESOURCES, row.key, row.value, partition=row.partition)])
    lie = structs.replace(digest, process="liar", digest="0" * len(digest.digest))
    fleet.log.append([Message(DIGESTS, key_of(lie) or b"", encode(lie), partition=0)])
    fleet.now_ms += 60_000
    turns(*processor, scheduler)
    turns(*_processor(log, tmp_path / "another", "q", metrics, clock, pace))
    scheduler.close()
    told.step = "scheduler"
    turns(SchedulerEngine(log, "t", DEFAULT, "auto", clock, metrics, print, lease_timeout_seconds=10.0, version=""))

    meant = {(step.name, "reads", topic) for step in WIRING for topic in step.reads}
    meant |= {(step.name, "writes", topic) for step in WIRING for topic in step.writes}
    assert (told.touched - meant, meant - told.touched) == (set(), AFTER_FAULTS)
    assert {topic for _, _, topic in meant} | {step.shared_by for step in WIRING} == set(TOPICS)


def test_what_the_fold_derives_and_what_can_be_derived_is_made_again() -> None:
    derived = {topic.name for topic in TOPICS.values() if topic.kept != "ever"}

    assert derived | set(DERIVED_TOPICS) == MADE_AGAIN
