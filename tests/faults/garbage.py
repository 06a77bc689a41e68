"""Messages that are no records, made from valid ones of every topic by seeded mutations; and valid ones that mean harm.

`fault_of` says by the rules of DESIGN 1.2 (rule 11) and of the topic table what kind of dead letter a message must become, or None for a
record: the mutations that happen to leave one are not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from schemas import topics
from schemas.audits import HypervisorAudited, InstanceReport
from schemas.claims import ClaimItem, ClaimReleased, ClaimRenewed, ClaimRequested, NodeConfigured, NodeSilent, PartitionOpened
from schemas.codec import Unreadable, decode, encode, key_of
from schemas.findings import LeakSuspected
from schemas.inventory import Hypervisor, OperatorFields, ResourceRule
from schemas.lifecycle import InstanceDeleted, InstanceStarted
from schemas.partitioner import partition_of
from schemas.requests import Flavor, PlacementCancelled, PlacementRequested
from schemas.resources import ObservedResources, Resources
from schemas.results import InstancesPlaced, Placement, PlacementFailed, RequestsAnswered, SchedulerStarted, SnapshotChunk
from schemas.topics import TOPICS
from schemas.units import AMOUNT_MAX
from streams.log.base import Message

GOLDEN = Path(__file__).parents[1] / "golden" / "records.jsonl"
SHARES = {
    topics.AUDITS: 0.14,
    topics.LIFECYCLE: 0.14,
    topics.CLAIMS: 0.20,
    topics.REQUESTS: 0.14,
    topics.RESULTS: 0.14,
    topics.ANSWERED: 0.04,
    topics.VERDICTS: 0.04,
    topics.NODE_RESOURCES: 0.04,
    topics.SNAPSHOTS: 0.04,
    topics.FINDINGS: 0.04,
    topics.DIGESTS: 0.04,
}
"""How much of the garbage each topic gets: most where folds and schedulers read."""
KEYED = frozenset({topics.AUDITS, topics.LIFECYCLE, topics.CLAIMS, topics.REQUESTS, topics.RESULTS})
"""Topics where a record's partition follows from its key; derived records lie in the partition of the ledger that they come from."""
ODD_NAMES = ("a b", 'quo"te', "line\nbreak", "nul\x00", "\u202eevil", "x" * 255, "é" * 255, "../../etc", "'; DROP TABLE", " ", "\\", "🦄")

Valid = tuple[bytes, bytes]
Mutation = Callable[[Random, str, Valid], Valid]


def valid_records() -> dict[str, list[Valid]]:
    """Key and value of a record of each type, by topic."""
    found: dict[str, list[Valid]] = {}
    for line in GOLDEN.read_bytes().splitlines():
        entry = msgspec.json.decode(line)
        value = entry["value"].encode()
        found.setdefault(entry["topic"], []).append((key_of(decode(entry["topic"], value)) or b"any", value))
    return found


def truncated(draw: Random, _: str, valid: Valid) -> Valid:
    return valid[0], valid[1][: draw.randrange(len(valid[1]))]


def flipped(draw: Random, _: str, valid: Valid) -> Valid:
    value = bytearray(valid[1])
    for _number in range(draw.randint(1, 4)):
        value[draw.randrange(len(value))] = draw.randrange(256)
    return valid[0], bytes(value)


