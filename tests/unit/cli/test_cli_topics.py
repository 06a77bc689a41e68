"""`claimlog topics check`: what of the topics is not as the ledger needs it."""

from __future__ import annotations

from schemas.claims import PartitionOpened
from schemas.codec import encode
from schemas.topics import CLAIMS
from streams.cli.topics import differences
from streams.log.base import Message
from streams.log.memory import MemoryLog
from streams.topology import topic_specs


def test_partitions_that_were_added_to_an_opened_ledger_are_named() -> None:
    log = MemoryLog()
    log.create(topic_specs(6, 8))
    opened = PartitionOpened(ledger_id="L", partition=0, partitions=4)
    log.append([Message(CLAIMS, b"k", encode(opened), partition=0)])

    said = [str(difference) for difference in differences(log)]

    assert "topic 'claims': 6 partitions, not 4" in said
    assert not any("placement-requests" in each for each in said)
