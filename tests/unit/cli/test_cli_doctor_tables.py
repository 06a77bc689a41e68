"""`claimlog doctor` on the tables of an ended process: what they were folded from, the log has, or it says what is missing."""

import json
import shutil
from pathlib import Path

import pytest

from schemas.topics import CLAIMS
from streams.cli.main import run
from streams.log.sqlite import SqliteLog
from streams.log.sqlite_ends import ends_file
from tests.cli_log import FleetLog
from tests.unit.cli.test_cli_doctor import says, statuses


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})
    fleet.log.close()
    return fleet


def ended(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet.run(capsys, "run", "--until-idle").code == 0


def test_tables_of_what_the_log_has_are_ok(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    ended(fleet, capsys)

    said = fleet.run(capsys, "doctor", "-o", "json")

    assert (said.code, says(said, "tables")) == (0, "log.db-state: the log has all that they were folded from / ")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_log_that_lacks_what_its_tables_were_folded_from_fails_and_run_says_so_and_goes_on(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], tmp_path: Path, elsewhere: bool
) -> None:
    ended(fleet, capsys)
    shutil.copy(fleet.path, tmp_path / "backup.db")
    with SqliteLog.open(fleet.path, clock=lambda: fleet.now_ms) as log:
        before = log.ends(CLAIMS)
        fleet.log = log
        for _ in range(2):
            fleet.audit("c01", {"i1": 512})
        (number,) = (number for number, end in log.ends(CLAIMS).items() if end > before[number])
    ended(fleet, capsys)
    (tmp_path / "backup.db").replace(fleet.path)
    ends_file(fleet.path).unlink()
    state: tuple[str, ...] = ()
    if elsewhere:
        (tmp_path / "log.db-state").rename(tmp_path / "tables")
        state = ("--state", str(tmp_path / "tables"))

    doctor, run = fleet.run(capsys, "doctor", "--quick", "-o", "json", *state), fleet.run(capsys, "run", "--until-idle", *state)

    first = before[number]
    lost = f"the log ends at offset {first}, before it: acknowledged records are missing, offsets {first} to {first + 1}, which were folded"
    assert (doctor.code, statuses(doctor)["tables"]) == (3, "fail")
    assert lost in says(doctor, "tables")
    assert (run.code, lost in run.err, "it is folded anew" in run.err) == (0, True, True)
    assert statuses(fleet.run(capsys, "doctor", "-o", "json", *state))["tables"] == "ok"


def test_tables_of_another_ledger_are_a_warning_and_what_cannot_be_read_is_too(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ended(fleet, capsys)
    other = tmp_path / "other"
    other.mkdir()
    another = FleetLog(other)
    another.log.close()
    (fleet.path.with_name("log.db-state") / "claims-0" / "CURRENT").write_text("nonsense")

    said = fleet.run(capsys, "doctor", "-o", "json")
    other_said = another.run(capsys, "doctor", "-o", "json", "--state", f"{fleet.path}-state")

    assert (said.code, statuses(said)["tables"]) == (0, "warn")
    assert "claims-0" in says(said, "tables")
    assert (other_said.code, statuses(other_said)["tables"]) == (0, "warn")
    assert "claims/1: the log has another record at offset 0" in says(other_said, "tables")


def test_a_log_that_lost_what_was_acknowledged_is_refused_by_every_verb_until_somebody_goes_on_knowingly(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    with SqliteLog.open(fleet.path) as log:
        place = log._catalog.place(CLAIMS, 1)
        log._ends.told(place.id, log.end(CLAIMS, 1) + 3)

    codes = {verb: fleet.run(capsys, *verb.split()) for verb in ("doctor", "claims list", "replay --verify", "run --until-idle")}

    assert {verb: said.code for verb, said in codes.items()} == {"doctor": 3, "claims list": 1, "replay --verify": 1, "run --until-idle": 1}
    assert all("acknowledged records are missing: offsets" in said.out + said.err for said in codes.values())
    ends_file(fleet.path).unlink()
    ended(fleet, capsys)


def test_tables_that_were_asked_for_and_not_looked_at_are_told(tmp_path: Path, fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "l.jsonl"
    assert fleet.run(capsys, "copy", str(lines)).code == 0

    capsys.readouterr()
    code = run(["doctor", "--log", str(lines), "--state", str(tmp_path), "-o", "json"])

    (said,) = [item for item in json.loads(capsys.readouterr().out)["items"] if item["check"] == "tables"]
    assert (code, said["status"]) == (0, "warn")
    assert said["says"] == f"those in {tmp_path} were not looked at: a file of lines has none"
