"""How a command ends."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from streams.cli.exits import Exit, exit_of, guarded
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.log.base import LogDamaged, LogFull, LogUnreachable, OffsetOutOfRange, TopicMismatch


def raising(problem: BaseException) -> tuple[int, str]:
    def run() -> int:
        raise problem

    said = io.StringIO()
    return guarded(run, said), said.getvalue()


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (UsageProblem("no column 'x'"), Exit.USAGE),
        (LogUnreachable("a.sqlite: there is no log"), Exit.UNREACHABLE),
        (OffsetOutOfRange("claims/0@0 is archived"), Exit.INCOMPLETE),
        (AnswerIncomplete("history before 2026-11-01 is archived"), Exit.INCOMPLETE),
        (LogDamaged("claims/0@7 is damaged"), Exit.ERROR),
        (LogFull("the disk is full"), Exit.ERROR),
        (TopicMismatch("claims has 12 partitions"), Exit.ERROR),
    ],
)
def test_what_somebody_can_do_something_about_is_one_line(problem: Exception, code: Exit) -> None:
    assert raising(problem) == (code, f"claimlog: {problem}\n")


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (OSError(28, "No space left on device"), "claimlog: No space left on device\n"),
        (FileNotFoundError(2, "No such file or directory", "/proc/x"), "claimlog: /proc/x: No such file or directory\n"),
        (OSError("the port is taken"), "claimlog: the port is taken\n"),
    ],
)
def test_what_the_machine_refuses_is_no_mistake_of_ours(problem: OSError, line: str) -> None:
    assert raising(problem) == (Exit.ERROR, line)


def test_a_mistake_of_ours_is_shown_with_its_place() -> None:
    code, said = raising(KeyError("vcpus"))

    assert code == Exit.ERROR
    assert "Traceback" in said
    assert "KeyError: 'vcpus'" in said
    assert "please report" in said


def test_a_lack_of_memory_is_no_mistake_of_ours() -> None:
    assert raising(MemoryError()) == (
        1, "claimlog: out of memory; allow this process more (`ulimit -v`, its container's limit), or ask for less at once\n"
    )  # fmt: skip


def test_an_interrupt_ends_with_130_and_a_reader_that_has_gone_is_no_error() -> None:
    assert raising(KeyboardInterrupt()) == (130, "")
    assert exit_of(BrokenPipeError()) == Exit.DONE


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (Exit.FINDINGS, 3), (4, 4)])
def test_a_verb_returns_its_exit_code_or_nothing(returned: int | None, code: int) -> None:
    assert guarded(lambda: returned, io.StringIO()) == code


def test_a_reader_that_stops_early_hears_no_complaint() -> None:
    many = "import sys\nfrom streams.cli.exits import guarded\nsys.exit(guarded(lambda: print('line\\n' * 500_000), sys.stderr))"
    process = subprocess.Popen([sys.executable, "-c", many], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None

    with process:
        first = process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()

    assert (first, said, process.returncode) == ("line\n", "", 0)


def test_what_an_answer_means_stands_even_if_its_reader_did_not_stay() -> None:
    refused = "import sys\nfrom streams.cli.exits import guarded\nsys.stdin.read()\nsys.exit(guarded(lambda: print('no') or 4, sys.stderr))"
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    process = subprocess.Popen([sys.executable, "-c", refused], stdin=-1, stdout=-1, stderr=-1, text=True, env=buffered)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None

    with process:
        process.stdout.close()
        process.stdin.close()
        said = process.stderr.read()

    assert (said, process.returncode) == ("", 4)


@pytest.mark.parametrize("device", ["/dev/full", "a pipe that nobody reads"])
def test_what_cannot_be_told_on_stderr_changes_no_exit_code(device: str) -> None:
    told = (
        "import sys\nfrom streams.cli import main\nfrom streams.cli.exits import guarded\nmain._speak_utf8()\n"
        "sys.exit(guarded(lambda: print('waiting for room', file=sys.stderr, flush=True) or 3, sys.stderr))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    stderr = os.open(device, os.O_WRONLY) if device == "/dev/full" else os.dup(writer)

    process = subprocess.run([sys.executable, "-c", told], stderr=stderr, check=False)
    os.close(stderr)
    os.close(writer)

    assert process.returncode == 3
