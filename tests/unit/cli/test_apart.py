"""Partitions folded by processes of their own: the same answers, byte for byte, and errors that surface as they would here."""

from __future__ import annotations

import os
import signal
import time
from itertools import count
from pathlib import Path

import pytest

from producers.ledger_load import ledger_records
from projections.ledger_id import ledger_id_of
from projections.reading import HistoryMissing
from schemas.topics import CLAIMS
from streams.cli.main import run as main
from streams.cli.problems import UsageProblem
from streams.cli.reading import apart as apart_module
from streams.cli.reading.apart import Added, Apart, Source, Task, Tell, jobs_of, run_apart
from streams.log.base import Log, LogDamaged, Message, Position, TopicSpec
from streams.log.jsonl import write_jsonl
from streams.log.sqlite import SqliteLog
from tests.cli_log import PARTITIONS, FleetLog

Capture = pytest.CaptureFixture[str]
RECORDS = 3_000
TTL_SECONDS = 700


@pytest.fixture(autouse=True)
def processes_always_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test need not write 100,000 records."""
    monkeypatch.setattr(apart_module, "RECORDS_MIN", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of three partitions with claims, guests, audits and departures."""
    made = tmp_path / "log.db"
    now_ms = count(1_700_000_000_000, 10)
    with SqliteLog.open(made, create=True, clock=lambda: next(now_ms)) as log:
        log.create([TopicSpec(CLAIMS, 3)])
        records = ledger_records(7, nodes=12, records=RECORDS, partitions=3, held_max=100)
        log.append([Message(CLAIMS, record.key, record.value, (), record.partition) for record in records])
    return made


def fleet_with_a_double(directory: Path) -> FleetLog:
    """Instance i1 is held and seen on two nodes of two partitions; an orphan lies beside it."""
    fleet = FleetLog(directory)
    homes = [next(f"h{n}" for n in count() if fleet.log.partition(CLAIMS, b"h%d" % n) == number) for number in range(PARTITIONS)]
    for number, node_id in enumerate(homes):
        fleet.audit(node_id)
        fleet.claim(f"r{number}/0/s-1.1", "i1", node_id, memory_mib=512, request_id=f"r{number}")
        fleet.lived(node_id, "i1", 512)
        fleet.claim(f"r{number}/1/s-1.2", f"orphan{number}", node_id, request_id=f"r{number}", ttl_ms=1_000)
    for _ in range(3):
        fleet.now_ms += TTL_SECONDS * 1000
        for node_id in homes:
            fleet.audit(node_id, {"i1": 512})
    return fleet


def answers(arguments: list[str], log: str, capsys: Capture) -> list[str]:
    """What one process prints, and what two do."""
    printed = []
    for jobs in ("1", "2"):
        assert main([*arguments, "--jobs", jobs, "--log", log, "-o", "json"]) in {0, 3}
        printed.append(capsys.readouterr().out)
    return printed


def answer(fleet: FleetLog, capsys: Capture, *arguments: str) -> tuple[int, object]:
    said = fleet.run(capsys, *arguments, "-o", "json")
    return said.code, said.json


@pytest.mark.parametrize("verb", [("replay", "--until"), ("replay", "--verify", "--until"), ("leaks", "--at")])
def test_two_processes_answer_as_one_does(verb: tuple[str, ...], path: Path, capsys: Capture) -> None:
    one, two = answers([*verb, "2023-11-14T22:13:30Z"], f"sqlite:{path}", capsys)

    assert one == two
    assert '"partition": 2' in one or '"findings"' in one


def test_a_file_of_json_lines_is_read_by_each_process(path: Path, tmp_path: Path, capsys: Capture) -> None:
    lines = tmp_path / "log.jsonl"
    with SqliteLog.open(path) as log, lines.open("wb") as stream:
        records = [record for number in range(3) for record in log.read(CLAIMS, number, 0, RECORDS)]
        write_jsonl(records, stream, [TopicSpec(CLAIMS, 3)], ledger_id_of(log))

    one, two = answers(["replay"], str(lines), capsys)

    assert one == two
    assert '"partition": 2' in one


