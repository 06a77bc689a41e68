"""Garbage in a claims history: every reader skips it alike, says why, and what is valid fares as if it had never been there."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.snapshots import encoded, restored
from schemas.claims import PartitionOpened
from schemas.codec import Unreadable, decode, encode
from schemas.topics import CLAIMS, TOPICS
from tests.faults.garbage import changed
from tests.golden.ledger_story import PARTITION, PARTITIONS, mine, told
from tests.ledger_history import Written, state

MUTATIONS = 10_000
BETWEEN = 60
"""Mutated messages between two valid ones, so that the whole story has its share."""
VALUE_BYTES_MAX = TOPICS[CLAIMS].value_bytes_max
VALID = [written for written, step in zip(told().records, told().steps, strict=True) if step.dead is None]
THEIRS = mine("theirs", partition=1 - PARTITION)
Mutation = Callable[[random.Random, Written], tuple[bytes, bytes]]


def truncated(chance: random.Random, valid: Written) -> tuple[bytes, bytes]:
    return valid.key, valid.value[: chance.randrange(len(valid.value))]


def flipped(chance: random.Random, valid: Written) -> tuple[bytes, bytes]:
    """Some bytes are others; an accident may leave a record, which the caller sees."""
    value = bytearray(valid.value)
    for _ in range(chance.randint(1, 4)):
        value[chance.randrange(len(value))] = chance.randrange(256)
    return valid.key, bytes(value)


def not_utf_8(chance: random.Random, valid: Written) -> tuple[bytes, bytes]:
    at = chance.randrange(1, len(valid.value))
    return valid.key, valid.value[:at] + chance.choice([b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\\ud800", b"\x00"]) + valid.value[at:]


def wrongly_typed(chance: random.Random, valid: Written) -> tuple[bytes, bytes]:
    return valid.key, changed(chance, valid.value, lambda old: [{}, [], "7", 1.5, None, True, -1][chance.randrange(7)] if old != "" else 7)


def out_of_range(chance: random.Random, valid: Written) -> tuple[bytes, bytes]:
    huge = [-1, -(1 << 60), (1 << 50) + 1, 1 << 62, 1 << 63, 1 << 64, 1 << 200, 1e300]

    def beyond(old: Any) -> Any:
        return chance.choice(huge) if type(old) is int else "x" * 5000 if type(old) is str else old

    return valid.key, changed(chance, valid.value, beyond)


def unknown_field(chance: random.Random, valid: Written) -> tuple[bytes, bytes]:
    name = chance.choice(["surprise", "Node_id", "node_id ", "", "típo", "x" * 300])
    return valid.key, valid.value[:-1] + f',"{name}":{chance.choice(["1", "null", "[]", "{}"])}}}'.encode()


def unknown_type(chance: random.Random, valid: Written) -> tuple[bytes, bytes]:
    name = chance.choice(["from-the-future", "", "Claim-Requested", "claim-granted", "x" * 5000, "hypervisor-audited"])
    return valid.key, msgspec.json.encode({**msgspec.json.decode(valid.value), "type": name})


def deep(chance: random.Random, valid: Written) -> tuple[bytes, bytes]:
    depth, (begin, end) = chance.choice([33, 500, 900, 985, 3000, 40_000]), chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
    middle = chance.choice([b"1", b""] if begin == b"[" else [b"1"])
    nested = begin * depth + middle + end * (depth if chance.random() < 0.8 else 0)
    wrapped = chance.choice([nested, valid.value[:-1] + b',"x":' + nested + b"}", b'{"x":' + nested + b',"type":"node-silent"}'])
    return valid.key, wrapped


def too_large(chance: random.Random, valid: Written) -> tuple[bytes, bytes]:
    return valid.key, valid.value + b" " * (VALUE_BYTES_MAX + chance.randint(1, 9) - len(valid.value))


def wrongly_keyed(chance: random.Random, valid: Written) -> tuple[bytes, bytes]:
    return chance.choice([b"", b"\xff\xfe", valid.key + b" ", valid.key[:-1], valid.key.upper(), b"\x00", b"k" * 100_000]), valid.value


def of_another_partition(chance: random.Random, valid: Written) -> tuple[bytes, bytes]:
    """The same record of a node that belongs elsewhere, under its right key; or a claim with one such alternate."""
    record = msgspec.json.decode(valid.value)
    for name in ("node_id", "group_id"):
        if record.get(name, "").encode() == valid.key:
            record[name] = THEIRS
    key = THEIRS.encode()
    if "items" in record:
        nodes = record["items"][0]["nodes"]
        first = chance.random() < 0.5
        record["items"][0]["nodes"] = [THEIRS, *nodes] if first else [*nodes, THEIRS]
        key = key if first else valid.key
    return key, msgspec.json.encode(record)


def no_object(chance: random.Random, _: Written) -> tuple[bytes, bytes]:
    return b"n", chance.choice([b"", b" ", b"null", b"true", b"7", b"[]", b"{}", b'"text"', b"\x00" * 50, b"{" * 50, chance.randbytes(40)])


def misplaced(chance: random.Random, _: Written) -> tuple[bytes, bytes]:
    partition, partitions, rules_version = (chance.randrange(9) for _ in range(3))
    return b"k", encode(PartitionOpened(ledger_id="another", partition=partition, partitions=partitions, rules_version=rules_version))


MUTATED: tuple[Mutation, ...] = (
    truncated, flipped, not_utf_8, wrongly_typed, out_of_range, unknown_field, unknown_type, deep, too_large, wrongly_keyed,
    of_another_partition, no_object, misplaced,
)  # fmt: skip
WEIGHTS = [1 if mutation in {too_large, deep} else 8 for mutation in MUTATED]
"""The largest are rare: a gigabyte of garbage would say no more than some megabytes."""


def garbage(chance: random.Random, count: int) -> list[tuple[str, bytes, bytes]]:
    """Mutated messages that are no records: those that an accident left valid are not among them."""
    found: list[tuple[str, bytes, bytes]] = []
    while len(found) < count:
        mutation = chance.choices(MUTATED, WEIGHTS)[0]
        key, value = mutation(chance, chance.choice(VALID))
        if _counts_for_nothing(key, value):
            found.append((mutation.__name__, key, value))
    return found


def _counts_for_nothing(key: bytes, value: bytes) -> bool:
    """By the decoder and the key alone, without asking the fold."""
    event = decode(CLAIMS, value)
    if isinstance(event, Unreadable | PartitionOpened):
        return True
    if not hasattr(event, "items") and not hasattr(event, "node_id"):
        return False
    belongs = event.items[0].nodes[0] if hasattr(event, "items") else getattr(event, "group_id", event.node_id)
    if type(event).__name__ == "GroupHomeClosed":
        belongs = event.node_id
    nodes = [node for item in event.items for node in item.nodes] if hasattr(event, "items") else [belongs]
    return bool(belongs.encode() != key or THEIRS in nodes)


def mixed(seed: int) -> tuple[list[Written], list[tuple[int, str]]]:
    """The story with garbage between its records, and for each record the offset in the story or the kind of mutation."""
    chance = random.Random(seed)
    records: list[Written] = []
    origins: list[tuple[int, str]] = []
    pending = garbage(chance, MUTATIONS)
    for offset, valid in enumerate(told().records):
        records.append(Written(len(records), valid.time_ms, valid.key, valid.value))
        origins.append((offset, ""))
        share = len(pending) if offset == len(told().records) - 1 else BETWEEN
        for name, key, value in pending[:share]:
            records.append(Written(len(records), valid.time_ms, key, value))
            origins.append((-1, name))
        del pending[:share]
    return records, origins


def folded(records: list[Written], restart_every: int = 0) -> tuple[Ledger, list[Step]]:
    ledger, steps = Ledger(PARTITION, PARTITIONS), []
    for written in records:
        if restart_every and written.offset % restart_every == 0:
            ledger = restored(encoded(ledger))
        step = ledger.apply(*written)
        assert step is not None
        steps.append(step)
    return ledger, steps


def folded_deep_down(records: list[Written]) -> bytes:
    """The digest of a reader in a thread of its own, under many calls: what it can recurse into is another depth."""
    digests: list[bytes] = []

    def descend(calls: int) -> None:
        if calls:
            descend(calls - 1)
        else:
            digests.append(folded(records)[0].digest)

    thread = threading.Thread(target=descend, args=(sys.getrecursionlimit() // 8,))
    thread.start()
    thread.join()
    return digests[0]


def test_garbage_is_skipped_by_every_reader_alike_and_valid_traffic_fares_as_without_it(seed: int) -> None:
    records, origins = mixed(seed)
    alone = told()

    ledger, steps = folded(records)

    kinds = Counter(name for _, name in origins if name)
    assert sum(kinds.values()) == MUTATIONS
    assert len(kinds) == len(MUTATED), f"some mutations left no garbage at all: {kinds}"
    for (offset, name), step in zip(origins, steps, strict=True):
        if name:
            assert step.dead is not None, f"{name} at {step.offset} counts as {step.event}"
            assert step.dead.reason, f"{name} at {step.offset} has no reason"
            assert (step.event, step.outcomes, step.node_ids) == (None, [], ())
        else:
            assert _fate(step) == _fate(alone.steps[offset]), f"{step.event} fares otherwise beside garbage"
    assert _meaning(ledger) == _meaning(alone.ledger)
    assert folded(records, restart_every=997)[0].digest == ledger.digest
    assert folded_deep_down(records) == ledger.digest


def _fate(step: Step) -> Any:
    """What a step did, but for where it stands."""
    outcomes = [msgspec.structs.replace(outcome, offset=0) for outcome in step.outcomes]
    return step.ignored, step.dead and step.dead.kind, outcomes, step.node_ids


def _meaning(ledger: Ledger) -> Any:
    """Rows and claims without the offsets in them."""
    rows = state(ledger)["nodes"].items()
    return sorted(ledger.claims), [(node_id, row["used"], row["uses"], row["status"], sorted(row["shown"])) for node_id, row in rows]
