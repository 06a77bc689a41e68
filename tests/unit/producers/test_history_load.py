"""A fleet's past, ready-made: a log as one that grew, with the leaks that were put there and no others."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from producers import history_load
from producers.history_load import HistoryRecord, history_records, leak_id, leaks_about
from schemas.codec import decode_keyed, event_type
from schemas.partitioner import partition_of
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE
from streams.cli.main import run
from streams.log.sqlite import SqliteLog

Capture = pytest.CaptureFixture[str]
RECORDS = 60_000


def kind(record: HistoryRecord) -> str:
    event = decode_keyed(record.topic, record.key, record.value)
    unchanged = record.topic == AUDITS and event.instances is None
    return f"{event_type(event)}{' unchanged' if unchanged else ''}"


def test_the_mix_is_that_of_a_log_that_grew_and_a_tenth_of_the_audits_is_in_full() -> None:
    records = list(history_records(1, nodes=6, records=RECORDS, partitions=2))

    topics, kinds = Counter(record.topic for record in records), Counter(map(kind, records))

    assert topics[CLAIMS] + 2 * topics[AUDITS] + 2 * topics[LIFECYCLE] == RECORDS
    assert topics[AUDITS] == RECORDS // 20
    assert topics[LIFECYCLE] == pytest.approx(RECORDS * 3 // 20, rel=0.02)
    assert 0.05 < kinds["hypervisor-audited"] / topics[AUDITS] < 0.3
    assert kinds["claim-requested"] == pytest.approx(RECORDS * 3 // 20, rel=0.1)
    assert kinds["claim-renewed"] == pytest.approx(RECORDS * 6 // 20, rel=0.1)


def test_the_same_seed_gives_the_same_records_each_where_its_key_belongs() -> None:
    first, again = (list(history_records(7, nodes=9, records=4_000, partitions=3)) for _ in range(2))

    assert first == again
    assert first != list(history_records(8, nodes=9, records=4_000, partitions=3))
    assert all(record.partition == partition_of(record.key, 3) for record in first)


def test_an_audit_of_the_log_finds_the_leaks_of_the_history_and_no_others(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_load, "LEAK_EVERY", 500)
    log = f"sqlite:{tmp_path / 'log.db'}"
    code = run(["produce", "load", "--history", str(RECORDS // 2), "--nodes", "5", "--seed", "3", "--log", log])
    capsys.readouterr()

    found_code = run(["leaks", "--log", log, "-o", "json"])

    said = capsys.readouterr()
    instances = [finding["instance_id"] for finding in json.loads(said.out)["items"]]
    assert (code, found_code) == (0, 3)
    assert sorted(instances) == [leak_id(number) for number in range(len(instances))]
    assert len(instances) > 2
    assert abs(len(instances) - leaks_about(RECORDS // 2)) <= 1
    assert "not yet in the ledger" not in said.err


def test_observations_are_carried_as_the_reconciler_carries_them(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    run(["produce", "load", "--history", "3000", "--nodes", "5", "--log", f"sqlite:{path}"])

    with SqliteLog.open(path) as log:
        records = [record for number, end in log.ends(CLAIMS).items() for record in log.read(CLAIMS, number, 0, end)]
        committed = {topic: log.committed("reconciler", topic) == log.ends(topic) for topic in (AUDITS, LIFECYCLE)}
        sources = sum(end for topic in committed for end in log.ends(topic).values())

    carried = [record for record in records if dict(record.headers).get("ce_source") == b"claimlog/reconciler"]
    assert committed == {AUDITS: True, LIFECYCLE: True}
    assert len(carried) == sources > 0
    assert len(records) + sources == 3_000 + 4


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--history", "0"], "expected 1 or more"),
        (["--history", "100", "--once"], "goes with --log, --nodes and --seed alone"),
        (["--history", "100", "--nodes", "0"], "expected 1 or more"),
    ],
)
def test_a_history_that_cannot_be_written_is_refused(flags: list[str], words: str, tmp_path: Path, capsys: Capture) -> None:
    code = run(["produce", "load", *flags, "--log", f"sqlite:{tmp_path / 'log.db'}"])

    assert code == 2
    assert words in capsys.readouterr().err


def test_a_history_is_no_part_of_a_ledger_that_is_there(tmp_path: Path, capsys: Capture) -> None:
    flags = ["produce", "load", "--history", "500", "--log", f"sqlite:{tmp_path / 'log.db'}"]

    codes = [run(flags), run(flags)]

    assert codes == [0, 2]
    assert "has a ledger already" in capsys.readouterr().err
