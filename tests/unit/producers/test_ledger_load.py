"""Ready-made ledgers: every record is well-formed, in its place, and does what it is there for on the real fold."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from producers.ledger_load import LedgerRecord, ledger_records
from projections.ledger import Ledger
from schemas.codec import decode_keyed, event_type
from schemas.partitioner import partition_of
from schemas.topics import CLAIMS


def folded(records: list[LedgerRecord], partitions: int) -> tuple[Counter[str], list[Ledger]]:
    """Outcomes, and the partitions' ledgers; a record that counts for nothing or changes nothing is counted by its reason."""
    ledgers = [Ledger(number, partitions) for number in range(partitions)]
    outcomes: Counter[str] = Counter()
    for record in records:
        ledger = ledgers[record.partition]
        step = ledger.apply(ledger.next_offset, record.time_ms, record.key, record.value)
        assert step is not None
        outcomes.update(outcome.outcome for outcome in step.outcomes)
        if step.dead or step.ignored:
            outcomes[f"{step.dead} {step.ignored}"] += 1
    return outcomes, ledgers


def test_every_claim_is_granted_and_nothing_is_ignored() -> None:
    outcomes, ledgers = folded(list(ledger_records(1, nodes=60, records=20_000, partitions=4)), 4)

    assert set(outcomes) == {"granted", "confirmed", "renewed", "released", "deleted"}
    assert outcomes["granted"] >= outcomes["confirmed"] > 0.95 * outcomes["granted"]
    assert sum(len(ledger.nodes) for ledger in ledgers) == 60


def test_the_mix_is_that_of_a_fleet_at_work() -> None:
    kinds: Counter[str] = Counter()
    for record in ledger_records(2, nodes=200, records=40_000):
        event = decode_keyed(CLAIMS, record.key, record.value)
        kinds[f"{event_type(event)}{'-unchanged' if getattr(event, 'digest', '') and event.instances is None else ''}"] += 1

    shares = {kind: round(100 * count / 40_000) for kind, count in kinds.items()}
    assert 35 <= shares["node-observed-unchanged"] <= 50
    assert 5 <= shares["node-observed"] <= 15
    assert 10 <= shares["claim-requested"] <= 20
    assert 18 <= shares["instance-observed"] <= 30
    assert 4 <= shares["claim-renewed"] <= 10
    assert 2 <= shares["claim-released"] <= 8


def test_no_more_claims_are_held_than_asked_for() -> None:
    outcomes, ledgers = folded(list(ledger_records(3, nodes=50, records=8_000, held_max=30)), 1)

    assert 20 <= sum(len(node.claims) for node in ledgers[0].nodes.values()) <= 30 + 10
    assert outcomes["granted"] > 150


@settings(max_examples=10)
@given(st.integers(0, 1 << 32), st.integers(1, 40), st.integers(1, 5), st.integers(1, 1_500))
def test_the_same_seed_gives_the_same_records_each_where_its_key_belongs(seed: int, nodes: int, partitions: int, records: int) -> None:
    first, again = (list(ledger_records(seed, nodes=nodes, records=records, partitions=partitions)) for _ in range(2))

    assert first == again
    assert len(first) == records
    assert all(record.partition == partition_of(record.key, partitions) for record in first)
    assert [record.time_ms for record in first] == sorted(record.time_ms for record in first)


def test_each_partition_is_opened_first() -> None:
    opened = [decode_keyed(CLAIMS, record.key, record.value) for record in islice(ledger_records(4, nodes=5, records=10, partitions=3), 3)]

    assert [(record.partition, record.partitions) for record in opened] == [(0, 3), (1, 3), (2, 3)]
