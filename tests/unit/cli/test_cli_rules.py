"""`claimlog rules`: where each partition stands, and the step to the next version; a claimlog that knows version 2 is this one told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from projections.ledger import Ledger
from projections.replay import fold
from projections.rules import RULES_KNOWN
from projections.snapshots import chunks_of
from schemas.claims import RulesChanged
from schemas.codec import encode, key_of
from schemas.topics import CLAIMS, SNAPSHOTS
from streams.ledger_topics import own_key
from streams.log.base import Message
from tests.cli_log import PARTITIONS, FleetLog

Capture = pytest.CaptureFixture[str]
PLACES = [f"{CLAIMS}/{number}" for number in range(PARTITIONS)]
NEXT = max(RULES_KNOWN) + 1


@pytest.fixture
def knows_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on this claimlog knows one version more, whose rules are those of the one before."""
    for module in ("projections.ledger", "projections.state", "streams.cli.rules"):
        monkeypatch.setattr(f"{module}.RULES_KNOWN", RULES_KNOWN | {NEXT})


def fleet_of_two(directory: Path) -> FleetLog:
    fleet = FleetLog(directory)
    for number in range(4):
        fleet.audit(f"c{number:02}")
    return fleet


def changed(fleet: FleetLog, number: int, version: int) -> int:
    """What somebody who knows that version wrote into one partition; where it stands."""
    event = RulesChanged(record_id=f"rules {version}", rules_version=version)
    return fleet.log.append([Message(CLAIMS, own_key(number, PARTITIONS), encode(event), (), number)])[0]


def versions(fleet: FleetLog, capsys: Capture) -> list[int]:
    return [item["rules_version"] for item in fleet.run(capsys, "rules", "-o", "json").json["items"]]


def ends(fleet: FleetLog) -> dict[int, int]:
    return dict(fleet.log.ends(CLAIMS))


def test_each_partition_is_shown_with_its_version_and_what_is_known_here(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_two(tmp_path)

    said = fleet.run(capsys, "rules", "-o", "json")

    assert said.code == 0
    assert said.json["items"] == [{"partition": place, "rules_version": 1, "known": True, "says": "known here"} for place in PLACES]
    assert said.err == "this claimlog knows rules 1\n"
    assert said.json["cut"]


def test_a_version_that_is_not_known_here_is_shown_with_the_place_where_reading_ends(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_two(tmp_path)
    offsets = [changed(fleet, number, NEXT) for number in range(PARTITIONS)]
    fleet.audit("c00")

    said = fleet.run(capsys, "rules", "-o", "json")

    assert said.code == 3
    assert [(item["rules_version"], item["known"]) for item in said.json["items"]] == [(NEXT, False)] * PARTITIONS
    for item, place, offset in zip(said.json["items"], PLACES, offsets, strict=True):
        assert item["says"] == f"not known here: from {place}@{offset} on nothing can be read; upgrade claimlog on this machine"


@pytest.mark.usefixtures("knows_the_next")
def test_set_moves_every_partition_and_says_where_it_stands(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_two(tmp_path)
    before = ends(fleet)

    said = fleet.run(capsys, "rules", "set", str(NEXT))

    assert (said.code, said.out) == (0, "".join(f"{place}: 1 -> {NEXT}\n" for place in PLACES))
    assert said.err == "".join(f"{place}@{before[number]}\n" for number, place in enumerate(PLACES))
    assert versions(fleet, capsys) == [NEXT] * PARTITIONS
    assert fleet.run(capsys, "nodes", "-o", "json").code == 0


@pytest.mark.usefixtures("knows_the_next")
def test_set_again_writes_nothing(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_two(tmp_path)
    fleet.run(capsys, "rules", "set", str(NEXT))
    before = ends(fleet)

    said = fleet.run(capsys, "rules", "set", str(NEXT))

    assert (said.code, said.out) == (0, "".join(f"{place}: {NEXT} already\n" for place in PLACES))
    assert ends(fleet) == before


@pytest.mark.usefixtures("knows_the_next")
def test_a_step_that_was_interrupted_is_found_and_taken_up(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_two(tmp_path)
    changed(fleet, 0, NEXT)
    shown = fleet.run(capsys, "rules")

    resumed = fleet.run(capsys, "rules", "set", str(NEXT))

    assert shown.code == 3
    assert f"`claimlog rules set {NEXT}` takes up where it stopped" in shown.err
    assert (resumed.code, resumed.out) == (0, f"{PLACES[0]}: {NEXT} already\n{PLACES[1]}: 1 -> {NEXT}\n")


@pytest.mark.parametrize(("version", "says"), [(NEXT, "this claimlog knows rules 1; upgrade it"), (0, "this claimlog knows rules 1")])
def test_a_version_that_is_not_known_here_is_not_set(tmp_path: Path, capsys: Capture, version: int, says: str) -> None:
    fleet = fleet_of_two(tmp_path)
    before = ends(fleet)

    said = fleet.run(capsys, "rules", "set", str(version))

    assert (said.code, said.out) == (2, "")
    assert says in said.err
    assert ends(fleet) == before


@pytest.mark.usefixtures("knows_the_next")
def test_rules_never_go_back(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_two(tmp_path)
    fleet.run(capsys, "rules", "set", str(NEXT))
    before = ends(fleet)

    said = fleet.run(capsys, "rules", "set", "1")

    assert (said.code, said.out) == (2, "")
    assert f"{PLACES[0]} follows {NEXT}; rules go forward by one version at a time, never back" in said.err
    assert ends(fleet) == before


@pytest.mark.usefixtures("knows_the_next")
def test_a_dry_run_says_what_it_would_write_and_writes_nothing(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_two(tmp_path)
    before = ends(fleet)

    said = fleet.run(capsys, "rules", "set", str(NEXT), "--dry-run")

    assert (said.code, said.out) == (0, "".join(f"{place}: 1 -> {NEXT} (dry run)\n" for place in PLACES))
    assert ends(fleet) == before


@pytest.mark.usefixtures("knows_the_next")
def test_the_version_is_read_from_a_snapshot_where_there_is_one(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_two(tmp_path)
    fleet.run(capsys, "rules", "set", str(NEXT))
    for number, end in ends(fleet).items():
        ledger = fold(fleet.log, Ledger(number, PARTITIONS), end).ledger
        fleet.log.append([Message(SNAPSHOTS, key_of(chunk) or b"", encode(chunk), (), number) for chunk in chunks_of(ledger)])

    assert versions(fleet, capsys) == [NEXT] * PARTITIONS


@pytest.mark.parametrize("version", ["1.5", "two", ""])
def test_what_is_no_version_is_refused(tmp_path: Path, capsys: Capture, version: str) -> None:
    fleet = fleet_of_two(tmp_path)

    said = fleet.run(capsys, "rules", "set", version)

    assert (said.code, said.out) == (2, "")


def test_a_log_without_a_ledger_has_no_rules(tmp_path: Path, capsys: Capture) -> None:
    said = FleetLog(tmp_path, opened=False).run(capsys, "rules")

    assert (said.code, said.out) == (1, "")
    assert "this log has no ledger" in said.err
