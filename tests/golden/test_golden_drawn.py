"""What rules version 1 says of histories drawn by chance, for ever (decision 0007). How they are drawn is in `drawn_histories`."""

from __future__ import annotations

import os
from functools import cache
from hashlib import blake2b
from typing import Any, get_args

import msgspec
import pytest

from projections.ledger import Ledger, outcome_bytes
from schemas.results import OutcomeKind
from tests.golden.drawn_histories import FILE, HISTORIES, DrawnHistory
from tests.ledger_history import History

STRETCH = 10
"""So many records have one digest in the file: few enough to be read, and the file stays small."""


@cache
def drawn(number: int) -> History:
    return DrawnHistory(number).history


def golden() -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in FILE.read_bytes().splitlines()]


def line_of(number: int) -> dict[str, Any]:
    """One line of the file: the bytes of the history, and its digest after each stretch of it."""
    history, ledger, digests = drawn(number), Ledger(0, 1), []
    for written in history.records:
        ledger.apply(*written)
        if ledger.next_offset % STRETCH == 0:
            digests.append(ledger.digest.hex()[:8])
    values = blake2b(b"\n".join(written.value for written in history.records), digest_size=16)
    return {"history": number, "values": values.hexdigest(), "digests": digests, "digest": ledger.digest.hex()}


def test_the_file_has_each_history_once() -> None:
    if os.environ.get("CLAIMLOG_GOLDEN") == "write":
        FILE.write_bytes(b"".join(msgspec.json.encode(line_of(number)) + b"\n" for number in range(HISTORIES)))

    assert [line["history"] for line in golden()] == list(range(HISTORIES))


@pytest.mark.parametrize("line", golden() if FILE.exists() else [], ids=lambda line: f"history {line['history']}")
def test_drawn_histories_have_the_outcomes_that_they_ever_had(line: dict[str, Any]) -> None:
    said = line_of(line["history"])

    assert said["values"] == line["values"], "the history itself is another one: mend how it is drawn, the file stays as it is"
    assert said == line, _where(line, said)


def test_drawn_histories_meet_every_outcome() -> None:
    outcomes = {outcome.outcome for number in range(HISTORIES) for step in drawn(number).steps for outcome in step.outcomes}

    assert outcomes == set(get_args(OutcomeKind))


def _where(expected: dict[str, Any], said: dict[str, Any]) -> str:
    """What is said of the first stretch that differs, for a look at what an earlier version says of it."""
    first = next((n for n, pair in enumerate(zip(expected["digests"], said["digests"], strict=True)) if pair[0] != pair[1]), 0)
    steps = drawn(expected["history"]).steps[first * STRETCH : (first + 1) * STRETCH]
    told = "\n".join(f"  {step.offset}: {outcome_bytes(step).decode()}" for step in steps)
    return f"rules version 1 said something else of these records (docs/decisions/0007); now it says\n{told}"
