"""A ledger written down and read back folds on as if nothing had happened: snapshots, their records, and rules 13 about whose they are."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from producers.ledger_load import ledger_records
from projections import state
from projections.ledger import Ledger
from projections.ledger_table import LedgerTable
from projections.misfit import misfit
from projections.node import Audit, Claim, FullAudit, Home, Node, Shown
from projections.rules import REMEMBERED_RECORDS
from projections.snapshots import CHUNKS_AT_ONCE, chunks_of, encoded, load_newest, load_newest_with, restored
from projections.state import STATE_VERSION, StateError
from projections.table import MemoryTable, TableError
from schemas.claims import Change, GroupHomeClosed, GroupHomeProposed, GroupMember, PartitionOpened
from schemas.codec import encode, key_of
from schemas.inventory import Aggregate, ResourceRule
from schemas.resources import Limits
from schemas.results import SnapshotChunk
from schemas.topics import CLAIMS, SNAPSHOTS
from streams.log.base import Message, TopicSpec
from streams.log.memory import MemoryLog
from tests.ledger_history import START_MS, History, Size, digest_of, item

NODES = ("n1", "n2", "n3")
CHANGES: tuple[Change, ...] = ("arrived", "started", "stopped", "resized", "departed", "deleted")


def eventful(seed: int, length: int) -> History:
    """A partition in which everything happens, in any order: copies, renewals, departures, groups, silence, garbage."""
    random = Random(seed)
    history = History()
    history.say(PartitionOpened(ledger_id="L", partition=0, partitions=1), 0)
    for _ in range(length):
        act(history, random, history.now_s + random.choice((0, 0, 1, 4, 30)))
    return history


def act(history: History, random: Random, at_s: int) -> None:
    node, number = random.choice(NODES), random.randrange(12)
    instance, held = f"i{number}", history.held()
    claim_id = random.choice(held) if held and random.random() < 0.8 else f"c{number}"
    match random.randrange(16):
        case 0 | 1 | 2:
            audit_all(history, node, at_s)
        case 3 | 4:
            listed = {i: random.choice((1, 2)) for i in random.sample([f"i{n}" for n in range(12)], 3)}
            complete = random.random() < 0.8
            history.audit(listed, at_s=at_s, node=node, producer=f"audits of {node}", complete=complete, epoch=random.choice((1, 1, 2)))
        case 5 | 6 | 7:
            group = GroupMember(group_id=f"g{number % 2}", policy="anti-affinity", max_per_node=2) if random.random() < 0.3 else None
            limits, forced, resize = random.choice((None, Limits(instances_max=4))), random.random() < 0.1, random.random() < 0.1
            size, nodes = random.choice((1, 2, 9)), tuple(random.sample(NODES, 2))
            claim = item(f"c{len(history.records)}", instance, size, nodes=nodes, group=group, forced=forced, resize=resize, limits=limits)
            history.claims(claim, at_s=at_s)
        case 8 | 9:
            change = random.choice(CHANGES)
            history.event(change, instance, at_s=at_s, size=random.choice((1, 2)), node=node, producer=f"libvirt of {node}")
        case 10:
            history.renew(claim_id, at_s=at_s, node=node)
        case 11:
            history.release(claim_id, at_s=at_s, node=node, reason=random.choice(("loser", "cancelled")))
        case 12:
            zone = Aggregate(name="a", metadata={"z": "1", "b": "2"})
            history.configure(node, at_s=at_s, memory_mib=ResourceRule(ratio_milli=random.choice((1000, 1500))), aggregates=(zone,))
        case 13:
            epoch = random.randrange(1, 4)
            history.say(GroupHomeProposed(group_id=f"g{number % 2}", record_id=f"p{len(history.records)}", epoch=epoch, node_id=node), at_s)
            closed = GroupHomeClosed(node_id=node, record_id=f"x{len(history.records)}", group_id=f"g{number % 2}", epoch=epoch)
            history.say(closed, at_s)
        case 14:
            history.silent(at_s=at_s, epoch=1, counter=random.randrange(20), producer=f"audits of {node}", node=node)
        case _:
            again = random.choice(history.steps)
            history.again(again, at_s)
            history.append(b"k", random.choice((b"{", b"", b'{"type":"never"}')), at_s)


def audit_all(history: History, node: str, at_s: int) -> None:
    """A host that lists exactly what is claimed there, and then the same unchanged: mostly the node is settled after it."""
    there, producer = history.ledger.nodes.get(node), f"audits of {node}"
    listed: dict[str, Size] = dict.fromkeys(there.claims, 1) if there is not None else {}
    epoch, _ = there.sources.get(f"audits|{producer}", (1, 0)) if there is not None else (1, 0)
    history.audit(listed, at_s=at_s, node=node, producer=producer, epoch=epoch)
    history.audit(unchanged=digest_of(listed), at_s=at_s + 1, node=node, producer=producer, epoch=epoch)


def fold_on(ledger: Ledger, history: History) -> None:
    """Fold the rest of the history: every step is what it was when the history was written."""
    for written, step in zip(history.records[ledger.next_offset :], history.steps[ledger.next_offset :], strict=True):
        again = ledger.apply(*written)
        assert again == step, f"at offset {written.offset}"


def log_of(history: History, *chunks: SnapshotChunk) -> MemoryLog:
    log = MemoryLog((TopicSpec(CLAIMS, 1), TopicSpec(SNAPSHOTS, 1)), clock=lambda: START_MS)
    log.append([Message(CLAIMS, key, value) for _, _, key, value in history.records])
    log.append([Message(SNAPSHOTS, key_of(chunk) or b"", encode(chunk)) for chunk in chunks])
    return log


def folded(history: History, until: int) -> Ledger:
    ledger = Ledger(0, 1)
    for written in history.records[:until]:
        ledger.apply(*written)
    return ledger


@given(seed=st.integers(0, 1 << 32), share=st.floats(0, 1))
def test_a_restored_ledger_folds_on_to_the_same_steps_digest_and_bytes(seed: int, share: float) -> None:
    history = eventful(seed, 60)
    stored = encoded(folded(history, int(share * len(history.records))))

    ledger = restored(stored)

    assert encoded(ledger) == stored
    fold_on(ledger, history)
    assert ledger.digest == history.ledger.digest
    assert encoded(ledger) == encoded(history.ledger)


@given(seed=st.integers(0, 1 << 32), batch=st.integers(1, 25))
def test_a_table_written_batch_by_batch_gives_the_same_ledger_after_each(seed: int, batch: int) -> None:
    history = eventful(seed, 40)
    table = LedgerTable(MemoryTable())
    ledger = Ledger(0, 1)

    for first in range(0, len(history.records), batch):
        steps = [step for written in history.records[first : first + batch] if (step := ledger.apply(*written)) is not None]
        table.write(ledger, steps, {b"%d" % first: b"companion", b"%d" % (first - batch): None})
        loaded = table.load()

        assert loaded is not None
        assert encoded(loaded) == encoded(ledger)
        assert list(table.extras()) == [(b"%d" % first, b"companion")]


def test_derived_figures_are_those_of_the_ledger_that_was_stored() -> None:
    history = eventful(7, 200)

    ledger = restored(encoded(history.ledger))

    for node_id, node in history.ledger.nodes.items():
        again = ledger.nodes[node_id]
        derived = ("uses", "used", "groups_of", "io_claims", "limits", "whole_units", "key", "settled_ms", "claims", "shown")
        assert [getattr(again, name) for name in derived] == [getattr(node, name) for name in derived]
    assert ledger.claims == history.ledger.claims
    assert all(claim is ledger.claims[claim.claim_id] for node in ledger.nodes.values() for claim in node.held())


def test_a_settled_node_stays_settled_with_its_time() -> None:
    history = History()
    history.audit({"i1": 1}, at_s=0)
    history.audit(unchanged=history.node().full.digest, at_s=60)  # type: ignore[union-attr]  # the line above applied it

    ledger = restored(encoded(history.ledger))

    assert ledger.nodes["n1"].settled_ms == START_MS + 60_000
    assert ledger.nodes["n1"].shown["i1"].seen_ms == START_MS


def test_forgotten_ids_leave_the_table_and_remembered_ones_come_back() -> None:
    records = [(f"release {n}".encode(), n) for n in range(3)]
    history = History()
    table, ledger = LedgerTable(MemoryTable()), history.ledger
    for _, n in records:
        table.write(ledger, [history.release(f"c{n}", at_s=0)])
    ahead = REMEMBERED_RECORDS - 1
    steps = [step for at in range(3, 3 + ahead) if (step := ledger.apply(at, START_MS, b"k", b"")) is not None]

    table.write(ledger, steps)

    loaded = table.load()
    assert loaded is not None
    assert encoded(loaded) == encoded(ledger)
    assert sorted(loaded.released_early) == ["c1", "c2"]
    assert len(list(table._table.items(b"i"))) == 2


def test_a_table_that_stands_elsewhere_is_not_written_to() -> None:
    history = eventful(1, 20)
    table = LedgerTable(MemoryTable())

    with pytest.raises(TableError, match="store the whole ledger"):
        table.write(history.ledger, history.steps[5:])

    table.store(history.ledger, {b"n1": b"views"})
    assert encoded(table.load() or Ledger(0, 1)) == encoded(history.ledger)
    assert list(table.extras()) == [(b"n1", b"views")]


def test_a_table_of_another_state_version_is_cleared_with_the_reason() -> None:
    history = eventful(1, 20)
    rows = MemoryTable()
    LedgerTable(rows).store(history.ledger)
    header = bytearray(state.header_of(history.ledger))
    header[1] = STATE_VERSION + 1
    rows.write({}, next_offset=rows.next_offset, meta={"ledger": bytes(header)})
    told: list[str] = []

    assert LedgerTable(rows).load(told.append) is None

    assert f"state version {STATE_VERSION + 1}" in told[0]
    assert (rows.next_offset, list(rows.items())) == (0, [])


def test_the_newest_snapshot_in_the_log_is_loaded_whatever_the_number_of_its_chunks() -> None:
    history = eventful(3, 80)
    old, new = folded(history, 40), folded(history, 70)
    log = log_of(history, *chunks_of(old, 200), *chunks_of(new, 200))
    assert log.end(SNAPSHOTS, 0) > CHUNKS_AT_ONCE

    assert encoded(load_newest(log, 0) or Ledger(0, 1)) == encoded(new)
    assert encoded(load_newest(log, 0, at_most=60) or Ledger(0, 1)) == encoded(old)
    assert load_newest(log, 0, at_most=39) is None


def test_chunks_of_two_writers_and_an_unfinished_one_do_not_disturb_each_other() -> None:
    history = eventful(3, 80)
    old, new = folded(history, 40), folded(history, 70)
    mixed = [chunk for pair in zip(chunks_of(old, 400), chunks_of(old, 400), strict=True) for chunk in pair]
    log = log_of(history, *mixed, *chunks_of(new, 400)[:-1])

    assert encoded(load_newest(log, 0) or Ledger(0, 1)) == encoded(old)


def test_each_chunk_stays_below_900_kb_and_is_read_by_the_codec() -> None:
    ledger = Ledger(0, 1)
    for offset, (_, time_ms, key, value) in enumerate(ledger_records(1, nodes=300, records=20_000)):
        ledger.apply(offset, time_ms, key, value)

    records = [encode(chunk) for chunk in chunks_of(ledger)]

    assert len(records) >= 1
    assert max(map(len, records)) < 900_000


Spoil = Callable[[list[SnapshotChunk]], list[SnapshotChunk]]
OTHER_VERSION = STATE_VERSION + 1
SPOILT: dict[str, tuple[Spoil, str]] = {
    "another version": (lambda chunks: [replace(chunk, state_version=OTHER_VERSION) for chunk in chunks], f"state version {OTHER_VERSION}"),
    "cut short": (lambda chunks: [replace(chunk, data=chunk.data[:-8]) for chunk in chunks], "cannot be read"),
    "not base64": (lambda chunks: [replace(chunk, data="%") for chunk in chunks], "do not belong together"),
    "another offset": (lambda chunks: [replace(chunk, offset=chunk.offset + 1) for chunk in chunks], "its content is of claims/0@69"),
    "another digest": (lambda chunks: [replace(chunk, digest="00") for chunk in chunks], "its content is of"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_spoilt_snapshot_is_passed_over_with_the_reason_and_the_one_before_it_is_used(spoilt: str) -> None:
    history = eventful(3, 80)
    old, new = folded(history, 40), folded(history, 70)
    spoil, reason = SPOILT[spoilt]
    log = log_of(history, *chunks_of(old), *spoil(chunks_of(new)))
    told: list[str] = []

    found = load_newest(log, 0, tell=told.append)

    assert encoded(found or Ledger(0, 1)) == encoded(old)
    assert reason in told[0]
    assert len(told) == 1


UNREADABLE = [(b"nn1", b"\xc1"), (b"n\xff", b"\x95\xc0\xc0\x80\x80\x80"), (b"d", b"no doubles")]


@pytest.mark.parametrize("row", UNREADABLE)
def test_a_snapshot_whose_views_cannot_be_read_is_passed_over_by_who_needs_them(row: tuple[bytes, bytes]) -> None:
    history = eventful(3, 80)
    old, new = folded(history, 40), folded(history, 70)
    log = log_of(history, *chunks_of(old), *chunks_of(new, extras=[row]))
    told: list[str] = []

    found = load_newest_with(log, 0, tell=told.append)
    alone = load_newest(log, 0, tell=told.append)

    assert found is not None
    assert (encoded(found[0]), found[1]) == (encoded(old), ())
    assert encoded(alone or Ledger(0, 1)) == encoded(new)
    assert [said for said in told if "is passed over: its views and findings cannot be read" in said] == told
    assert len(told) == 1


def test_a_state_of_another_log_is_discarded() -> None:
    history, other = eventful(3, 80), eventful(4, 80)
    ledger = history.ledger
    shorter, longer = History(), eventful(3, 80)
    for written in history.records[:50]:
        shorter.append(written.key, written.value)
    twin = History()
    twin.say(PartitionOpened(ledger_id="twin", partition=0, partitions=1), 0)
    for written in history.records[1:]:
        twin.append(written.key, written.value)

    assert misfit(ledger, log_of(longer), 0) is None
    assert "ends at offset 50" in (misfit(ledger, log_of(shorter), 0) or "")
    assert "another record at offset" in (misfit(folded(history, 50), log_of(other), 0) or "")
    assert "is ledger 'twin'" in (misfit(ledger, log_of(twin), 0) or "")
    assert "partitions" in (misfit(Ledger(0, 2), log_of(history), 0) or "")
    assert misfit(Ledger(0, 1), log_of(History()), 0) is None


def test_a_state_whose_last_record_was_archived_is_used_but_not_one_before_a_gap() -> None:
    history = eventful(3, 80)
    log = log_of(history)

    log.truncate(CLAIMS, 0, 60)

    assert misfit(folded(history, 60), log, 0) is None
    assert misfit(folded(history, 70), log, 0) is None
    assert "from 59 on are not at hand" in (misfit(folded(history, 59), log, 0) or "")


def test_bytes_that_are_no_state_are_said_to_be_none() -> None:
    for data in (b"", b"nonsense", encoded(eventful(1, 5).ledger)[:-3]):
        with pytest.raises(StateError, match="cannot be read"):
            restored(data)


def test_a_log_without_the_topic_has_no_snapshot() -> None:
    assert load_newest(MemoryLog((TopicSpec(CLAIMS, 1),)), 0) is None


def test_nothing_folded_is_nothing_to_keep() -> None:
    with pytest.raises(ValueError, match="nothing is folded yet"):
        chunks_of(Ledger(0, 1))


def test_a_change_of_what_is_stored_is_noticed() -> None:
    """If this fails, raise STATE_VERSION and write the new fields down here: states stored before are then ignored, not misread."""
    fields = {kind.__name__: kind.__struct_fields__ for kind in (Claim, Shown, Audit, FullAudit, Home)}

    assert STATE_VERSION == 8
    assert state.TIMES == (
        "sources", "audit", "complete_ms", "unknown_since_ms", "unknown_reason", "unknown_instances", "silent_since_ms", "settled_ms",
    )  # fmt: skip
    assert state.FACTS == (
        "node_id", "status", "status_reason", "vcpus", "pcpus", "memory_mib", "disk_mib", "zone", "aggregates", "traits", "pages_reserved",
        "hypervisor", "full",
    )  # fmt: skip
    assert {*state.TIMES, *state.FACTS, *state.DERIVED, *state.ORDERED} == set(Node.__struct_fields__)
    assert fields == {
        "Claim": (
            "claim_id", "request_id", "instance_id", "node_id", "owner", "offset", "amounts", "since_ms", "deadline_ms", "ttl_ms", "resize",
            "forced", "renewed", "confirmed_ms", "seen_ms", "gone_ms", "departed_ms", "run_epoch", "run_mono_ms", "group", "project_id",
            "numa", "pci", "pinned_cpus", "pci_addresses", "confirmed_offset", "confirmed_by", "granted_ms", "run_since_ms",
            "cells", "keep", "flavor",
        ),
        "Shown": ("report", "amounts", "seen_ms", "event_ms", "offset", "group_id"),
        "Audit": ("producer", "epoch", "counter", "taken_at_ms", "complete", "offset"),
        "FullAudit": ("digest", "epoch", "hypervisor", "instances", "offset"),
        "Home": ("epoch", "node_id"),
    }  # fmt: skip


def test_a_snapshot_that_unpacks_without_end_is_refused_before_it_fills_the_memory() -> None:
    bomb = zlib.compress(bytes(400 << 20), 9)

    with pytest.raises(StateError, match="more than a ledger"):
        restored(bomb)
