"""`claimlog topics check`: what of the topics is not as the ledger needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.claims import PartitionOpened
from schemas.codec import encode
from schemas.topics import CLAIMS, RESULTS, SNAPSHOTS
from streams.cli.main import run
from streams.cli.topics import differences
from streams.ledger_topics import topic_specs
from streams.log.base import Message
from streams.log.memory import MemoryLog
from tests.cli_log import FleetLog


def test_partitions_that_were_added_to_an_opened_ledger_are_named() -> None:
    log = MemoryLog()
    log.create(topic_specs(6, 8))
    opened = PartitionOpened(ledger_id="L", partition=0, partitions=4)
    log.append([Message(CLAIMS, b"k", encode(opened), partition=0)])

    said = [str(difference) for difference in differences(log)]

    assert "topic 'claims': 6 partitions, not 4" in said
    assert not any("placement-requests" in each for each in said)


def test_where_claims_was_deleted_nothing_else_is_called_wrong() -> None:
    log = MemoryLog([spec for spec in topic_specs(2, 3) if spec.name != CLAIMS])

    assert [str(difference) for difference in differences(log)] == ["topic 'claims': missing; `claimlog topics apply` makes it"]


def test_what_is_derived_is_not_missed_in_a_copy_of_lines_and_what_is_copied_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    lines = tmp_path / "history.jsonl"
    assert fleet.run(capsys, "copy", str(lines)).code == 0

    fleet.spec = str(lines)
    said = fleet.run(capsys, "topics", "check", "-o", "json")

    assert said.code == 0
    found = {item["topic"]: item["found"] for item in said.json["items"]}
    assert (found[CLAIMS], found[SNAPSHOTS]) == ("as needed", "left out of a copy")
    lines.write_text("".join(line for line in lines.read_text().splitlines(keepends=True)[1:] if RESULTS not in line))
    assert run(["topics", "check", "--log", str(lines)]) == 3
