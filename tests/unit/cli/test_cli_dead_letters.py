"""`claimlog dead-letters`: each unusable message with place and reason, its bytes, and its way back."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from schemas.audits import AuditFailed
from schemas.codec import Unreadable, encode
from schemas.topics import AUDITS, CLAIMS, DEAD_LETTERS
from streams.dead_letters import dead_letter
from streams.log.base import NO_RECORD, Message, Record
from tests.cli_log import PARTITIONS, FleetLog


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    """Two bad audits were met: one cut short, one not UTF-8."""
    fleet = FleetLog(tmp_path)
    fleet.now_ms += 1000
    fleet.log.append([Message(AUDITS, b"c01", b'{"type":"hyper'), Message(AUDITS, b"c01", b"\xff\xfe")])
    fleet.carry()
    return fleet


def place(fleet: FleetLog, offset: int) -> str:
    return f"{AUDITS}/{fleet.log.partition(AUDITS, b'c01')}@{offset}"


def test_list_names_the_original_and_the_reason(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "dead-letters", "list", "-o", "json")

    assert said.code == 0
    assert [(item["letter"], item["original"], item["kind"]) for item in said.json["items"]] == [
        ("dead-letters/0@0", place(fleet, 0), "unreadable"),
        ("dead-letters/0@1", place(fleet, 1), "unreadable"),
    ]
    assert "expected a JSON object" in said.json["items"][1]["reason"]
    assert said.json["cut"].startswith("cut:")


@pytest.mark.parametrize(("flags", "count"), [(["--topic", AUDITS], 2), (["--topic", CLAIMS], 0), (["--kind", "wrong-key"], 0)])
def test_list_chooses(fleet: FleetLog, capsys: pytest.CaptureFixture[str], flags: list[str], count: int) -> None:
    said = fleet.run(capsys, "dead-letters", "list", *flags, "-o", "json")

    assert len(said.json["items"]) == count


def test_letters_of_a_topic_that_is_none_of_ours_are_found_by_its_name(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    original = Record("versioned_notifications", 0, 7, fleet.now_ms, b"", b"{")
    fleet.log.append([dead_letter(original, Unreadable("made-later", "a newer version found it"))])

    by_topic = fleet.run(capsys, "dead-letters", "list", "--topic", "versioned_notifications", "-o", "json")
    by_kind = fleet.run(capsys, "dead-letters", "list", "--kind", "made-later", "-o", "json")

    assert [item["original"] for item in by_topic.json["items"]] == ["versioned_notifications/0@7"]
    assert by_kind.json["items"] == by_topic.json["items"]


def test_show_has_the_bytes_by_the_letters_position_or_the_originals(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    by_letter = fleet.run(capsys, "dead-letters", "show", "dead-letters/0@0", "-o", "json").json["items"][0]
    by_original = fleet.run(capsys, "dead-letters", "show", place(fleet, 1), "-o", "json").json["items"][0]

    assert by_letter["value"] == '{"type":"hyper'
    assert by_original["value"] == "hex:fffe"
    assert "value      hex:fffe" in fleet.run(capsys, "dead-letters", "show", place(fleet, 1)).out


@pytest.mark.parametrize("name", ["dead-letters/0@9", "claims/0@4", "nonsense"])
def test_a_letter_that_is_not_there_is_refused(fleet: FleetLog, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert fleet.run(capsys, "dead-letters", "show", name).code == 2


def test_redrive_appends_the_original_again_byte_for_byte(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "dead-letters", "redrive", place(fleet, 0))

    assert said.code == 0
    assert said.out == f"dead-letters/0@0 -> {place(fleet, 2)}\n"
    assert fleet.log.read(AUDITS, fleet.log.partition(AUDITS, b"c01"), 2)[0].value == b'{"type":"hyper'


def test_a_dry_run_appends_nothing(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "dead-letters", "redrive", "--all", "--dry-run")

    assert said.code == 0
    assert said.out.count("(dry run)") == 2
    assert sum(fleet.log.ends(AUDITS).values()) == 2


def test_a_redriven_observation_reaches_the_ledger_once_its_cause_is_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An audit that some reader once took for unreadable (another version's fault) is good when it comes again."""
    fleet = FleetLog(tmp_path)
    audit = AuditFailed(
        node_id="c01", producer="audits", epoch=1, counter=1, taken_at_ms=1, mono_ms=1, reason="refused", unknown_since_ms=1
    )
    number = fleet.log.partition(AUDITS, b"c01")
    fleet.append(AUDITS, audit)
    fleet.log.commit("reconciler", AUDITS, {number: 1})
    (record,) = fleet.log.read(AUDITS, number, 0)
    fleet.log.append([dead_letter(record, Unreadable("unknown-type", "a newer version wrote it"))])

    said = fleet.run(capsys, "dead-letters", "redrive", "--all")
    fleet.carry()

    assert said.code == 0
    assert sum(fleet.log.ends(CLAIMS).values()) == PARTITIONS + 1
    assert fleet.log.read(AUDITS, number, 1)[0].value == encode(audit)


