"""Whatever can be read can be folded and decided, and what is made of it can be read: nobody's record ends a process."""

from __future__ import annotations

import os
from collections import Counter
from random import Random
from typing import Any

import pytest
from msgspec import structs

from projections.doubles import DoubleClaims
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.observed import Observed
from projections.rows import node_resources
from projections.snapshots import encoded, restored
from schemas.claims import ClaimRequested, NodeObserved
from schemas.codec import Unreadable, decode, encode, key_of
from schemas.inventory import HugePages, Hypervisor, NumaCell
from schemas.requests import PlacementRequested
from schemas.resources import Limits, Resources
from schemas.topics import AUDITS, CLAIMS, FINDINGS, LIFECYCLE, NODE_RESOURCES, REQUESTS, RESULTS, VERDICTS
from streams.log.base import Record
from streams.reconciler import reconcile
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import POLICIES, Policy, digest
from streams.scheduling.select import engine
from tests.any_record import NODES, AnyRecord
from tests.scheduling_world import START_MS, World, world

TIMES = 100 if os.environ.get("CLAIMLOG_SOAK") else 1
HISTORIES, RECORDS = 25 * TIMES, 60
CLOUDS, REQUESTS_EACH = 8 * TIMES, 12
TURNS_MAX = 20


def readable(topic: str, record: Any) -> Any:
    """The record as its readers have it."""
    found = decode(topic, encode(record))
    assert not isinstance(found, Unreadable), f"{found.reason}: {record}"
    return found


def drawn(random: Random, any_record: AnyRecord, ledger: Ledger, time_ms: int) -> tuple[bytes, bytes]:
    """Key and value of the next record of `claims`: as somebody wrote it, or as the reconciler carries an observation."""
    topic = random.choice((CLAIMS, CLAIMS, AUDITS, LIFECYCLE))
    types = random.choice(((), ("ClaimRequested", "NodeObserved"))) if topic == CLAIMS else ()
    record = any_record.draw(topic, *types)
    if isinstance(record, ClaimRequested):
        record = likelier(random, record, ledger)
    if topic == CLAIMS:
        return key_of(record) or b"any", encode(record)
    message = reconcile(Record(topic, 0, ledger.next_offset, time_ms, key_of(record) or b"", encode(record), ()), 1)
    assert not isinstance(message, Unreadable), message.reason
    readable(CLAIMS, decode(CLAIMS, message.value))
    return message.key, message.value


def likelier(random: Random, event: ClaimRequested, ledger: Ledger) -> ClaimRequested:
    """Decided on what is there, and half of the claims new and small, so that some are granted."""
    offset = ledger.next_offset
    items = [
        structs.replace(item, claim_id=f"{offset}/{number}", resources=Resources(vcpus=random.randint(0, 2)), limits=Limits())
        if random.random() < 0.5
        else item
        for number, item in enumerate(event.items)
    ]
    return structs.replace(event, basis=offset - 1, items=tuple(items))


def sound(node_id: str) -> NodeObserved:
    """A host with room and two cells, audited once."""
    cells = tuple(
        NumaCell(
            cell_id=cell_id,
            cpus=tuple(range(cell_id * 8, cell_id * 8 + 8)),
            dedicated_cpus=tuple(range(cell_id * 8 + 4, cell_id * 8 + 8)),
            memory_mib=1 << 20,
            pages=(HugePages(size_kib=4, total=1 << 28), HugePages(size_kib=2048, total=1 << 10)),
        )
        for cell_id in range(2)
    )
    host = Hypervisor(vcpus=64, pcpus=8, memory_mib=1 << 21, disk_mib=1 << 30, numa_cells=cells)
    return NodeObserved(
        node_id=node_id, producer="audits", epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=1, hypervisor=host, instances=()
    )


