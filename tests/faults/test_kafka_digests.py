"""A process whose state went wrong is found by its digest, ends, and folds anew; an innocent one goes on (rule 12)."""

from __future__ import annotations

import json
from pathlib import Path

from projections.ledger_table import LedgerTable
from projections.rocks import RocksTable
from projections.rules import DIGEST_EVERY
from projections.snapshots import encoded
from schemas.claims import ClaimItem, ClaimRequested, NodeObserved
from schemas.codec import decode_keyed, encode, key_of
from schemas.inventory import Hypervisor
from schemas.resources import Resources
from schemas.results import LedgerDigest, SnapshotChunk
from schemas.topics import CLAIMS, DIGESTS, SNAPSHOTS
from streams.log.base import Log, Message
from tests.faults.checkers import digests_wrong, folded, readable, tables_wrong, verdicts_wrong
from tests.faults.harness import until
from tests.faults.shared_site import PATIENCE_SECONDS, SharedSite, shared_site

NODES = [f"n{number}" for number in range(200)]
VCPUS = DIGEST_EVERY // 100
"""Room on each node for twice what is claimed there."""


def audited(log: Log) -> None:
    host = Hypervisor(vcpus=VCPUS, memory_mib=1 << 30, disk_mib=0)
    whose = {"producer": "p", "epoch": 1, "counter": 1, "taken_at_ms": 1_700_000_000_000, "mono_ms": 1, "digest": "d"}
    events = [NodeObserved(node_id=node, **whose, hypervisor=host, instances=()) for node in NODES]  # type: ignore[arg-type]
    log.append([Message(CLAIMS, event.node_id.encode(), encode(event)) for event in events])


def claim(log: Log, until_offset: int) -> None:
    """Claims of one vCPU each, up to and with this offset."""
    messages = []
    for number in range(log.end(CLAIMS, 0), until_offset + 1):
        node = NODES[number % len(NODES)]
        item = ClaimItem(claim_id=f"r{number}/0/1.1", instance_id=f"i{number}", nodes=(node,), resources=Resources(vcpus=1))
        event = ClaimRequested(request_id=f"r{number}", owner="s", basis=number - 1, ttl_ms=86_400_000, items=(item,))
        messages.append(Message(CLAIMS, key_of(event) or b"", encode(event)))
    log.append(messages)


def spoil(table: Path) -> None:
    """One flipped amount in the node's row, as a bit that fell over on the disk would be: a claim of all that there is."""
    with RocksTable.open(table) as kept:
        ledger = LedgerTable(kept).load()
        assert ledger is not None
        held = min(ledger.claims.values(), key=lambda each: each.offset)
        before = encoded(ledger)
        held.amounts = (VCPUS, *held.amounts[1:])
        ledger.nodes[held.node_id].recount(held.instance_id)
        extras = dict(LedgerTable(kept).extras())
        LedgerTable(kept).store(ledger, extras)
        assert encoded(LedgerTable(kept).load() or ledger) != before


def said_digests(log: Log) -> dict[tuple[str, int], str]:
    """The newest digest of each process and offset."""
    return {(each.process, each.offset): each.digest for _, each in readable(log, DIGESTS, LedgerDigest)}


def test_a_process_whose_state_was_spoilt_is_found_and_ends_and_folds_anew_while_the_others_go_on(tmp_path: Path) -> None:
    with shared_site(tmp_path) as here, here.opened(ledger_partitions=1, request_partitions=1) as log:
        audited(log)
        claim(log, DIGEST_EVERY // 2)
        here.fold_to_the_end("spoilt")
        spoil(here.home("spoilt") / f"{CLAIMS}-0")
        here.scheduler("sound")
        until(lambda: len(log.read("placement-results", 0, 0)) > 0, PATIENCE_SECONDS, "the scheduler starts, before there is a snapshot")
        spoilt = here.worker("spoilt")
        claim(log, DIGEST_EVERY + 10)

        code = spoilt.ended(PATIENCE_SECONDS)

        place = f"{CLAIMS}/0@{DIGEST_EVERY}"
        assert code == 1
        assert f"{place}: this process, spoilt" in spoilt.said()
        assert "was wrong" in spoilt.said()
        assert "Traceback" not in spoilt.said()
        sound = here.processes["sound"]
        until(lambda: "this process is right, spoilt" in sound.said(), PATIENCE_SECONDS, "the scheduler says who was wrong")
        sound.must_run()
        named(here, place)
        anew(here, log)


def named(here: SharedSite, place: str) -> None:
    """What people are told who ask: offset, process and versions, while the wrong digest still stands."""
    doctor = here.verb("doctor", "-o", "json")
    (digests,) = [item for item in json.loads(doctor.stdout)["items"] if item["check"] == "digests"]
    assert (doctor.returncode, digests["status"]) == (3, "fail"), digests
    assert f"spoilt (claimlog 0.1.0, rules 1) at {place}" in digests["says"]
    assert "sound/scheduler" not in digests["says"]
    verified = here.verb("replay", "--verify")
    assert verified.returncode == 3
    assert f"{place}: the digest of process spoilt (claimlog 0.1.0, rules 1) differs" in verified.stderr


def anew(here: SharedSite, log: Log) -> None:
    """Started again it folds from the records: table, digests and snapshots are right, and verdicts are there as they should be."""
    here.fold_to_the_end("spoilt")
    here.stop("sound")
    fold = folded(log)
    assert tables_wrong(here.home("spoilt"), fold) == []
    digests = said_digests(log)
    assert digests["spoilt", DIGEST_EVERY] == digests["sound/scheduler", DIGEST_EVERY] == fold.digests[0, DIGEST_EVERY]
    snapshots = [
        event
        for record in log.read(SNAPSHOTS, 0, log.start(SNAPSHOTS, 0))
        if isinstance(event := decode_keyed(SNAPSHOTS, record.key, record.value), SnapshotChunk)
    ]
    assert [each.digest for each in snapshots] == [fold.digests[0, each.offset] for each in snapshots]
    assert [wrong for wrong in verdicts_wrong(log, fold) if wrong.startswith("never")] == []
    assert all(wrong.split("@")[1].startswith(f"{DIGEST_EVERY}: process spoilt") for wrong in digests_wrong(log, fold))
