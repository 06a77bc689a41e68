"""`claimlog dead-letters redrive` where not all goes through: what was appended is said, what was not is named, and the rest goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from schemas.codec import Unreadable
from schemas.topics import ANSWERED, AUDITS, CLAIMS, DEAD_LETTERS, NODE_RESOURCES, REQUESTS, RESULTS
from streams import ledger_topics
from streams.cli import dead_letters
from streams.cli.main import run
from streams.dead_letters import dead_letter
from streams.ledger_topics import topic_specs
from streams.log.base import LogUnreachable, Message, Record
from streams.log.kafka_send import Batch, Sender
from streams.log.sqlite import SqliteLog
from tests.cli_log import FleetLog

Capture = pytest.CaptureFixture[str]
DERIVED = "nothing is missing: what stands there is derived, and claimlog writes it by itself"
AGAIN = "redrive what is left as a user that may: name it, or pass --all --topic placement-results"
WHO = "who may do what to which topic: docs/kafka.md"


def letters_of(fleet: FleetLog, *topics: str, partition: int = 0) -> None:
    """One letter of each of these topics; no two are of the same message."""
    for number, topic in enumerate(topics):
        original = Record(topic, partition, number, fleet.now_ms, b"k", b"{%d" % number)
        fleet.log.append([dead_letter(original, Unreadable("unreadable", "no JSON"))])


def may_write_only(monkeypatch: pytest.MonkeyPatch, *topics: str) -> None:
    """From now on a log knows who may write what, as Kafka's does."""
    monkeypatch.setattr(SqliteLog, "may_write", lambda _, topic: topic in topics, raising=False)


@pytest.mark.parametrize("archive", [False, True])
def test_letters_of_topics_this_user_may_not_write_are_refused_one_by_one_and_the_rest_goes_on(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, *, archive: bool
) -> None:
    fleet = FleetLog(tmp_path)
    letters_of(fleet, NODE_RESOURCES, RESULTS, CLAIMS, REQUESTS, RESULTS)
    may_write_only(monkeypatch, CLAIMS, REQUESTS)
    if archive:
        monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(tmp_path))
    claims, requests = fleet.log.end(CLAIMS, 0), fleet.log.end(REQUESTS, 0)

    said = fleet.run(capsys, "dead-letters", "redrive", "--all")

    assert (said.code, said.out.splitlines()) == (
        1,
        [f"dead-letters/0@2 -> {CLAIMS}/0@{claims}", f"dead-letters/0@3 -> {REQUESTS}/0@{requests}"],
    )
    assert said.err.splitlines() == [
        "dead-letters/0@0: cannot be redriven: this user may not write node-resources",
        "dead-letters/0@1: cannot be redriven: this user may not write placement-results",
        "dead-letters/0@4: cannot be redriven: this user may not write placement-results",
        f"node-resources: 1 letter not redriven, as this user may not write it; {DERIVED}; {WHO}",
        f"placement-results: 2 letters not redriven, as this user may not write it; {AGAIN}; {WHO}",
    ]
    assert fleet.log.end(NODE_RESOURCES, 0) == 0


