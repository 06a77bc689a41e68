"""Replay to an end, a time or a cut is the pure fold of those records, from wherever it begins; and it finds what was published wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from msgspec import Struct
from msgspec.structs import replace

from producers.ledger_load import ledger_records
from projections.cut import Cut
from projections.ledger import Ledger
from projections.ledger_id import check_cut
from projections.ledger_state import Step
from projections.observed import Observed
from projections.reading import HistoryMissing, ProjectionError
from projections.replay import cut_at, ends_of
from projections.replay import folded as told_of
from projections.rows import node_resources
from projections.snapshots import chunks_of, encoded
from schemas.codec import encode, key_of
from schemas.results import LedgerDigest
from schemas.topics import CLAIMS, DIGESTS, FINDINGS, NODE_RESOURCES, SNAPSHOTS
from streams.log.base import Message, Record, TopicSpec
from streams.log.memory import MemoryLog
from tests.replaying import replay, verified

PARTITIONS = 2
SPECS = tuple(TopicSpec(name, PARTITIONS) for name in (CLAIMS, SNAPSHOTS, DIGESTS, NODE_RESOURCES))
RECORDS = 5_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def loaded() -> MemoryLog:
    """Two partitions of a fleet at work, each record appended at the time it was made for."""
    clock = Clock()
    log = MemoryLog(SPECS, clock=clock)
    for partition, time_ms, key, value in ledger_records(5, nodes=30, records=RECORDS, partitions=PARTITIONS):
        clock.now_ms = time_ms
        log.append([Message(CLAIMS, key, value, (), partition)])
    return log


def folded(log: MemoryLog, number: int, end: int) -> tuple[Ledger, Observed]:
    ledger, observed = Ledger(number, PARTITIONS), Observed(number)
    for record in claims(log, number)[:end]:
        step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
        assert step is not None
        observed.apply(ledger, step)
    return ledger, observed


def claims(log: MemoryLog, number: int) -> list[Record]:
    return log.read(CLAIMS, number, 0, RECORDS, 1 << 30)


def publish(log: MemoryLog, topic: str, number: int, events: Sequence[Struct]) -> None:
    log.append([Message(topic, key_of(event) or b"", encode(event), (), number) for event in events])


def digest_of(ledger: Ledger) -> LedgerDigest:
    return LedgerDigest(
        ledger_id="load",
        partition=ledger.partition,
        process="p1",
        offset=ledger.next_offset - 1,
        digest=ledger.digest.hex(),
        rules_version=1,
    )


def with_publications(number: int = 0, end: int = 1_000) -> tuple[MemoryLog, Ledger, Observed]:
    """A log on which a process published everything it should as of `end`."""
    log = loaded()
    ledger, observed = folded(log, number, end)
    publish(log, SNAPSHOTS, number, chunks_of(ledger, 50_000))
    publish(log, DIGESTS, number, [digest_of(ledger)])
    publish(log, NODE_RESOURCES, number, [node_resources(ledger, node_id, observed, 3) for node_id in sorted(ledger.nodes)])
    return log, ledger, observed


def test_replay_to_the_end_is_the_fold_of_every_partition() -> None:
    log = loaded()

    found = replay(log)

    for number in range(PARTITIONS):
        expected, _ = folded(log, number, RECORDS)
        assert encoded(found[number].ledger) == encoded(expected)
        assert found[number].begun == 0
        assert found[number].outcomes["granted"] >= len(expected.claims) > 0
    assert sum(partition.ledger.next_offset for partition in found.values()) == RECORDS


def test_state_at_a_time_is_that_before_the_first_record_at_or_after_it() -> None:
    log = loaded()
    time_ms = claims(log, 0)[700].time_ms

    found = replay(log, until=time_ms)

    for number, partition in found.items():
        expected = sum(record.time_ms < time_ms for record in claims(log, number))
        assert partition.ledger.next_offset == expected
    assert found[0].ledger.next_offset == 700


def test_a_cut_gives_the_same_state_again_whatever_was_appended_since() -> None:
    log = loaded()
    before = replay(log, until=claims(log, 1)[900].time_ms)
    log.append([Message(CLAIMS, b"k", b"later", (), number) for number in range(PARTITIONS)])
    cut = cut_at(log, {number: partition.ledger.next_offset for number, partition in before.items()})

    again = replay(log, until=Cut.parse(str(cut)))

    assert {n: encoded(p.ledger) for n, p in again.items()} == {n: encoded(p.ledger) for n, p in before.items()}


@pytest.mark.parametrize("end", [1_000, 1_001, 1_400])
def test_replay_from_a_snapshot_is_replay_from_the_first_record(end: int) -> None:
    log, _, _ = with_publications()
    until = Cut.of({(CLAIMS, 0): end, (CLAIMS, 1): 100})

    from_snapshot, from_start = replay(log, until=until), replay(log, until=until, from_snapshots=False)

    assert (from_snapshot[0].begun, from_start[0].begun) == (1_000, 0)
    assert encoded(from_snapshot[0].ledger) == encoded(from_start[0].ledger)


def test_a_snapshot_above_the_moment_asked_for_is_not_begun_at() -> None:
    log, _, _ = with_publications()

    found = replay(log, until=Cut.of({(CLAIMS, 0): 999, (CLAIMS, 1): 0}))

    assert (found[0].begun, found[0].ledger.next_offset, found[1].ledger.next_offset) == (0, 999, 0)


def test_further_projections_see_every_record_and_progress_counts_them() -> None:
    log = loaded()
    seen: list[tuple[int, int]] = []
    progressed: list[int] = []
    outcomes: list[Counter[str]] = [Counter() for _ in range(PARTITIONS)]

    def each(ledger: Ledger, step: Step) -> None:
        seen.append((ledger.partition, step.offset))
        outcomes[ledger.partition].update(outcome.outcome for outcome in step.outcomes)

    found = replay(log, each=each, progress=progressed.append)

    assert seen == [(number, offset) for number in range(PARTITIONS) for offset in range(log.end(CLAIMS, number))]
    assert sum(progressed) == RECORDS
    told = [told_of(found[number]).outcomes for number in range(PARTITIONS)]
    assert [[*each.items()] for each in told] == [sorted(each.items()) for each in outcomes]


def test_history_that_is_gone_is_never_passed_over() -> None:
    log, _, _ = with_publications()
    log.truncate(CLAIMS, 0, 900)

    assert replay(log)[0].begun == 1_000
    with pytest.raises(HistoryMissing, match=r"claims/0: records from 0 on are needed, at hand are offsets 900 to .* set CLAIMLOG_ARCHIVE"):
        replay(log, from_snapshots=False)
    with pytest.raises(HistoryMissing, match="from 0 on"):
        replay(log, until=claims_time(log, 950))


def claims_time(log: MemoryLog, offset: int) -> int:
    return log.read(CLAIMS, 0, offset, 1)[0].time_ms


def test_a_time_among_records_that_have_left_the_log_is_answered_only_if_a_snapshot_says_that_none_of_them_is_later() -> None:
    log, ledger, _ = with_publications()
    last_ms, next_ms = claims_time(log, 999), claims_time(log, 1_000)
    assert last_ms == ledger.time_ms < next_ms
    log.truncate(CLAIMS, 0, 1_000)

    assert replay(log, until=last_ms + 1)[0].ledger.digest == ledger.digest
    with pytest.raises(HistoryMissing, match="claims/0: the moment lies among the records below 1000, which have left the log"):
        ends_of(log, last_ms)
    log.truncate(CLAIMS, 0, 1_100)
    with pytest.raises(HistoryMissing, match="the records below 1100"):
        ends_of(log, next_ms)


def test_a_time_among_records_that_have_left_a_log_without_snapshots_is_refused() -> None:
    log = loaded()
    time_ms = claims_time(log, 900)
    log.truncate(CLAIMS, 0, 900)

    with pytest.raises(HistoryMissing, match="claims/0: the moment lies among the records below 900"):
        ends_of(log, time_ms)


def test_a_cut_of_another_log_is_refused() -> None:
    log = loaded()

    for places, reason in (
        ({(CLAIMS, 0): 5}, "does not have the 2 partitions"),
        ({(CLAIMS, 0): 5, (CLAIMS, 1): RECORDS}, "it is the cut of another log"),
    ):
        with pytest.raises(HistoryMissing, match=reason):
            ends_of(log, Cut.of(places))


def test_a_cut_with_what_no_copy_has_is_not_said_to_be_of_another_log() -> None:
    with pytest.raises(HistoryMissing, match="leak-findings/0 up to 2, this log ends at 0: it follows from the ledger, and a copy has"):
        check_cut(loaded(), Cut.of({(CLAIMS, 0): 5, (FINDINGS, 0): 2}))


def test_a_log_without_ledger_says_how_to_get_one() -> None:
    with pytest.raises(ProjectionError, match="claimlog run"):
        replay(MemoryLog())


def test_what_was_published_rightly_is_verified_in_full() -> None:
    log, ledger, _ = with_publications()

    found, checks = verified(log)

    assert checks.differences == []
    assert (checks.digests, checks.rows, checks.snapshots) == (1, len(ledger.nodes), 1)
    assert found[0].ledger.next_offset == log.end(CLAIMS, 0)


def test_a_wrong_digest_is_found_with_its_process_and_offset() -> None:
    log, ledger, _ = with_publications()
    publish(log, DIGESTS, 0, [replace(digest_of(ledger), process="p2", digest="00ff")])

    _, checks = verified(log)

    (difference,) = checks.differences
    assert (difference.what, difference.offset, difference.partition) == ("the digest of process p2 (claimlog unknown, rules 1)", 999, 0)
    assert (difference.expected, difference.found) == (ledger.digest.hex(), "00ff")


def test_a_wrong_row_is_found_with_the_fields_that_differ() -> None:
    log, ledger, observed = with_publications()
    node_id = min(ledger.nodes)
    row = node_resources(ledger, node_id, observed)
    publish(log, NODE_RESOURCES, 0, [replace(row, claims=row.claims + 1)])

    _, checks = verified(log)

    (difference,) = checks.differences
    assert (difference.what, difference.offset) == (f"the row of {node_id}", 999)
    assert (difference.expected, difference.found) == (f"claims={row.claims}", f"claims={row.claims + 1}")


def test_only_the_newest_row_of_a_node_counts() -> None:
    log, ledger, observed = with_publications()
    node_id = min(ledger.nodes)
    old = replace(node_resources(ledger, node_id, observed), offset=500, claims=99)
    publish(log, NODE_RESOURCES, 0, [old])

    _, checks = verified(log)

    assert checks.differences == []


def test_a_row_published_after_the_moment_asked_for_hides_no_wrong_one_before_it() -> None:
    log, ledger, observed = with_publications()
    node_id = min(ledger.nodes)
    row = node_resources(ledger, node_id, observed)
    publish(log, NODE_RESOURCES, 0, [replace(row, claims=row.claims + 1), replace(row, offset=1_000)])

    _, checks = verified(log, until=Cut.of({(CLAIMS, 0): 1_000, (CLAIMS, 1): 0}))

    (difference,) = checks.differences
    assert (difference.what, difference.offset) == (f"the row of {node_id}", 999)


def test_a_snapshot_of_another_state_is_found_although_its_digest_is_right() -> None:
    log = loaded()
    ledger, _ = folded(log, 0, 1_000)
    ledger.nodes[min(ledger.nodes)].zone = "tampered"
    publish(log, SNAPSHOTS, 0, chunks_of(ledger))

    _, checks = verified(log)

    (difference,) = checks.differences
    assert (difference.what, difference.offset) == ("the state folded on from the snapshot of offset 999", log.end(CLAIMS, 0) - 1)


def test_what_was_published_after_the_moment_asked_for_is_not_compared() -> None:
    log, _, _ = with_publications()

    _, checks = verified(log, until=Cut.of({(CLAIMS, 0): 999, (CLAIMS, 1): 5}))

    assert (checks.digests, checks.rows, checks.snapshots, checks.differences) == (0, 0, 0, [])
