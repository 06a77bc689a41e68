"""Bad networks between every client and the broker: slow, cut, silent in one direction or both, refusing. Then all goes on and adds up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from schemas import topics
from schemas.claims import NodeObserved
from schemas.codec import encode, key_of
from schemas.inventory import Hypervisor
from schemas.requests import Flavor, PlacementRequested
from streams.log.base import LogUnreachable, Message
from streams.log.kafka import KafkaLog
from streams.scheduler import Scheduler
from tests.faults.checkers import counting, folded, unnamed
from tests.faults.harness import SOAKS, until
from tests.faults.kafka_world import Proxied, world
from tests.faults.tcp_proxy import FINE, Weather

PATIENCE_MS = 2000
"""How long clients of these tests try before they say that the log is out of reach."""
LOOK_SECONDS = 60.0
SLACK_SECONDS = 10.0
"""What a machine that does other things as well may take for what needs no time."""
TROUBLES = {
    "slow": Weather(delay_seconds=0.05),
    "cut": Weather(cut_after_bytes=30_000),
    "silent": Weather(holds_to_server=True, holds_to_client=True),
    "deaf": Weather(holds_to_server=True),
    "dumb": Weather(holds_to_client=True),
    "refusing": Weather(refuses=True),
}
TROUBLED_SECONDS = (4.0, 20.0) if SOAKS else (2.3, 2.8)
"""Longer than the patience, so that appends are given up and made again; in a soak also longer than a session."""
ROUNDS = 5 if SOAKS else 1


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, seed_of_module: int) -> Iterator[Proxied]:
    """One world for the tests of single clients; requests are short of patience."""
    folder = tmp_path_factory.mktemp("network")
    with world(folder, seed_of_module, message_timeout_ms=str(PATIENCE_MS)) as here:
        yield here


@pytest.fixture(scope="module")
def seed_of_module(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--hypothesis-seed"))


@pytest.fixture(autouse=True)
def fine_again(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "here" in request.fixturenames:
        request.getfixturevalue("here").proxy.becomes(FINE)


def request(request_id: str) -> Message:
    record = PlacementRequested(request_id=request_id, flavor=Flavor(vcpus=1, memory_mib=64))
    return Message(topics.REQUESTS, key_of(record) or b"", encode(record))


def observed(node_id: str) -> Message:
    host = Hypervisor(vcpus=64, memory_mib=65_536, disk_mib=1_000_000)
    record = NodeObserved(node_id=node_id, producer="a", epoch=1, counter=1, taken_at_ms=1, mono_ms=0, hypervisor=host, instances=())
    return Message(topics.CLAIMS, key_of(record) or b"", encode(record))


def values(log: KafkaLog, topic: str) -> list[bytes]:
    """Everything in a topic, partition by partition."""
    found: list[bytes] = []
    for number in range(log.topics()[topic]):
        offset = 0
        while records := log.read(topic, number, offset):
            found += [record.value for record in records]
            offset = records[-1].offset + 1
    return found


LANDS_SECONDS = 15.0
"""How long what the network held back is waited for."""


def patiently(log: KafkaLog, messages: list[Message]) -> list[int]:
    """What every producer does: append the same bytes again until they are acknowledged."""
    end = time.monotonic() + LOOK_SECONDS
    while True:
        try:
            return log.append(messages)
        except LogUnreachable:
            assert time.monotonic() < end, "the log is out of reach although the network is fine"


@pytest.mark.parametrize(
    "weather",
    [
        pytest.param(Weather(holds_to_client=True), id="no answers"),
        *([pytest.param(Weather(holds_to_server=True), id="no questions")] * SOAKS),
    ],
)
def test_a_record_given_up_that_lands_all_the_same_is_a_copy_that_changes_nothing(here: Proxied, weather: Weather) -> None:
    name = "answers" if weather.holds_to_client else "questions"
    wanted = [f"{name}-{number}" for number in range(100) if here.log.partition(topics.REQUESTS, f"{name}-{number}".encode()) == 0]
    # Of one partition: then all of them are on their way when the network fails.
    sent = [request(request_id) for request_id in wanted]
    with KafkaLog.open(here.settings) as log:
        log.append([request(f"{name}-before")])
        here.proxy.becomes(weather)
        asked = time.monotonic()
        with pytest.raises(LogUnreachable, match="append the same bytes again"):
            log.append(sent)
        took_seconds = time.monotonic() - asked
        while_away = values(here.log, topics.REQUESTS)
        here.proxy.becomes(FINE)
        patiently(log, sent)
        try:
            until(lambda: values(here.log, topics.REQUESTS).count(sent[-1].value) >= 2, LANDS_SECONDS, "what was given up lands as well")
        except AssertionError:
            # The client closed the connection with all that it held: what might have landed late is then sent late by us.
            patiently(log, sent)
        with KafkaLog.open(here.settings) as own:
            scheduler = Scheduler(own, f"s-{name}")
            until(lambda: scheduler.turn(0.01) >= 0 and counting(here.log)[0].keys() >= set(wanted), LOOK_SECONDS, "all are answered")
            scheduler.close()

    landed = values(here.log, topics.REQUESTS)
    assert took_seconds < PATIENCE_MS / 1000 + SLACK_SECONDS
    assert (sent[0].value in while_away) == weather.holds_to_client, "a hole for acknowledgements lets the records through"
    # On a busy machine the second try may be given up as well.
    assert min(landed.count(each.value) for each in sent) >= 2
    results = [value for value in values(here.log, topics.RESULTS) if f'"{name}-'.encode() in value]
    assert len(results) == len(wanted) + 1, "one result for each request, however often it stands in the log"


def test_a_result_and_claims_given_up_that_land_all_the_same_count_once(here: Proxied) -> None:
    here.log.append([observed(f"n{number}") for number in range(4)])
    with KafkaLog.open(here.settings) as own:
        scheduler = Scheduler(own, "s-late")
        scheduler.turn()
        here.log.append([request(f"late-{number}") for number in range(20)])
        until(lambda: scheduler.turn(0.05) > 0 and bool(scheduler.placer.counters.claims), LOOK_SECONDS, "it claims")
        here.proxy.becomes(Weather(holds_to_client=True))

        def gives_up() -> bool:
            try:
                scheduler.turn()
            except LogUnreachable:
                return True
            return False

        for number in range(2):
            until(gives_up, LOOK_SECONDS, f"what it said is given up, {number} times before")
        here.proxy.becomes(FINE)
        wanted = {f"late-{number}" for number in range(20)}
        answered = threading.Event()

        def settles() -> bool:
            try:
                scheduler.turn(0.05)
            except LogUnreachable:
                return False
            if counting(here.log)[0].keys() >= wanted:
                answered.set()
            return answered.is_set() and scheduler.placer.is_idle()

        until(settles, LOOK_SECONDS, "all are answered")
        scheduler.close()

    fold = folded(here.log)
    assert unnamed(here.log, fold) == []
    assert fold.overgrants == []
    named = [p.claim_id for each in wanted for p in getattr(counting(here.log)[0][each], "placements", ())]
    assert len(named) == len(set(named)) == 20
    assert sorted(claim for ledger in fold.ledgers for claim in ledger.claims if claim.startswith("late-")) == sorted(named)


@pytest.mark.parametrize("kind", ["silent", "deaf", "dumb", "refusing"] if SOAKS else ["dumb"])
def test_a_log_whose_network_is_bad_closes_all_the_same_and_soon(here: Proxied, kind: str) -> None:
    log = KafkaLog.open(here.settings)
    lease = log.lease(f"closing-{kind}", topics.REQUESTS, "me", 6.0)
    until(lambda: bool(lease.partitions()), LOOK_SECONDS, "it has its share")
    log.append([request(f"closing-{kind}")])
    values(log, topics.REQUESTS)
    here.proxy.becomes(TROUBLES[kind])
    with pytest.raises(LogUnreachable):
        log.append([request(f"closing-{kind}-again")])
    with pytest.raises(LogUnreachable):
        log.ends(topics.CLAIMS)

    began = time.monotonic()
    log.close()

    assert time.monotonic() - began < SLACK_SECONDS


def test_the_whole_system_goes_on_after_each_kind_of_trouble_and_all_adds_up(tmp_path: Path, seed: int) -> None:
    draw = Random(seed)
    with world(tmp_path, seed, message_timeout_ms=str(PATIENCE_MS), socket_timeout_ms=str(PATIENCE_MS)) as here:
        here.worker("w0")
        here.scheduler("s0")
        here.scheduler("s1")
        load = here.begin(seed)
        here.goes_on(20, "schedulers place")
        until(lambda: sum(here.log.ends(topics.VERDICTS).values()) > 0, LOOK_SECONDS, "the worker folds")

        for kind in draw.sample(sorted(TROUBLES), len(TROUBLES)) * ROUNDS:
            here.proxy.becomes(TROUBLES[kind])
            time.sleep(draw.uniform(*TROUBLED_SECONDS))
            here.proxy.becomes(FINE)
            here.goes_on(10, f"requests are answered after the network was {kind}")
        here.comes_to_rest()

        wrong = here.wrong(["w0"])
        said = {name: process.said().count("trying again") for name, process in here.site.processes.items()}
        print(
            f"\nseed {seed}: {load.tally}; {len(load.kept)} records acknowledged; out of reach: producers {len(load.troubles)} times, "
            f"{said}; {here.proxy.connections} connections, {here.proxy.cuts} cut, {here.proxy.refused} refused"
        )
        assert wrong == []
        assert here.proxy.cuts > 0
        assert here.proxy.refused > 0
        assert load.troubles, "nobody noticed anything"
        assert [process.starts for process in here.site.processes.values()] == [1, 1, 1]
