"""`claimlog copy`: the same answers from the copy, gaps and other targets refused. Both hosts: tests/contract/test_system_contract.py."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from schemas.topics import CLAIMS, FINDINGS, REQUESTS, RESULTS
from streams.cli.main import run
from streams.ledger_topics import open_ledger
from streams.log.base import LogCutShort, LogError, LogFull, Message, OffsetOutOfRange, TopicSpec
from streams.log.copy_mark import check_whole
from streams.log.memory import MemoryLog
from streams.log.sqlite import SqliteLog
from streams.log.wake import wake_file
from streams.mirror import COPIED, EFFECTS_FIRST, NotAsCopied, OtherLedger, mirror
from tests.cli_log import PARTITIONS, FleetLog

Capture = pytest.CaptureFixture[str]


def fleet_of(folder: Path) -> FleetLog:
    fleet = FleetLog(folder)
    fleet.audit("c1")
    fleet.claim("r1/0/s-1.1", "i1", "c1", memory_mib=512)
    return fleet


def test_the_copy_answers_as_the_log_it_was_made_of(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)

    said = fleet.run(capsys, "copy", f"sqlite:{tmp_path / 'copy'}", "-o", "json")

    assert said.code == 0
    assert sum(item["copied"] for item in said.json["items"] if item["topic"] == CLAIMS) == sum(fleet.log.ends(CLAIMS).values())
    before = fleet.run(capsys, "replay", "-o", "json").json
    assert run(["replay", "--log", f"sqlite:{tmp_path / 'copy'}", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == before


def test_a_copy_that_cannot_begin_makes_no_file(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    SqliteLog.open(tmp_path / "empty", create=True).close()
    fleet.log.truncate(CLAIMS, fleet.log.partition(CLAIMS, b"c1"), 2)

    archived = fleet.run(capsys, "copy", f"sqlite:{tmp_path / 'copy'}")
    no_ledger = run(["copy", f"sqlite:{tmp_path / 'copy'}", "--log", f"sqlite:{tmp_path / 'empty'}"])

    assert (archived.code, no_ledger) == (6, 1)
    assert "CLAIMLOG_ARCHIVE" in archived.err
    assert not (tmp_path / "copy").exists()


def test_a_target_with_a_scheme_is_that_whatever_its_path_ends_with(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)

    said = fleet.run(capsys, "copy", f"sqlite:{tmp_path / 'copy.jsonl'}")

    assert said.code == 0
    assert run(["nodes", "--log", f"sqlite:{tmp_path / 'copy.jsonl'}"]) == 0


def test_a_history_that_was_written_to_a_file_replays_to_the_same_digests_and_answers(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    fleet.audit("c1", {"stranger": 64})
    fleet.audit("c2", {"i2": 512}, carry=False)
    file = tmp_path / "history.jsonl"
    form = ("-o", "json")
    # Cuts of events and timelines name derived topics as well, which a copy does not have.
    verbs = (["replay", *form], ["leaks", *form], ["nodes", *form], ["events", "-o", "jsonl"], ["timeline", "node/c1", "-o", "jsonl"])

    said = fleet.run(capsys, "copy", str(file), "-o", "json")

    assert said.code == 0
    assert sum(item["copied"] for item in said.json["items"]) == sum(sum(fleet.log.ends(topic).values()) for topic in COPIED)
    before = [fleet.run(capsys, *verb) for verb in verbs]
    fleet.spec = str(file)
    after = [fleet.run(capsys, *verb) for verb in verbs]
    assert [(each.code, ageless(each.out)) for each in after] == [(each.code, ageless(each.out)) for each in before]
    said_so = [re.findall(r"this file has nothing of (.*): what follows from the ledger is in no copy", each.err) for each in after]
    assert said_so == [[], [], [], ["claim-verdicts, leak-findings"], ["leak-findings"]]
    assert all("in no copy" not in each.err for each in before)


@pytest.mark.parametrize("verb", [["events"], ["timeline", "node/c1"]])
def test_a_cut_that_names_derived_topics_is_one_of_the_copy_too(verb: list[str], tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    fleet.log.append([Message(FINDINGS, b"c1", b"{}", partition=number) for number in range(PARTITIONS)])
    cut = fleet.run(capsys, *verb, "-o", "json").json["cut"]
    fleet.run(capsys, "copy", f"sqlite:{tmp_path / 'copy'}")
    asked = (["nodes", "--at", cut, "-o", "json"], ["replay", "--until", cut, "-o", "json"])
    before = [fleet.run(capsys, *each) for each in asked]
    fleet.spec = f"sqlite:{tmp_path / 'copy'}"

    after = [fleet.run(capsys, *each) for each in asked]

    assert [each.code for each in before] == [0, 0]
    assert [(each.code, ageless(each.out)) for each in after] == [(each.code, ageless(each.out)) for each in before]


def test_a_copy_says_that_nothing_follows_from_the_ledger_there_until_a_stream_processor_made_it(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    fleet.run(capsys, "copy", f"sqlite:{tmp_path / 'copy'}")
    fleet.spec = f"sqlite:{tmp_path / 'copy'}"

    before = [fleet.run(capsys, *verb) for verb in (["events"], ["timeline", "node/c1"], ["events", "--topic", "claims"])]
    processed = fleet.run(capsys, "run", "--only", "processor", "--until-idle")
    after = [fleet.run(capsys, *verb) for verb in (["events"], ["timeline", "node/c1"])]

    assert processed.code == 0
    said = [re.findall(r"nothing in (.*) yet: no stream processor has read this log", each.err) for each in before]
    assert said == [["claim-verdicts, leak-findings"], ["leak-findings"], []]
    assert [(each.code, "no stream processor" in each.err) for each in after] == [(0, False), (0, False)]


def test_only_what_has_nothing_and_follows_from_something_is_said_to_be_made_yet(tmp_path: Path, capsys: Capture) -> None:
    empty = tmp_path / "new"
    empty.mkdir()
    new, fleet = FleetLog(empty), fleet_of(tmp_path)
    fleet.run(capsys, "copy", f"sqlite:{tmp_path / 'copy'}")
    fleet.spec = f"sqlite:{tmp_path / 'copy'}"
    written = fleet.run(capsys, "snapshot", "write")

    snapshots = fleet.run(capsys, "events", "--topic", "ledger-snapshots")
    answered = fleet.run(capsys, "events", "--topic", "answered-requests")
    opened = new.run(capsys, "events")

    assert (written.code, snapshots.code, answered.code, opened.code) == (0, 0, 0, 0)
    assert snapshots.out.count("\n") > 1
    assert [each.err for each in (snapshots, answered, opened) if "no stream processor" in each.err] == []


def test_a_file_that_was_cut_at_the_end_of_a_line_exits_6_and_lines_through_a_pipe_say_what_is_missing(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = fleet_of(tmp_path)
    fleet.run(capsys, "copy", str(tmp_path / "whole.jsonl"))
    head, *lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    cut, old = tmp_path / "cut.jsonl", tmp_path / "old.jsonl"
    cut.write_bytes(b"".join([head, *lines[:3]]))
    told_by_none = {name: value for name, value in json.loads(head).items() if name != "ends"}
    old.write_bytes(b"".join([json.dumps(told_by_none).encode() + b"\n", *lines[:3]]))

    refused = [run([*verb, "--log", str(cut)]) for verb in (["nodes"], ["replay"], ["events"])]
    said = capsys.readouterr()
    doctor = run(["doctor", "--log", str(cut)])
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(cut.read_bytes())))
    piped = run(["replay", "--log", "-", "-o", "json"])
    answered = capsys.readouterr()
    as_before = [run(["replay", "--log", str(old), "-o", "json"])]
    older = capsys.readouterr()

    assert (refused, said.out, doctor) == ([6, 6, 6], "", 3)
    assert f"{cut}: it was cut short: claims/1 ends at 2, its first line says 3" in said.err
    assert "or leave out its first line" in said.err
    assert (piped, sum(item["next_offset"] for item in json.loads(answered.out)["items"])) == (0, 3)
    assert "stdin: it was cut short: claims/1 ends at 2" in answered.err
    assert (as_before, older.out, older.err) == ([0], answered.out, "")


def test_what_jq_makes_of_a_copy_is_read_as_it_was(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    fleet.run(capsys, "copy", str(tmp_path / "whole.jsonl"))
    lines = (tmp_path / "whole.jsonl").read_text().splitlines()
    indented, chosen = tmp_path / "indented.jsonl", tmp_path / "chosen.jsonl"
    indented.write_text("".join(json.dumps(json.loads(line), indent=2) + "\n" for line in lines))
    chosen.write_text("".join(f"{line}\n" for line in lines if json.loads(line).get("topic") == CLAIMS))

    said = []
    for file in (tmp_path / "whole.jsonl", indented, chosen):
        assert run(["replay", "--log", str(file), "-o", "json"]) == 0
        said.append(json.loads(capsys.readouterr().out)["items"])

    assert said[1:] == said[:1] * 2


def ageless(text: str) -> str:
    """An answer without how old things are by now."""
    return re.sub(r'"\w*age_ms": \d+', "", text)


def test_a_disk_without_room_for_the_lines_is_no_mistake_of_the_command_line(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        said = fleet.run(capsys, "copy", str(tmp_path / "lines.jsonl"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert (said.code, list(tmp_path.glob("lines*"))) == (1, [])
    assert "lines.jsonl cannot be written: File too large; make room, then copy again" in said.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_who_is_told_to_end_leaves_no_half_of_a_file(number: signal.Signals, tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path)
    program = (
        "import signal, sys\n"
        "import streams.cli.copy as copy\n"
        "from streams.cli.main import main\n"
        f"def told_to_end(records, lines, *_): lines.write(b'half'); signal.raise_signal({int(number)})\n"
        "copy.write_jsonl = told_to_end\n"
        "main()"
    )
    command = [sys.executable, "-c", program, "copy", str(tmp_path / "lines.jsonl"), "--log", fleet.spec]

    ended = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)

    assert (ended.returncode, ended.stderr) == (128 + number, "")
    assert list(tmp_path.glob("lines*")) == []


@pytest.mark.parametrize("target", ["copy.txt", "-", "sqlit:copy", "me:hunter2@copy"])
def test_a_target_that_is_no_log_is_told_as_such(target: str, tmp_path: Path, capsys: Capture) -> None:
    said = fleet_of(tmp_path).run(capsys, "copy", target)

    assert said.code == 2
    assert "hunter2" not in said.err
    assert target == "-" or said.err.startswith("claimlog: TARGET ")


def test_a_file_that_is_there_is_never_replaced(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    (tmp_path / "lines.jsonl").write_text("")

    said = fleet.run(capsys, "copy", str(tmp_path / "lines.jsonl"))

    assert (said.code, (tmp_path / "lines.jsonl").read_text()) == (2, "")
    assert "exists; a copy never replaces a file" in said.err


def test_a_log_is_not_copied_onto_itself_by_whatever_name(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of(tmp_path)
    (tmp_path / "other-name").symlink_to(fleet.path)

    same = fleet.run(capsys, "copy", fleet.spec)
    linked = fleet.run(capsys, "copy", f"sqlite:{tmp_path / 'other-name'}")
    monkeypatch.setenv("CLAIMLOG_LOG", "kafka://broker:9092/fleet?single-broker")
    kafka = run(["copy", "kafka://broker:9092/fleet"])

    assert [same.code, linked.code, kafka] == [2, 2, 2]
    assert "this is the log itself" in same.err
    assert "this is the log itself" in capsys.readouterr().err


def test_a_question_mark_in_the_name_of_a_file_is_part_of_it(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    fleet.log.close()
    named = fleet.path.rename(tmp_path / "log?1")

    code = run(["copy", f"sqlite:{tmp_path / 'log?2'}", "--log", f"sqlite:{named}"])

    assert (code, capsys.readouterr().err) == (0, "")


def test_every_topic_that_is_copied_is_looked_up_once() -> None:
    assert sorted(EFFECTS_FIRST) == sorted(COPIED)


def test_a_log_is_made_of_a_history_in_a_file_again(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    file, again, restored = tmp_path / "history.jsonl", tmp_path / "again.jsonl", f"sqlite:{tmp_path / 'restored'}"
    assert fleet.run(capsys, "copy", str(file)).code == 0

    assert run(["copy", restored, "--log", str(file)]) == 0
    assert run(["copy", str(again), "--log", str(file)]) == 0

    capsys.readouterr()
    assert again.read_bytes() == file.read_bytes()
    before = fleet.run(capsys, "replay", "-o", "json").json
    assert run(["replay", "--log", restored, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == before


def test_no_log_is_made_of_lines_that_may_be_a_part_of_a_ledger(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    file, lines = tmp_path / "history.jsonl", tmp_path / "lines.jsonl"
    assert fleet.run(capsys, "copy", str(file)).code == 0
    lines.write_bytes(file.read_bytes().partition(b"\n")[2])

    codes = [run(["copy", f"sqlite:{tmp_path / 'copy'}", "--log", source]) for source in (str(lines), "-")]

    assert codes == [2, 2]
    said = capsys.readouterr().err
    assert f"claimlog: {lines}: expected a first line, as `claimlog copy FILE.jsonl` writes it" in said
    assert "claimlog: --log -: lines that are piped may be cut short anywhere" in said
    assert not (tmp_path / "copy").exists()


def test_a_log_whose_partitions_are_not_what_they_were_opened_as_is_copied_nowhere(tmp_path: Path, capsys: Capture) -> None:
    """What readers say of it, `copy` says before it writes: nobody could read the copy."""
    fleet = fleet_of(tmp_path)
    file, swapped, target = tmp_path / "history.jsonl", tmp_path / "swapped.jsonl", tmp_path / "copy"
    assert fleet.run(capsys, "copy", str(file)).code == 0
    head, *lines = map(json.loads, file.read_text().splitlines())
    for line in lines:
        line["partition"] = 1 - line["partition"] if line["topic"] == CLAIMS else line["partition"]
    head["ends"][CLAIMS].reverse()
    swapped.write_text("".join(f"{json.dumps(each)}\n" for each in (head, *lines)))

    asked = (["nodes"], ["copy", f"sqlite:{target}"], ["copy", str(tmp_path / "copy.jsonl")])
    codes = [run([*words, "--log", str(swapped)]) for words in asked]

    said = capsys.readouterr().err.splitlines()
    assert codes == [1, 1, 1]
    assert said[0].startswith(f"claimlog: {CLAIMS}/0: opened as partition 1 of 2, read as 0 of 2; ")
    assert said == [said[0]] * 3
    assert not target.exists()


def test_history_that_left_the_log_is_asked_for(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path)
    fleet.log.truncate(CLAIMS, 0, 1)

    with SqliteLog.open(tmp_path / "copy", create=True) as copy, pytest.raises(OffsetOutOfRange, match="CLAIMLOG_ARCHIVE"):
        mirror(fleet.log, copy)


def test_history_that_left_right_behind_a_copy_is_asked_for(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path)
    with SqliteLog.open(tmp_path / "copy", create=True) as copy:
        mirror(fleet.log, copy)
        fleet.log.truncate(CLAIMS, 0, copy.end(CLAIMS, 0))

        with pytest.raises(OffsetOutOfRange, match="CLAIMLOG_ARCHIVE"):
            mirror(fleet.log, copy)


class _SoonFull(SqliteLog):
    """A log on a disk that has room for one batch."""

    has_room = True

    def append_at(self, messages: Sequence[Message], times_ms: Sequence[int]) -> None:
        if not self.has_room:
            raise LogFull("no room left")
        super().append_at(messages, times_ms)
        self.has_room = False


def test_a_copy_that_was_interrupted_gives_no_answers_until_it_is_whole(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    target = f"sqlite:{tmp_path / 'copy'}"
    with _SoonFull.open(tmp_path / "copy", create=True) as copy, pytest.raises(LogFull):
        mirror(fleet.log, copy)

    codes = [run([*verb, "--log", target]) for verb in (["nodes"], ["replay", "--verify"], ["run", "--until-idle"])]
    said = capsys.readouterr()

    assert (codes, said.out) == ([6, 6, 6], "")
    assert "copy: this copy of a ledger is not complete: " in said.err
    left = f"sqlite:{tmp_path / 'left'}"
    assert run(["copy", left, "--log", target]) == 6
    assert "what is there is copied, but " in capsys.readouterr().err
    assert run(["nodes", "--log", left]) == 0
    assert fleet.run(capsys, "copy", target).code == 0
    assert run(["nodes", "--log", target]) == 0


class _OfWriters(MemoryLog):
    """A log that has to be told that writers say the times, as Kafka, and has no room for records."""

    marked: dict[int, int] | None = None
    begun: Collection[str] = ()

    def create(self, topics: Sequence[TopicSpec], copied: Collection[str] = ()) -> None:
        self.begun = copied
        super().create(topics)

    def take_times(self, topics: Sequence[str], *, of_writers: bool) -> None:
        assert CLAIMS in topics
        assert of_writers
        assert CLAIMS in self.begun
        self.marked = self.committed("copies", CLAIMS)

    def append_at(self, messages: Sequence[Message], times_ms: Sequence[int]) -> None:
        raise LogFull("no room left")


def test_a_copy_to_a_cluster_says_how_far_it_is_to_go_before_anything_shows_that_it_is_one(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path)
    copy = _OfWriters()

    with pytest.raises(LogFull):
        mirror(fleet.log, copy)

    assert copy.marked == fleet.log.ends(CLAIMS)
    with pytest.raises(LogCutShort, match="the cluster: this copy of a ledger is not complete: "):
        check_whole(copy, "the cluster")


def test_a_log_that_is_no_copy_of_this_one_stays_as_it_was(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "other").mkdir()
    fleet, other = fleet_of(tmp_path), FleetLog(tmp_path / "other")

    said = fleet.run(capsys, "copy", other.spec)

    assert said.code == 1
    assert other.run(capsys, "nodes").code == 0


class _Busy(MemoryLog):
    """A log on which a request is asked, claimed for and answered whenever somebody looks how far a topic goes."""

    def ends(self, topic: str) -> dict[int, int]:
        found = super().ends(topic)
        if topic in COPIED and super().ends(CLAIMS)[0]:
            self.append(one_of_each())
        return found


def one_of_each() -> list[Message]:
    """A request, its claim and its result, as far as a copy cares."""
    return [Message(topic, b"k", b"v", (), 0) for topic in (REQUESTS, CLAIMS, RESULTS)]


def test_a_copy_made_under_load_has_the_claims_of_every_result_and_the_request_of_every_claim() -> None:
    source, copy = _Busy(clock=lambda: 1000), _Timed()
    open_ledger(source, ledger_partitions=1, request_partitions=1)
    source.append(one_of_each())

    mirror(source, copy)

    asked, claimed, answered = (copy.end(each, 0) for each in (REQUESTS, CLAIMS, RESULTS))
    # Record 0 of claims opens the partition.
    assert 0 < answered <= claimed - 1 <= asked
    mirror(source, copy)
    assert copy.end(RESULTS, 0) > answered


class _Timed(MemoryLog):
    """A log that takes the times of its writers."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: self.now_ms)
        self.now_ms = 0

    def append_at(self, messages: Sequence[Message], times_ms: Sequence[int]) -> None:
        for each, self.now_ms in zip(messages, times_ms, strict=True):
            self.append([each])


