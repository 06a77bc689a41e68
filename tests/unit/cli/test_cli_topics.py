"""`claimlog topics check`: what of the topics is not as the ledger needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.claims import PartitionOpened
from schemas.codec import encode
from schemas.topics import CLAIMS, FINDINGS, NODE_RESOURCES, RESULTS, SNAPSHOTS, VERDICTS
from streams.cli.main import run
from streams.cli.topics import differences
from streams.ledger_topics import topic_specs
from streams.log.base import Message, TopicSpec
from streams.log.kafka_settings import KafkaSettings
from streams.log.kafka_topics import MISSING, TopicDifference
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

    log.append([Message(NODE_RESOURCES, b"n1", b"{}")])

    assert [str(difference) for difference in differences(log)] == [
        "topic 'claims': missing; restore it from a copy, as docs/operations.md says"
    ]


@pytest.fixture
def robbed(tmp_path: Path) -> FleetLog:
    """A ledger that has begun, of which somebody deleted what schedulers answered and what follows from claims."""
    fleet = FleetLog(tmp_path, opened=False)
    fleet.log.create([spec for spec in topic_specs(1, 1) if spec.name not in {RESULTS, VERDICTS, FINDINGS}])
    opened = PartitionOpened(ledger_id="L", partition=0, partitions=1)
    fleet.log.append([Message(CLAIMS, b"k", encode(opened)), Message(CLAIMS, b"n", b"{}")])
    return fleet


def test_a_deleted_topic_of_which_nothing_makes_records_again_is_to_be_restored_whoever_says_so(
    robbed: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    checked, looked = robbed.run(capsys, "topics", "check", "-o", "json"), robbed.run(capsys, "doctor", "--quick", "-o", "json")

    found = {item["topic"]: item["found"] for item in checked.json["items"]}
    (line,) = [item for item in looked.json["items"] if item["check"] == "topics"]
    assert found[RESULTS] == "missing; restore it as docs/operations.md says; `claimlog topics apply` begins it empty"
    assert found[VERDICTS] == "missing; `claimlog topics apply` makes it, and nothing has to be restored"
    assert found[FINDINGS] == found[VERDICTS]
    assert line["says"].startswith(f"topics {RESULTS}, {VERDICTS}, {FINDINGS} are missing: ")
    assert f"of {RESULTS}: restore it as docs/operations.md says; `claimlog topics apply` begins it empty" in line["says"]
    assert f"of {VERDICTS}, {FINDINGS}: `claimlog topics apply` makes them, and nothing has to be restored. Brokers" in line["says"]
    assert "claimlog run" not in line["says"] + line["fix"]


@pytest.mark.parametrize("verb", [("topics", "apply"), ("run", "--until-idle")], ids=" ".join)
def test_what_is_made_beside_a_ledger_that_has_begun_is_told(
    verb: tuple[str, ...], robbed: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    made, again = robbed.run(capsys, *verb), robbed.run(capsys, *verb)

    names = f"{RESULTS}, {VERDICTS}, {FINDINGS}"
    told = f"made, empty, beside a ledger that has records: {names}; where they were deleted restore {RESULTS} as docs/"
    assert told in made.err
    assert (made.code, again.code, "made, empty" in again.err) == (0, 0, False)


def test_of_a_ledger_that_begins_nothing_has_to_be_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = FleetLog(tmp_path, opened=False).run(capsys, "topics", "apply")

    assert (made.code, made.err) == (0, "")


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


@pytest.mark.parametrize("verb", ["apply", "check"])
def test_a_single_broker_is_not_meant_of_a_log_that_has_none(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["topics", verb, "--log", f"sqlite:{tmp_path / 'log'}", "--single-broker"])

    assert code == 2
    assert capsys.readouterr().err == (
        f"claimlog: --single-broker is about Kafka, and the log is sqlite:{tmp_path / 'log'}; leave out --single-broker\n"
    )
    assert not (tmp_path / "log").exists()


class Hidden(MemoryLog):
    """On Kafka, where this user may not see the ledger."""

    settings = KafkaSettings(bootstrap="b:9092")

    def differences(self, specs: list[TopicSpec]) -> list[TopicDifference]:
        return [TopicDifference(spec.name, MISSING, "", MISSING) for spec in specs if spec.name == CLAIMS]


def test_a_topic_that_is_missing_on_kafka_may_be_hidden_from_this_user() -> None:
    log = Hidden([TopicSpec(VERDICTS, 1)])
    log.append([Message(VERDICTS, b"k", b"{}")])

    (missing,) = differences(log)

    hidden = "restore it from a copy, as docs/operations.md says. Brokers hide topics from users who may not read or describe them"
    assert str(missing) == f"topic 'claims': missing; {hidden}"
