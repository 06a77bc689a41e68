"""`-w`: the answer again and again, after the last one or in its place, until somebody interrupts."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.requests import Flavor, PlacementRequested
from schemas.topics import REQUESTS
from streams.cli.main import run
from tests.cli_log import FleetLog

VERBS = [
    ("nodes",),
    ("node", "show", "c01"),
    ("claims", "list"),
    ("leaks",),
    ("timeline", "i-77"),
    ("capacity",),
    ("doctor", "--quick"),
]
PATIENCE_SECONDS = 30.0


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    """A node with a claim, and a guest that nobody asked for: a finding."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.append(REQUESTS, PlacementRequested(request_id="r1", flavor=Flavor(memory_mib=2048), instance_ids=("i-77",)))
    fleet.claim("r1/0/s-1.1", "i-77", "c01", memory_mib=2048)
    for _ in range(2):
        fleet.now_ms += 60_000
        fleet.audit("c01", {"i-77": 2048, "ghost": 512})
    return fleet


class Watch:
    """A watch at work, and what it has printed until now."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process, self._out, self._err = process, out, err

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def until(self, holds: Callable[[Watch], bool]) -> None:
        """Wait until it has printed what is waited for."""
        until(lambda: holds(self) or self.process.poll() is not None)
        assert holds(self), (self.process.poll(), self.out, self.err)

    def answers_more(self, count: int) -> None:
        """Wait for so many answers from now on; of JSON, which has a line for each."""
        enough = self.out.count("\n") + count
        self.until(lambda watch: watch.out.count("\n") >= enough)

    def interrupted(self) -> int:
        """Its exit code when it is interrupted."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_SECONDS)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)


def command(fleet: FleetLog, *words: str, interval: str = "0.05") -> list[str]:
    return [sys.executable, "-m", "streams.cli.main", *words, "-w", "--interval", interval, "--log", fleet.spec]


@contextmanager
def watching(fleet: FleetLog, *words: str) -> Iterator[Watch]:
    """`claimlog WORDS -w`, whose output is a file."""
    out, err = fleet.path.with_name("out"), fleet.path.with_name("err")
    with out.open("wb") as to, err.open("wb") as said, subprocess.Popen(command(fleet, *words), stdout=to, stderr=said) as process:
        try:
            yield Watch(process, out, err)
        finally:
            process.kill()


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_watch_prints_a_json_document_a_line_whatever_the_exit_code_until_interrupted(fleet: FleetLog, verb: tuple[str, ...]) -> None:
    with watching(fleet, *verb, "-o", "json") as watch:
        watch.answers_more(2)
        code = watch.interrupted()

    documents = [json.loads(line) for line in watch.out.splitlines()]
    assert code == 130
    assert all(document["cut"].startswith("cut:") and document["items"] for document in documents)


def test_a_table_follows_the_last_one_after_an_empty_line_and_shows_what_came(fleet: FleetLog) -> None:
    with watching(fleet, "nodes", "-c", "node", "-c", "claims") as watch:
        watch.until(lambda seen: "c01" in seen.out)
        fleet.audit("c02")
        watch.until(lambda seen: "c02" in seen.out)
        code = watch.interrupted()

    answers = watch.out.split("\n\n")
    assert code == 130
    assert answers[0] == "node  claims\nc01        1"
    assert answers[-1] == "node  claims\nc01        1\nc02        0\n"


def test_values_are_printed_again_without_anything_between_them(fleet: FleetLog) -> None:
    with watching(fleet, "claims", "list", "-o", "value", "-c", "node_id") as watch:
        watch.answers_more(3)
        watch.interrupted()

    assert set(watch.out.splitlines()) == {"c01"}


def test_an_unchanged_remark_is_said_once(fleet: FleetLog) -> None:
    with watching(fleet, "claims", "list", "--instance", "no body", "-o", "jsonl") as watch:
        watch.until(lambda seen: "`claimlog timeline 'instance/no body'` says" in seen.err)
        time.sleep(0.5)
        before = watch.err
        fleet.audit("c02")
        watch.until(lambda seen: seen.err != before)
        watch.interrupted()

    cuts = re.findall(r"^cut:\S+$", watch.err, re.MULTILINE)
    assert before.count("nothing is held for instance/no body") == watch.err.count("nothing is held") == 1
    assert before.count("cut:") == 1
    assert len(cuts) == len(set(cuts)) == watch.err.count("cut:")