def test_doubles_across_partitions_are_the_same_whoever_folds(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_with_a_double(tmp_path)

    cut = fleet.run(capsys, "replay", "-o", "json").json["cut"]

    one, two = [answer(fleet, capsys, "leaks", "--jobs", jobs, "--at", cut) for jobs in ("1", "2")]

    assert one == two
    assert one[0] == 3
    assert "double-claim" in str(one[1])


def _fails(_log: Log, task: Task, added: Added, tell: Tell) -> int:
    added(1)
    tell(f"partition {task.partition}")
    raise LogDamaged("claims/1@7: not what was written", Position("claims", 1, 7))


def _missing(_log: Log, _task: Task, _added: Added, _tell: Tell) -> int:
    raise HistoryMissing("records from 5 on are needed")


def _dies(_log: Log, _task: Task, _added: Added, _tell: Tell) -> int:
    os._exit(7)


def _says_its_process(_log: Log, task: Task, added: Added, tell: Tell) -> int:
    added(task.records)
    tell(f"partition {task.partition}")
    time.sleep(0.05 * (3 - task.partition))
    return os.getpid()


def _interrupts_us(_log: Log, task: Task, _added: Added, _tell: Tell) -> int:
    if task.partition == 0:
        os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
    return 0


TASKS = [Task(number, 10, 10) for number in range(3)]


def silent(_: object) -> None:
    """Hears nothing."""


def apart(path: Path, jobs: int = 2) -> Apart:
    return Apart(Source(f"sqlite:{path}"), jobs)


def test_results_and_sentences_come_in_the_order_of_the_tasks(path: Path) -> None:
    told: list[str] = []
    counts: list[int] = []

    with SqliteLog.open(path) as log:
        processes = run_apart(apart(path), log, TASKS, _says_its_process, added=counts.append, tell=told.append)

    assert told == ["partition 0", "partition 1", "partition 2"]
    assert counts == [10, 10, 10]
    assert len(set(processes)) == 2
    assert os.getpid() not in processes


@pytest.mark.parametrize(("jobs", "records_min"), [(1, 1), (2, 1_000_000)])
def test_where_it_does_not_pay_this_process_does_it_all(path: Path, jobs: int, records_min: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart_module, "RECORDS_MIN", records_min)

    with SqliteLog.open(path) as log:
        processes = run_apart(apart(path, jobs), log, TASKS, _says_its_process, added=silent, tell=silent)

    assert processes == [os.getpid()] * 3


def test_what_a_process_raises_is_raised_here(path: Path) -> None:
    with SqliteLog.open(path) as log:
        with pytest.raises(LogDamaged, match=r"^claims/1@7: not what was written"):
            run_apart(apart(path), log, TASKS, _fails, added=silent, tell=silent)
        with pytest.raises(HistoryMissing, match=r"^records from 5 on are needed"):
            run_apart(apart(path), log, TASKS, _missing, added=silent, tell=silent)


def test_a_process_that_dies_is_named_with_its_exit_code(path: Path) -> None:
    with SqliteLog.open(path) as log, pytest.raises(ChildProcessError, match="ended with code 7; if memory is short, pass --jobs 1"):
        run_apart(apart(path), log, TASKS, _dies, added=silent, tell=silent)


def test_an_error_of_a_process_ends_the_command_with_its_code_and_one_line(path: Path, capsys: Capture) -> None:
    with SqliteLog.open(path) as log:
        log.truncate(CLAIMS, 1, 5)

    code = main(["replay", "--jobs", "2", "--log", f"sqlite:{path}"])

    assert code == 6
    said = capsys.readouterr().err
    assert said.startswith("claimlog: claims/1: records from 0 on are needed, at hand are offsets 5 to ")
    assert said.count("\n") == 1


def test_an_interrupt_ends_the_processes_too(path: Path) -> None:
    import multiprocessing

    with SqliteLog.open(path) as log, pytest.raises(KeyboardInterrupt):
        run_apart(apart(path), log, TASKS, _interrupts_us, added=silent, tell=silent)

    assert multiprocessing.active_children() == []


def test_a_number_of_jobs_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageProblem, match="--jobs 0: expected 1 to 256"):
        jobs_of(0)