class _CopiedTwice(_Timed):
    """A log to which a second copy appends the same at the same moment: all of it behind what the first one reads back."""

    def append_at(self, messages: Sequence[Message], times_ms: Sequence[int]) -> None:
        super().append_at(messages, times_ms)
        super().append_at(messages, times_ms)


def test_what_two_copies_made_at_once_wrote_twice_is_read_as_a_ledger_by_nobody() -> None:
    source, copy = _asked_once(), _CopiedTwice()

    with pytest.raises(NotAsCopied, match=r"the new log ends at 4, the old one at 2.* or copy to it at once"):
        mirror(source, copy)

    with pytest.raises(LogCutShort):
        check_whole(copy, "the copy")
    with pytest.raises(OtherLedger, match="copy to one that is empty"):
        mirror(source, copy)


class _CopiedFurther(_Timed):
    """A log that a second copy, which began later, takes further than the first one goes."""

    source: MemoryLog

    def append_at(self, messages: Sequence[Message], times_ms: Sequence[int]) -> None:
        super().append_at(messages, times_ms)
        if messages[-1].topic == RESULTS:
            self.source.append(one_of_each())
            super().append_at(one_of_each()[-1:], [1000])


def test_a_copy_that_a_later_one_took_further_is_as_good() -> None:
    source, copy = _asked_once(), _CopiedFurther()
    copy.source = source

    mirror(source, copy)
    mirror(source, copy)

    assert [copy.end(topic, 0) for topic in COPIED] == [source.end(topic, 0) for topic in COPIED]
    check_whole(copy, "the copy")