def test_what_stays_unusable_has_one_letter_more_after_each_try_and_not_twice_as_many(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        fleet.run(capsys, "dead-letters", "redrive", "--all")
        fleet.carry()

    said = fleet.run(capsys, "dead-letters", "redrive", "--all")
    fleet.carry()

    assert fleet.log.end(DEAD_LETTERS, 0) == 2 + 3 * 2
    assert said.out.count(" -> ") == 2
    assert said.err == "4 letters more of the same messages\n"


def test_redrive_holds_a_piece_of_the_letters_at_once_and_each_message_goes_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    values = [b"%06d" % number + b"x" * 256 * 1024 for number in range(500)]
    for number, value in enumerate([*values, values[0]]):
        fleet.log.append([dead_letter(Record(AUDITS, 0, number, fleet.now_ms, b"c01", value), Unreadable("invalid", "too long"))])

    tracemalloc.start()
    said = fleet.run(capsys, "dead-letters", "redrive", "--all")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (said.code, said.err) == (0, "1 letter more of the same messages\n")
    assert said.out.splitlines() == [f"dead-letters/0@{number} -> {AUDITS}/0@{number}" for number in range(500)]
    assert [record.value for number in range(500) for record in fleet.log.read(AUDITS, 0, number, 1)] == values
    assert peak < 125 << 20  # All of them are 125 MiB, and were held more than once.


def test_redrive_wants_letters_or_all_and_not_both(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet.run(capsys, "dead-letters", "redrive").code == 2
    assert fleet.run(capsys, "dead-letters", "redrive", "dead-letters/0@0", "--all").code == 2


def test_what_is_no_letter_cannot_be_redriven_and_says_why(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.log.append([Message(DEAD_LETTERS, b"x", b"somebody else's")])

    said = fleet.run(capsys, "dead-letters", "redrive", "--all", "--dry-run")

    assert said.code == 1
    assert "dead-letters/0@2: cannot be redriven" in said.err
    assert said.out.count("->") == 2


def test_list_until_a_cut_has_that_cut_whatever_came_since(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    before = fleet.run(capsys, "dead-letters", "list", "-o", "json").json
    fleet.log.append([Message(AUDITS, b"c01", b"{")])
    fleet.carry()

    now = fleet.run(capsys, "dead-letters", "list", "-o", "json").json
    again = fleet.run(capsys, "dead-letters", "list", "--until", before["cut"], "-o", "json").json

    assert len(now["items"]) == 3
    assert again == before


def test_where_there_is_no_letter_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = FleetLog(tmp_path).run(capsys, "dead-letters", "redrive", "--all")

    assert (said.code, said.out, said.err) == (0, "", "there is no letter to redrive\n")


def test_the_mark_of_somebody_elses_transaction_is_no_letter(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.log.append([Message(DEAD_LETTERS, b"", b"", NO_RECORD, 0)])

    listed = fleet.run(capsys, "dead-letters", "list", "-o", "json")
    redriven = fleet.run(capsys, "dead-letters", "redrive", "--all")

    assert len(listed.json["items"]) == 2
    assert (redriven.code, redriven.out.count(" -> ")) == (0, 2)


def test_of_several_headers_with_one_name_all_are_shown(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    original = Record(AUDITS, 0, 7, fleet.now_ms, b"c01", b"{", (("a", b"1"), ("b", b"2"), ("a", b"3")))
    fleet.log.append([dead_letter(original, Unreadable("unreadable", "cut"))])

    said = fleet.run(capsys, "dead-letters", "show", "dead-letters/0@2", "-o", "json")

    assert said.json["items"][0]["headers"] == {"a": ["1", "3"], "b": "2"}