def not_utf_8(draw: Random, _: str, valid: Valid) -> Valid:
    at = draw.randrange(1, len(valid[1]))
    return valid[0], valid[1][:at] + draw.choice([b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\x00"]) + valid[1][at:]


def wrongly_typed(draw: Random, _: str, valid: Valid) -> Valid:
    return valid[0], changed(draw, valid[1], lambda _old: draw.choice([{}, [], "7", 1.5, None, True, [[1]], {"a": 1}]))


def out_of_range(draw: Random, _: str, valid: Valid) -> Valid:
    numbers = [-2, -(1 << 60), AMOUNT_MAX + 1, 1 << 63, 1 << 64, 1 << 200, 1e300]

    def beyond(old: Any) -> Any:
        return draw.choice(numbers) if type(old) is int else "x" * 5000 if type(old) is str else old

    return valid[0], changed(draw, valid[1], beyond)


def unknown_field(draw: Random, _: str, valid: Valid) -> Valid:
    name = draw.choice(["surprise", "Node_id", "node_id ", "x" * 300])
    return valid[0], valid[1][:-1] + f',"{name}":{draw.choice(["1", "null", "[]", "{}"])}}}'.encode()


def unknown_type(draw: Random, _: str, valid: Valid) -> Valid:
    name = draw.choice(["from-the-future", "", "Claim-Requested", "x" * 5000, "partition-closed", 'a"b'])
    return valid[0], msgspec.json.encode({**msgspec.json.decode(valid[1]), "type": name})


def of_another_topic(draw: Random, topic: str, valid: Valid) -> Valid:
    others = [record for name, records in valid_records().items() if name != topic for record in records]
    return draw.choice(others)


def deep(draw: Random, _: str, valid: Valid) -> Valid:
    depth, (begin, end) = draw.choice([33, 900, 3000, 20_000]), draw.choice([(b"[", b"]"), (b'{"a":', b"}")])
    nested = begin * depth + b"1" + end * (depth if draw.random() < 0.8 else 0)
    return valid[0], draw.choice([nested, valid[1][:-1] + b',"x":' + nested + b"}"])


def too_large(draw: Random, topic: str, valid: Valid) -> Valid:
    return valid[0], valid[1] + b" " * (TOPICS[topic].value_bytes_max + draw.randint(1, 9) - len(valid[1]))


def wrongly_keyed(draw: Random, _: str, valid: Valid) -> Valid:
    return draw.choice([b"", b"\xff\xfe", valid[0] + b" ", valid[0][:-1], b"\x00", b"k" * 60_000, b"line\nbreak"]), valid[1]


def no_object(draw: Random, _: str, valid: Valid) -> Valid:
    return valid[0], draw.choice([b"", b" ", b"null", b"true", b"7", b"[]", b"{}", b'"text"', b"\x00" * 50, b"{" * 50, draw.randbytes(40)])


def misplaced(draw: Random, _: str, valid: Valid) -> Valid:
    """As it is: the caller puts it where its key does not belong."""
    return valid


MUTATIONS: dict[Mutation, float] = {
    truncated: 8,
    flipped: 8,
    not_utf_8: 8,
    wrongly_typed: 8,
    out_of_range: 8,
    unknown_field: 8,
    unknown_type: 8,
    of_another_topic: 4,
    deep: 1,
    too_large: 0.4,
    wrongly_keyed: 8,
    no_object: 6,
    misplaced: 6,
}
"""What is done to valid records, and how often; the largest rarely: gigabytes of garbage would say no more than some megabytes."""


def changed(draw: Random, value: bytes, change: Callable[[Any], Any]) -> bytes:
    """A record's bytes with one value somewhere in it changed."""
    record = msgspec.json.decode(value)
    places: list[tuple[Any, Any]] = []

    def walk(there: Any) -> None:
        for where in range(len(there)) if isinstance(there, list) else list(there):
            places.append((there, where))
            if isinstance(there[where], list | dict):
                walk(there[where])

    walk(record)
    there, where = draw.choice(places)
    there[where] = change(there[where])
    return msgspec.json.encode(record)


def fault_of(topic: str, partition: int, partitions: int, key: bytes, value: bytes) -> str | None:
    """The kind of dead letter that a message must become in this place (of `claims`: at an offset above 0); None if it is a record."""
    event = decode(topic, value)
    belongs = partition_of(key, partitions) == partition
    if topic in {topics.AUDITS, topics.LIFECYCLE} and not belongs:
        return "wrong-partition"
    if isinstance(event, Unreadable):
        return event.kind
    if isinstance(event, PartitionOpened):
        return "misplaced"
    expected = key_of(event)
    if expected is not None and expected != key:
        return "wrong-key"
    if topic == topics.CLAIMS and isinstance(event, ClaimRequested):
        belongs = all(partition_of(node.encode(), partitions) == partition for item in event.items for node in item.nodes)
    if topic in KEYED and expected is not None and not belongs:
        return "wrong-partition"
    return None


def garbage(draw: Random, count: int, partitions: dict[str, int]) -> Iterator[tuple[str, Message, str]]:
    """So many messages that are no records: the mutation's name, the message in its partition, what kind of dead letter it becomes."""
    valid = valid_records()
    mutations, weights = list(MUTATIONS), list(MUTATIONS.values())
    for topic in draw.choices(list(SHARES), list(SHARES.values()), k=count):
        while True:
            mutation = draw.choices(mutations, weights)[0]
            key, value = mutation(draw, topic, draw.choice(valid[topic]))
            partition = partition_of(key, partitions[topic])
            if mutation is misplaced or draw.random() < 0.1:
                partition = (partition + 1) % partitions[topic]
            kind = fault_of(topic, partition, partitions[topic], key, value)
            if kind is not None:
                yield mutation.__name__, Message(topic, key, value, (), partition), kind
                break


def keyed(topic: str, record: Any, partition: int | None = None) -> Message:
    """A valid record under its own key."""
    return Message(topic, key_of(record) or b"", encode(record), (), partition)


def stolen(answered: str, node_id: str) -> list[Message]:
    """A second and a third result, and a second request, for a request that has its result."""
    placement = Placement(instance_id="i", claim_id="thief/0", partition=0, node_id=node_id, resources=Resources(vcpus=1))
    result = InstancesPlaced(request_id=answered, owner="thief", taken_up_ms=1, commit_by_ms=AMOUNT_MAX, placements=(placement,))
    return [
        keyed(topics.RESULTS, result),
        keyed(topics.RESULTS, PlacementFailed(request_id=answered, owner="thief", taken_up_ms=1, reason="cancelled")),
        keyed(topics.REQUESTS, PlacementRequested(request_id=answered, flavor=Flavor(vcpus=7, memory_mib=1), count=9)),
    ]


def hostile(draw: Random, node_id: str, partitions: dict[str, int]) -> list[Message]:
    """Valid records that mean harm: about things that are not, with names and numbers at the edge. `node_id` is a node of the fleet."""
    odd, number = draw.choice(ODD_NAMES), draw.randrange(1 << 40)
    name = odd if len(odd) == 255 else f"{odd}{number}"
    size = Resources(vcpus=1, memory_mib=64)
    stranger = ClaimItem(claim_id=name, instance_id=name, nodes=(node_id,), resources=size)
    nowhere = ClaimItem(claim_id=f"nowhere-{number}", instance_id="i", nodes=("no-such-node",), resources=size)
    placement = Placement(instance_id="i", claim_id=f"none-{number}", partition=0, node_id=node_id, resources=size)
    host = Hypervisor(vcpus=draw.choice([0, 1, AMOUNT_MAX]), memory_mib=AMOUNT_MAX, disk_mib=0)
    edge = draw.choice([0, 1, AMOUNT_MAX])
    whose: dict[str, Any] = {"node_id": f"odd-{name}"[:255], "producer": name, "epoch": edge, "counter": edge}
    guest = InstanceReport(instance_id=name, resources=ObservedResources(vcpus=AMOUNT_MAX, memory_mib=edge))
    audit = HypervisorAudited(**whose, taken_at_ms=edge, mono_ms=edge, digest="d", hypervisor=host, instances=(guest,))
    released: dict[str, Any] = {"node_id": node_id, "claim_id": f"unknown-{number}", "record_id": f"record-{number}"}
    limits = OperatorFields(vcpus=ResourceRule(reserved=AMOUNT_MAX, ratio_milli=AMOUNT_MAX))
    where, chunk = draw.randrange(partitions[topics.SNAPSHOTS]), draw.randrange(3)
    digest, rubbish = draw.choice(["00" * 16, "not hex", "x" * 255]), draw.choice(["", "!!", "AAAA", "eJwDAAAAAAE="])
    return [
        keyed(topics.RESULTS, PlacementFailed(request_id=name, owner=name, taken_up_ms=edge, reason="no-valid-node")),
        keyed(
            topics.RESULTS,
            InstancesPlaced(
                request_id=f"none-{number}", owner="nobody", taken_up_ms=edge, commit_by_ms=AMOUNT_MAX, placements=(placement,) * 3
            ),
        ),
        keyed(topics.RESULTS, SchedulerStarted(owner=name, started_ms=edge, policy_digest=name, policy=name)),
        keyed(topics.REQUESTS, PlacementRequested(request_id=f"odd {name}"[:255], flavor=Flavor(vcpus=1), ttl_ms=AMOUNT_MAX)),
        keyed(topics.REQUESTS, PlacementCancelled(request_id=f"never-{number}", record_id=name)),
        keyed(topics.CLAIMS, ClaimRequested(request_id=f"nowhere-{number}", owner=name, basis=0, ttl_ms=edge, items=(nowhere,))),
        keyed(topics.CLAIMS, ClaimRequested(request_id=f"stranger-{number}", owner=name, basis=0, ttl_ms=AMOUNT_MAX, items=(stranger,))),
        keyed(topics.CLAIMS, ClaimReleased(**released, reason="deleted", note=name)),
        keyed(topics.CLAIMS, ClaimRenewed(node_id=node_id, record_id=f"renewal-{number}", claim_id=f"unknown-{number}", ttl_ms=AMOUNT_MAX)),
        keyed(topics.CLAIMS, NodeConfigured(node_id=f"odd-{name}"[:255], record_id=f"configured-{number}", fields=limits)),
        keyed(
            topics.CLAIMS,
            NodeSilent(node_id=name, record_id=f"silent-{number}", producer=name, epoch=edge, counter=edge, silent_since_ms=edge),
        ),
        keyed(topics.AUDITS, audit),
        keyed(topics.LIFECYCLE, InstanceStarted(**whose, event_time_ms=edge, instance=guest, claim_id=name)),
        keyed(topics.LIFECYCLE, InstanceDeleted(**whose, event_time_ms=AMOUNT_MAX, instance=guest)),
        keyed(
            topics.ANSWERED,
            RequestsAnswered(
                partition=0, previous="", last_offset=edge, last_request_id=f"none-{number}", last_time_ms=edge, numbers=rubbish,
                digest=digest,
            ),
            0,
        ),
        keyed(
            topics.SNAPSHOTS,
            SnapshotChunk(
                ledger_id=name, partition=where, offset=edge, index=chunk, chunks=chunk, rules_version=1, state_version=1, digest=digest,
                data=rubbish,
            ),
            where,
        ),
        keyed(
            topics.FINDINGS,
            LeakSuspected(
                finding_id=name, kind="double-claim", node_id=name, partition=edge, offset=edge, time_ms=edge, since_ms=edge,
                suspected_ms=edge,
            ),
            0,
        ),
    ]  # fmt: skip
