"""What rules version 1 says of a fixed log, record by record, for ever (rule 11). The story behind it is in `ledger_story`."""

from __future__ import annotations

import base64
import os
from typing import Any, get_args

import msgspec
import pytest

from projections.ledger import Ledger
from projections.snapshots import encoded, restored
from schemas.claims import ClaimsRecord
from schemas.results import OutcomeKind
from tests.golden.ledger_story import FILE, PARTITION, PARTITIONS, line_of, lines_of, told
from tests.ledger_history import Written

REASONS = {
    "node", "status", "resize", "group", "instances", "io_ops", "basis", "released", "request", "min_unit", "max_unit", "step_size",
    "keep", "pcpus", "memory_mib", "disk_mib", "numa_cells", "numa_vcpus", "numa_pcpus", "numa_threads", "pages_2048_kib", "pci",
}  # fmt: skip


def golden() -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in FILE.read_bytes().splitlines()]


def written(line: dict[str, Any]) -> Written:
    value = base64.b64decode(line["value_base64"]) if "value_base64" in line else line["value"].encode()
    return Written(line["offset"], line["time_ms"], base64.b64decode(line["key_base64"]), value)


def test_the_golden_log_is_the_story_as_it_is_told() -> None:
    story = told().records
    if os.environ.get("CLAIMLOG_GOLDEN") == "write":
        FILE.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines_of(story)) + b"\n")

    assert [written(line) for line in golden()] == story, (
        "the story differs from the file: CLAIMLOG_GOLDEN=write makes it anew, say why in CHANGELOG.md"
    )


@pytest.mark.parametrize("restart", [False, True], ids=["in one go", "from a snapshot before each record"])
def test_the_golden_log_has_its_outcomes_and_digests(restart: bool) -> None:
    ledger = Ledger(PARTITION, PARTITIONS)
    for line in golden():
        if restart:
            ledger = restored(encoded(ledger))

        step = ledger.apply(*written(line))

        assert step is not None
        assert line_of(written(line), step, ledger) == line, f"offset {line['offset']}: rules version 1 said something else of {step.event}"


def test_the_golden_log_meets_every_outcome_record_and_reason() -> None:
    steps = told().steps
    outcomes = [outcome for step in steps for outcome in step.outcomes]
    reasons = {lack.resource for outcome in outcomes for lacks in outcome.shortfalls for lack in lacks}

    assert {outcome.outcome for outcome in outcomes} == set(get_args(OutcomeKind))
    assert reasons >= REASONS
    assert {type(step.event) for step in steps if step.event is not None} == set(get_args(ClaimsRecord))
    assert {step.dead.kind for step in steps if step.dead is not None} == {
        "unreadable", "unknown-type", "invalid", "wrong-key", "wrong-partition", "misplaced",
    }  # fmt: skip
    assert any(outcome.overrun for outcome in outcomes)
    assert any(outcome.granted and outcome.granted.cells and outcome.granted.pci_addresses for outcome in outcomes)
    assert any(step.ignored for step in steps)