def test_a_dry_run_refuses_what_the_real_one_would(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = FleetLog(tmp_path)
    letters_of(fleet, RESULTS, AUDITS)
    may_write_only(monkeypatch, AUDITS)

    said = fleet.run(capsys, "dead-letters", "redrive", "--all", "--dry-run")

    assert (said.code, said.out) == (1, f"dead-letters/0@1 -> {AUDITS}/0 (dry run)\n")
    assert "dead-letters/0@0: cannot be redriven: this user may not write placement-results" in said.err
    assert fleet.log.end(AUDITS, 0) == 0


def test_letters_of_a_topic_or_partition_that_this_ledger_has_not_are_refused_and_the_rest_goes_on(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(ledger_topics, "topic_specs", lambda *counts: [spec for spec in topic_specs(*counts) if spec.name != ANSWERED])
        fleet = FleetLog(tmp_path)
    letters_of(fleet, ANSWERED, AUDITS)
    letters_of(fleet, AUDITS, partition=7)

    said = fleet.run(capsys, "dead-letters", "redrive", "--all")

    assert (said.code, said.out) == (1, f"dead-letters/0@1 -> {AUDITS}/0@0\n")
    assert "dead-letters/0@0: cannot be redriven: topic 'answered-requests' is not in this log" in said.err
    assert "dead-letters/0@2: cannot be redriven: topic 'hypervisor-audits' has 2 partitions" in said.err


def test_what_was_appended_is_said_though_a_later_piece_fails(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = FleetLog(tmp_path)
    letters_of(fleet, AUDITS, RESULTS, AUDITS, AUDITS, AUDITS, AUDITS)
    may_write_only(monkeypatch, AUDITS)
    monkeypatch.setattr(dead_letters, "BATCH_RECORDS", 3)
    real = SqliteLog.append

    def append(log: SqliteLog, messages: Sequence[Message]) -> list[int]:
        if messages and log.end(AUDITS, 0):
            raise LogUnreachable("the brokers are away")
        return real(log, messages)

    monkeypatch.setattr(SqliteLog, "append", append)
    said = fleet.run(capsys, "dead-letters", "redrive", "--all")

    assert (said.code, said.out.splitlines()) == (5, [f"dead-letters/0@0 -> {AUDITS}/0@0", f"dead-letters/0@2 -> {AUDITS}/0@1"])
    refused, unheard, forbidden, why = said.err.splitlines()
    assert refused == "dead-letters/0@1: cannot be redriven: this user may not write placement-results"
    assert unheard == (
        "3 letters without a line here, from dead-letters/0@3 on: not acknowledged, each may stand in the log or not; "
        "redrive these and what follows again, as copies do no harm"
    )
    assert forbidden.startswith("placement-results: 1 letter not redriven")
    assert why == "claimlog: the brokers are away"


class _HalfLanded(Batch):
    """A batch of which the first of each partition is acknowledged, in `claims` without its offset, and then the brokers are gone."""

    def __init__(self, messages: Sequence[Message]) -> None:
        super().__init__(Mock(Sender), messages, [message.partition or 0 for message in messages], lambda: 0.0)
        for place, landing in self.landings.items():
            landing.offsets.append(-1 if place.topic == CLAIMS else 5)
        self.turns = 0

    def landed(self, timeout_seconds: float = 0.0) -> bool:
        assert timeout_seconds > 0
        self.turns += 1
        if self.turns > 1:
            raise LogUnreachable("not acknowledged")
        return False


def test_of_a_piece_that_fails_halfway_each_original_that_the_brokers_have_acknowledged_is_said(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = FleetLog(tmp_path)
    letters_of(fleet, AUDITS, CLAIMS, AUDITS, REQUESTS, CLAIMS)
    monkeypatch.setattr(SqliteLog, "begin", lambda _, messages: _HalfLanded(messages), raising=False)

    said = fleet.run(capsys, "dead-letters", "redrive", "--all")

    assert (said.code, said.out.splitlines()) == (
        5,
        [
            f"dead-letters/0@0 -> {AUDITS}/0@5",
            f"dead-letters/0@1 -> {CLAIMS}/0 (its offset was not told)",
            f"dead-letters/0@3 -> {REQUESTS}/0@5",
        ],
    )
    assert said.err.startswith("2 letters without a line here, from dead-letters/0@2 on: not acknowledged")
    assert said.err.endswith("claimlog: not acknowledged\n")


def test_a_log_that_can_only_be_read_is_refused_before_anything_is_said_of_its_letters(tmp_path: Path, capsys: Capture) -> None:
    (file := tmp_path / "log.jsonl").write_text("")

    code = run(["dead-letters", "redrive", f"{DEAD_LETTERS}/0@0", "--log", str(file)])

    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    assert "letter" not in said.err
