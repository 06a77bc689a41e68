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

# The digest chains over every record and outcome before it: nothing up to here may ever change (docs/decisions/0007). New chapters come
# behind it, and may move this on.
FROZEN_OFFSET, FROZEN_DIGEST = 216, "f57302e04493a433a897a8adc86ce102"


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
        "the story differs from the file: CLAIMLOG_GOLDEN=write adds new chapters; those that are there stay as they are"
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


def test_what_was_frozen_is_what_it_was() -> None:
    assert golden()[FROZEN_OFFSET]["digest"] == FROZEN_DIGEST, (
        "an outcome of rules version 1 would change; logs out there have the old one: make it rules version 2 (docs/decisions/0007)"
    )


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