def test_a_log_that_is_away_meanwhile_is_waited_for_and_that_is_said_once(fleet: FleetLog) -> None:
    fleet.log.close()
    with watching(fleet, "nodes", "-o", "json") as watch:
        watch.answers_more(1)
        away = fleet.path.rename(fleet.path.with_suffix(".away"))
        watch.until(lambda seen: "asked again every 0.05 s" in seen.err)
        time.sleep(0.5)
        away.rename(fleet.path)
        watch.answers_more(1)
        code = watch.interrupted()

    assert code == 130
    assert watch.err.count("\n") == 1
    assert watch.err.startswith("claimlog: ")


def test_a_log_that_is_not_there_when_a_watch_begins_is_no_watch(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.spec += ".none"

    assert fleet.run(capsys, "nodes", "-w").code == 5


def test_what_else_is_wrong_meanwhile_ends_a_watch_with_its_exit_code(fleet: FleetLog) -> None:
    fleet.log.close()
    with watching(fleet, "nodes", "-o", "json") as watch:
        watch.answers_more(1)
        garbage = fleet.path.with_suffix(".garbage")
        garbage.write_bytes(b"no log at all" * 1000)
        garbage.rename(fleet.path)
        code = watch.process.wait(PATIENCE_SECONDS)

    assert code == 1
    assert watch.err.startswith("claimlog: ")


def test_a_watch_ends_with_0_when_nobody_reads_it_any_more(fleet: FleetLog) -> None:
    with subprocess.Popen(command(fleet, "nodes", interval="3600"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
            code = process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()

    assert code == 0


class Terminal:
    """A watch on a terminal, and what it has sent there."""

    def __init__(self, process: subprocess.Popen[bytes], reads: int) -> None:
        self.process, self._reads, self._seen = process, reads, b""

    @property
    def frames(self) -> list[str]:
        """What stood before, and each answer, as they were sent; the last one may not be whole."""
        return self._seen.decode(errors="replace").replace("\r\n", "\n").split("\x1b[H")

    def lines(self, *, of: int, having: str = "") -> list[str]:
        """The lines that stand there with that answer, or a later one that has this text; the last one is the cursor's."""
        while len(self.frames) < of + 2 or having not in self.frames[-1] or not self.frames[-1].endswith("\x1b[J"):
            self._seen += os.read(self._reads, 65536)
        return re.sub(r"\x1b\[[\d;]*[mKJ]", "", self.frames[-1]).split("\n")


@contextmanager
def on_a_terminal(fleet: FleetLog, *words: str, rows: int, columns: int) -> Iterator[Terminal]:
    """`claimlog WORDS -w` on a terminal of that size."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}} | {"TERM": "xterm"}
    with subprocess.Popen(command(fleet, *words), stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


def test_on_a_terminal_a_table_takes_the_place_of_the_last_one(fleet: FleetLog) -> None:
    with on_a_terminal(fleet, "nodes", "-c", "node", "-c", "status", rows=24, columns=100) as terminal:
        lines = terminal.lines(of=2)
        terminal.process.send_signal(signal.SIGINT)
        code = terminal.process.wait(PATIENCE_SECONDS)

    assert code == 130
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\S+Z, again every 0.05 s until interrupted", lines[0])
    assert [line.rstrip() for line in lines[1:3]] == ["node  status", "c01   enabled"]
    assert lines[3].startswith("cut:")
    assert lines[4:] == [""]
    # What stood there is scrolled up once, and never again.
    assert terminal.frames[0].endswith("\n" * 23)
    assert terminal.frames[1].count("\n") == terminal.frames[2].count("\n") == 4


def test_what_a_terminal_has_no_room_for_is_counted_and_never_scrolls(fleet: FleetLog) -> None:
    for number in range(30):
        fleet.audit(f"n{number:02}")

    with on_a_terminal(fleet, "nodes", "-c", "node", rows=10, columns=60) as terminal:
        lines = terminal.lines(of=1)

    rows = sum(max(1, -(-len(line) // 60)) for line in lines)
    shown = [line for line in lines if re.fullmatch(r"c01|n\d\d", line)]
    assert rows == 10
    assert f"... {31 - len(shown)} lines more" in lines


def test_of_a_timeline_that_a_terminal_has_no_room_for_the_end_is_shown_with_what_comes(fleet: FleetLog) -> None:
    for number in range(30):
        fleet.lived("c01", f"g{number}", 512)

    with on_a_terminal(fleet, "timeline", "node/c01", "-c", "event", "-c", "memory used", rows=12, columns=60) as terminal:
        terminal.lines(of=1)
        fleet.lived("c01", "late", 1024)
        lines = terminal.lines(of=2, having="18.5 GiB")

    entries = [line for line in lines if line.endswith("GiB")]
    assert sum(max(1, -(-len(line) // 60)) for line in lines) == 12
    assert lines[1].split() == ["event", "memory", "used"]
    assert lines[2] == f"... {34 - len(entries)} lines before"
    assert lines[3 : 3 + len(entries)] == entries
    assert entries[-1].split() == ["instance-observed", "18.5", "GiB"]


def test_a_timeline_that_is_sorted_is_shown_from_its_beginning(fleet: FleetLog) -> None:
    for number in range(30):
        fleet.lived("c01", f"g{number}", 512)

    with on_a_terminal(fleet, "timeline", "node/c01", "-c", "event", "--sort", "-time_ms", rows=12, columns=60) as terminal:
        lines = terminal.lines(of=1)

    assert any(re.fullmatch(r"\.\.\. \d+ lines more", line) for line in lines)


def test_on_a_terminal_the_last_answer_stays_while_the_log_is_away(fleet: FleetLog) -> None:
    with on_a_terminal(fleet, "nodes", "-c", "node", rows=24, columns=100) as terminal:
        terminal.lines(of=1)
        fleet.path.rename(fleet.path.with_suffix(".away"))
        lines = terminal.lines(of=2, having="asked again every 0.05 s")

    assert [line.rstrip() for line in lines[1:3]] == ["node", "c01"]
    assert lines[3].startswith("cut:")
    assert lines[4].startswith("claimlog: ")


def test_lines_for_programs_follow_each_other_on_a_terminal_too(fleet: FleetLog) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(command(fleet, "nodes", "-o", "jsonl"), stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        try:
            seen = b""
            while seen.count(b"\n") < 2:
                seen += os.read(ours, 65536)
        finally:
            process.kill()
            os.close(ours)

    assert b"\x1b" not in seen
    assert json.loads(seen.splitlines()[0])["node_id"] == "c01"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nodes", "-w", "--at", "2025-11-21T09:09:10Z"], "--at and --watch do not go together"),
        (["claims", "list", "-w", "--at", "1763716150"], "--at and --watch do not go together"),
        (["timeline", "i-77", "-w", "--until", "2025-11-22"], "--until and --watch do not go together"),
        (["nodes", "--interval", "5"], "--interval goes with --watch"),
        (["nodes", "-w", "--interval", "0"], "--interval 0: expected more than 0 and at most 86400 seconds"),
        (["nodes", "-w", "--interval", "nan"], "'nan' is no length of time"),
        (["leaks", "-w", "--heal", "--yes"], "leave out --explain, --at and --watch"),
        (["capacity", "-", "-w"], "- is stdin, which can be read once only"),
        (["nodes", "-w", "-c", "nonsense"], "there is no column 'nonsense'"),
        (["node", "show", "nowhere", "-w"], "nowhere"),
    ],
)
def test_a_watch_of_what_does_not_change_or_is_not_there_is_refused(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    said = fleet.run(capsys, *words)

    assert (said.code, said.out) == (2, "")
    assert says in said.err


@pytest.mark.parametrize("verb", [*VERBS, ("events",)], ids=" ".join)
@pytest.mark.parametrize(("log", "says"), [("copy.jsonl", "nothing is added to copy.jsonl"), ("-", "stdin is read to its end")])
def test_a_watch_of_a_log_that_never_grows_is_refused(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...], log: str, says: str
) -> None:
    fleet.spec = log

    said = fleet.run(capsys, *verb, "-w")

    assert (said.code, said.out) == (2, "")
    assert f"--watch: {says}" in said.err


def test_a_log_of_the_environment_that_never_grows_is_refused_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLAIMLOG_LOG", "copy.jsonl")

    assert (run(["nodes", "-w"]), "nothing is added to copy.jsonl" in capsys.readouterr().err) == (2, True)


def test_a_moment_that_moves_on_can_be_watched(fleet: FleetLog) -> None:
    with watching(fleet, "nodes", "--at", "-1h", "-o", "json") as watch:
        watch.answers_more(2)
        assert watch.interrupted() == 130