def test_whatever_can_be_read_is_folded_and_rows_verdicts_findings_and_snapshots_of_it_can_be_read(seed: int) -> None:
    made: Counter[str] = Counter()
    for number in range(HISTORIES):
        random = Random(f"{seed}/{number}")
        any_record = AnyRecord(random)
        ledger, observed, leaks, time_ms = Ledger(0, 1), Observed(0), Leaks(0), START_MS
        doubles = DoubleClaims({0: ledger})
        while ledger.next_offset < RECORDS:
            time_ms += random.choice((0, 1, 1_000, 60_000, 10_000_000))
            begins = ledger.next_offset < len(NODES)
            first = sound(NODES[ledger.next_offset]) if begins else None
            key, value = (key_of(first) or b"", encode(first)) if first else drawn(random, any_record, ledger, time_ms)
            if b'"rules-changed"' in value or b'"partition-opened"' in value:
                continue  # These may end a reader: it says what to upgrade.

            step = ledger.apply(ledger.next_offset, time_ms, key, value)

            assert step is not None
            observed.apply(ledger, step)
            found = [*leaks.apply(ledger, observed, step), *doubles.apply(0, step)]
            for outcome in step.outcomes:
                made[readable(VERDICTS, outcome).outcome] += 1
            for node_id in step.node_ids:
                readable(NODE_RESOURCES, node_resources(ledger, node_id, observed, leaks.count(node_id)))
            for finding in found:
                made[readable(FINDINGS, finding).kind] += 1
        assert restored(encoded(ledger)).digest == ledger.digest
    assert {"granted", "refused", "ghost-instance", "stale-instance", "expired-claim"} <= set(made), f"too little came of it: {made}"


@pytest.mark.parametrize("name", ["nova", "spread", "absolute-pack"])
def test_any_request_that_can_be_read_is_answered_by_both_engines_alike_and_by_the_scheduler(name: str, seed: int) -> None:
    policy, placed = POLICIES[name], Counter[bool]()
    for number in range(CLOUDS):
        random = Random(f"{seed}/{name}/{number}")
        here, any_record = cloud(random), AnyRecord(random)
        scheduler = here.scheduler(policy=policy)
        for count in range(REQUESTS_EACH):
            here.say(CLAIMS, any_record.draw(CLAIMS, "NodeObserved", "NodeConfigured", "InstanceObserved"))
            request = requested(random, any_record, f"q{count}")

            decide_alike(here, request, policy)
            here.say(REQUESTS, request)
            here.requests.append(request)
            turns = 0
            while scheduler.turn() and turns < TURNS_MAX:
                turns += 1
                here.clock.now_ms += 1_000
        for _ in range(TURNS_MAX):
            here.clock.now_ms += 600_000
            scheduler.turn()
        for topic in (CLAIMS, RESULTS):
            for partition in here.log.ends(topic):
                for record in here.records(topic, partition):
                    found = decode(topic, record.value)
                    assert not isinstance(found, Unreadable), found.reason
        placed.update(here.answer(request.request_id).placed for request in here.requests)
    assert set(placed) == {True, False}, placed


def cloud(random: Random) -> World:
    """Up to three sound hosts of any size."""
    here = world(claims=2, requests=1)
    for node_id in random.sample(NODES, random.randint(1, 3)):
        here.host(node_id, **random.choice(({}, {"vcpus": 1 << 50, "memory_mib": 1 << 50}, {"disk_mib": 0})))
    return here


def requested(random: Random, any_record: AnyRecord, request_id: str) -> PlacementRequested:
    """Any request; half of them small enough to be placed now and then."""
    request: PlacementRequested = any_record.draw(REQUESTS, "PlacementRequested")
    if random.random() < 0.5:
        flavor = structs.replace(request.flavor, vcpus=random.randint(0, 2), memory_mib=512, root_gib=0, ephemeral_gib=0, swap_mib=0)
        request = structs.replace(request, flavor=flavor, forced_nodes=(), forced_hosts=(), availability_zone="", action="create")
    return structs.replace(request, request_id=request_id, count=min(request.count, 6) if not request.instance_ids else request.count)


def decide_alike(here: World, request: PlacementRequested, policy: Policy) -> None:
    """The two engines say the same of it, evidence included."""
    decided = []
    for name in ("reference", "profiles"):
        fleet = Fleet(here.ledgers())
        ask = fleet.ask(request, 0, owner="s", options=policy.options)
        decided.append(structs.replace(engine(name)(fleet, ask, policy, digest(policy)), engine=""))
    assert decided[0] == decided[1], request