def test_an_embedded_log_is_copied_to_by_one_process_at_a_time(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    target = f"sqlite:{tmp_path / 'copy'}"
    SqliteLog.open(tmp_path / "copy", create=True).close()

    with wake_file(tmp_path / "copy").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        said = fleet.run(capsys, "copy", target)

    assert (said.code, said.out) == (1, "")
    assert said.err == f"claimlog: {target}: another process copies to it; wait until it has ended, then copy again\n"
    assert fleet.run(capsys, "copy", target).code == 0


def _asked_once() -> MemoryLog:
    log = MemoryLog(clock=lambda: 1000)
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    log.append(one_of_each())
    return log


class _Forgetful(MemoryLog):
    """A log that keeps times of its own, whatever it is told."""

    def append_at(self, messages: Sequence[Message], times_ms: Sequence[int]) -> None:
        self.append(messages)


def test_a_copy_whose_times_are_not_kept_is_refused(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path)

    with pytest.raises(LogError, match="with another time"):
        mirror(fleet.log, _Forgetful())


class _Shared(MemoryLog):
    """A log into which another copy is made at once."""

    def append_at(self, messages: Sequence[Message], times_ms: Sequence[int]) -> None:
        self.append([replace(messages[0], value=b"{}"), *messages[1:]])


def test_a_copy_that_reads_back_as_other_records_is_refused_for_that_and_not_for_its_times(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path)

    with pytest.raises(LogError, match="reads back as another record: ") as raised:
        mirror(fleet.log, _Shared())

    assert "time" not in str(raised.value).partition("record:")[0]


def test_times_that_go_back_are_copied_as_every_fold_takes_them(tmp_path: Path) -> None:
    times = [1000, 3000, 2000]
    source = MemoryLog(clock=lambda: 1000)
    open_ledger(source, ledger_partitions=1, request_partitions=1)
    with SqliteLog.open(tmp_path / "copy", create=True) as copy:
        copy.create([])
        mirror(source, copy)

        copy.append_at([Message(CLAIMS, b"k", b"%d" % time_ms, (), 0) for time_ms in times], times)

        assert [record.time_ms for record in copy.read(CLAIMS, 0, 1)] == [1000, 3000, 3000]


def test_what_a_copy_left_that_was_killed_is_taken_away_by_the_next_one(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left, running, fresh = (tmp_path / f"out.jsonl.{number}.partial" for number in (gone.pid, os.getppid(), gone.pid + 1_000_000))
    for each in (left, running, fresh):
        each.write_bytes(b"half a copy")
    for each in (left, running):
        os.utime(each, (0, 0))

    assert fleet.run(capsys, "copy", str(tmp_path / "out.jsonl")).code == 0

    assert [each.exists() for each in (left, running, fresh)] == [False, True, True]
