"""What became of a request's claims is what a fold of every record says, also where only a part of the log is folded."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.observed import Observed
from schemas.claims import ClaimItem, ClaimRequested
from schemas.codec import decode, encode
from schemas.resources import Resources
from schemas.results import ClaimOutcome
from schemas.topics import CLAIMS
from streams.cli.main import run
from streams.cli.problems import AnswerIncomplete
from streams.cli.reading import fates
from streams.cli.reading.state_at import state_at
from streams.log.base import Log, Message
from streams.log.sqlite import SqliteLog
from tests.cli_log import FleetLog


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    fleet = FleetLog(tmp_path)
    for node_id in ("c01", "c02", "c03"):
        fleet.audit(node_id)
    return fleet


def whole(log: Log, request_id: str) -> list[ClaimOutcome]:
    found: list[ClaimOutcome] = []

    def collect(ledger: Ledger, observed: Observed, step: Step) -> None:
        del ledger, observed
        found.extend(outcome for outcome in step.outcomes if outcome.request_id == request_id)

    state_at(log, each=collect, pending=False, stderr=StringIO())
    return found


def quick(log: Log, request_id: str) -> list[ClaimOutcome]:
    return list(fates.fates_of(log, request_id, dict(log.ends(CLAIMS)), print))


def requests_of(log: Log) -> Iterator[str]:
    for number in range(log.topics()[CLAIMS]):
        for record in log.read(CLAIMS, number, 0, 10_000):
            event = decode(CLAIMS, record.value)
            if isinstance(event, ClaimRequested):
                yield event.request_id


def claim_by_hand(fleet: FleetLog, request_id: str, spelled: bytes, node_id: str = "c01") -> None:
    """A claim of which the request's id is spelled in the record as another program may."""
    item = ClaimItem(claim_id="other/0/s-1.1", instance_id=f"i-{len(spelled)}", nodes=(node_id,), resources=Resources(memory_mib=64))
    value = encode(ClaimRequested(request_id="NAME", owner="s", basis=0, ttl_ms=60_000, items=(item,)))
    number = fleet.log.partition(CLAIMS, node_id.encode())
    fleet.log.append([Message(CLAIMS, node_id.encode(), value.replace(b'"NAME"', spelled), (), number)])
    assert request_id in set(requests_of(fleet.log))


def test_a_request_s_outcomes_are_those_of_a_fold_of_everything(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    run(["produce", "load", "--history", "3000", "--nodes", "6", "--log", f"sqlite:{path}"])

    with SqliteLog.open(path) as log:
        names = sorted(set(requests_of(log)))[::20]
        said = {name: quick(log, name) for name in names}

        assert said == {name: whole(log, name) for name in names}
        assert len(names) > 10
        assert {outcome.outcome for found in said.values() for outcome in found} > {"granted", "confirmed"}
        assert quick(log, "nobody") == []


@pytest.mark.parametrize(
    ("request_id", "spelled"),
    [
        ("plain", rb'"pl\u0061in"'),
        ("a/b", rb'"a\/b"'),
        ('say "x"', rb'"say \"x\""'),
        ("größe", rb'"gr\u00f6\u00dfe"'),
        ("größe", '"größe"'.encode()),
    ],
)
def test_an_id_is_found_however_it_is_spelled(fleet: FleetLog, request_id: str, spelled: bytes) -> None:
    claim_by_hand(fleet, request_id, spelled)

    found = quick(fleet.log, request_id)

    assert [outcome.outcome for outcome in found] == ["granted"]
    assert found == whole(fleet.log, request_id)


def test_a_partition_is_folded_from_a_snapshot_in_front_of_the_request(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.claim("before/0/s-1.1", "i-1", "c01", memory_mib=64, request_id="before")
    fleet.run(capsys, "snapshot", "write")
    fleet.claim("behind/0/s-1.2", "i-2", "c01", memory_mib=64, request_id="behind")
    expected = {name: whole(fleet.log, name) for name in ("before", "behind")}
    begun: list[int] = []

    def empty(number: int, partitions: int) -> Ledger:
        begun.append(number)
        return Ledger(number, partitions)

    monkeypatch.setattr(fates, "Ledger", empty)

    assert quick(fleet.log, "behind") == expected["behind"] != []
    assert begun == []
    assert quick(fleet.log, "before") == expected["before"] != []
    assert begun == [fleet.log.partition(CLAIMS, b"c01")]


def test_where_the_first_records_are_not_at_hand_there_is_no_answer(fleet: FleetLog) -> None:
    fleet.claim("r1/0/s-1.1", "i-1", "c01", memory_mib=64)
    number = fleet.log.partition(CLAIMS, b"c01")
    fleet.log.truncate(CLAIMS, number, 1)

    with pytest.raises(AnswerIncomplete, match="records from 0 on are needed, at hand are those from 1 on"):
        quick(fleet.log, "r1")
