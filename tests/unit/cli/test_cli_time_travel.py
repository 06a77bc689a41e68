"""`--at` and `--until`: every verb that takes a moment says again what it said then."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schemas.lifecycle import InstanceDeleted
from tests.cli_log import FleetLog

VERBS = (
    ("leaks", "--at"),
    ("nodes", "--at"),
    ("node show c01", "--at"),
    ("claims list", "--at"),
    ("events --for node/c01", "--until"),
    ("timeline node/c01", "--until"),
    ("replay", "--until"),
)


def ageless(text: str) -> str:
    """An answer without its cut, which names what was read, and without how old things are by now."""
    return re.sub(r'"cut": "[^"]*"|"\w*age_ms": -?\d+', "", text)


@pytest.mark.parametrize("by", ["cut", "time"])
def test_every_verb_says_again_what_it_said_at_a_moment(by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.claim("r1/0/s-1.1", "i-77", "c01", memory_mib=2048)
    fleet.lived("c01", "i-77", 2048)
    fleet.now_ms += 60_000
    fleet.audit("c01", {"i-77": 2048, "ghost": 64})
    fleet.now_ms += 60_000
    fleet.audit("c01", {"ghost": 64})
    time_ms = str(fleet.now_ms + 1)
    before = [fleet.run(capsys, *verb.split(), "-o", "json") for verb, _ in VERBS]
    moments = [said.json["cut"] if by == "cut" else time_ms for said in before]
    fleet.now_ms += 60_000
    fleet.lived("c01", "i-77", 2048, InstanceDeleted)
    fleet.audit("c01", {})
    fleet.claim("r2/0/s-1.1", "i-78", "c01", memory_mib=512)
    now = [fleet.run(capsys, *verb.split(), "-o", "json") for verb, _ in VERBS]

    asked = zip(VERBS, moments, strict=True)
    again = [fleet.run(capsys, *verb.split(), flag, moment, "-o", "json") for (verb, flag), moment in asked]

    for (verb, _), said, later, newest in zip(VERBS, before, again, now, strict=True):
        assert (later.code, ageless(later.out)) == (said.code, ageless(said.out)), verb
        assert ageless(newest.out) != ageless(said.out), verb
