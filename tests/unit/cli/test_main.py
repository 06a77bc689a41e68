"""The command: overview, dispatch, and what is not imported."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from streams.cli.main import VERBS, Verb, overview, run
from tests.cli_log import FleetLog

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("confluent_kafka", "faust", "mode", "rocksdict", "apsw", "numpy", "rich", "cyclopts", "prometheus_client", "libvirt", "msgspec")
# A verb's own module may parse arguments and read messages; the rest it imports when it runs.
HEAVY_FOR_VERBS = ("confluent_kafka", "faust", "mode", "rocksdict", "apsw", "numpy", "prometheus_client", "libvirt")


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=os.environ | environment)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, verbs: tuple[Verb, ...] = VERBS) -> tuple[int, str, str]:
    code = run(arguments, verbs)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def greet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Verb, ...]:
    (tmp_path / "greeting_verbs.py").write_text(
        "import sys\n"
        "from cyclopts import App\n"
        "from streams.cli.flags import SHOW, MomentFlag, Show\n"
        "from streams.cli.printed.output import Report, Column, write\n"
        "def greet(*names: str, at: MomentFlag = 'now', show: Show = SHOW) -> int:\n"
        "    '''Greet people.'''\n"
        "    items = [{'name': name, 'at': at} for name in names]\n"
        "    write(Report(columns=[Column(name='name'), Column(name='at')], items=items), show.style(sys.stdout), sys.stdout, sys.stderr)\n"
        "    return 3\n"
        "def wait() -> None:\n"
        "    raise KeyboardInterrupt\n"
        "group = App(name='group')\n"
        "group.command(greet, name='all')\n"
        "group.command(wait)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tuple(Verb(name, f"greeting_verbs:{name}", "says hello") for name in ("greet", "group", "wait"))


def test_the_overview_names_every_verb_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "--help")

    assert (code, err) == (0, "")
    assert all(re.search(rf"^  {re.escape(verb.name)}  ", out, re.MULTILINE) and verb.says in out for verb in VERBS)
    assert "0 done, 1 error, 2 usage, 3 findings, 4 cannot be placed, 5 log unreachable, 6 answer incomplete, 130 interrupted" in out
    assert said(capsys)[1] == said(capsys, "-h")[1] == out == overview(VERBS)


def test_help_of_a_verb_is_what_the_verb_says_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [said(capsys, "help", "claims", "hold"), said(capsys, "help", "node"), said(capsys, "help", "nosuch")]

    assert asked[:2] == [said(capsys, "claims", "hold", "--help"), said(capsys, "node", "--help")]
    assert (asked[2][0], asked[2][1]) == (2, "")
    for beside in ((), ("--help",), ("-h",), ("-X", "a=b"), ("help",)):
        assert said(capsys, "help", *beside) == said(capsys, "--help")
    assert said(capsys, "-X", "a=b") == said(capsys, "-X", "a=b", "--help") == said(capsys)


def test_the_overview_fits_a_terminal() -> None:
    assert max(len(line) for line in overview(VERBS).splitlines()) <= 130
    assert len({verb.name for verb in VERBS}) == len(VERBS)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom streams.cli.main import run\nassert run(['--help']) == 0\n"
        "print('LOADED', *(name for name in sys.argv[1:] if name in sys.modules))"
    )
    helped = python(code, *(name for name in HEAVY if name != "msgspec"))

    assert helped.returncode == 0, helped.stderr
    assert helped.stdout.splitlines()[-1] == "LOADED"


def test_no_verb_imports_anything_heavy_before_it_runs() -> None:
    code = (
        "import sys, importlib\nfrom streams.cli.main import VERBS\nseen = set()\n"
        "for verb in VERBS:\n"
        "    importlib.import_module(verb.target.partition(':')[0])\n"
        "    new = {n for n in sys.argv[1:] if n in sys.modules} - seen\n"
        "    seen |= new\n"
        "    if new: print(verb.name, 'imports', *sorted(new))\n"
    )
    imported = python(code, *HEAVY_FOR_VERBS)

    assert (imported.returncode, imported.stdout) == (0, ""), imported.stderr


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_each_verb_exists_and_explains_itself(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    module, _, name = verb.target.partition(":")

    code, out, _ = said(capsys, verb.name, "--help")

    assert callable(getattr(importlib.import_module(module), name))
    assert code == 0
    assert f"Usage: claimlog {verb.name}" in out


def test_the_version_is_that_of_the_distribution() -> None:
    shown = python("from streams.cli.main import main; main()", "--version")

    assert shown.returncode == 0
    assert re.fullmatch(r"claimlog (\d+\.\d+\.\d+\S*|\(a checkout .*\))\n", shown.stdout)


@pytest.mark.parametrize("columns", ["0", "9" * 20])
def test_help_comes_to_an_end_where_the_terminal_has_no_width(columns: str) -> None:
    """Set for the command alone: pytest would write its own lines so wide."""
    shown = python("from streams.cli.main import main; main()", "schemas", "--help", COLUMNS=columns)

    assert shown.returncode == 0
    assert "Usage: claimlog schemas" in shown.stdout


def test_help_comes_to_an_end_in_a_terminal_of_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 1, 0, 0))
    command = [sys.executable, "-m", "streams.cli.main", "schemas", "--help"]

    ran = subprocess.run(command, cwd=ROOT, stdin=its, stdout=subprocess.PIPE, text=True, timeout=60)

    os.close(ours)
    os.close(its)
    assert ran.returncode == 0
    assert "Usage: claimlog" in ran.stdout


def test_a_verb_gets_its_arguments_and_gives_its_exit_code(greet: tuple[Verb, ...], capsys: pytest.CaptureFixture[str]) -> None:
    values = ["-o", "value", "-c", "at", "-c", "name"]

    assert said(capsys, "greet", "ada", "bob", "--at", "-2h", *values, verbs=greet) == (3, "-2h\tada\n-2h\tbob\n", "")
    assert said(capsys, "group", "all", "ada", "--sort", "-name", "--no-headers", verbs=greet) == (3, "ada  now\n", "")


def test_an_interrupt_within_a_verb_ends_with_130(greet: tuple[Verb, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "wait", verbs=greet) == (130, "", "")
    assert said(capsys, "group", "wait", verbs=greet) == (130, "", "")


@pytest.mark.parametrize(("leaves", "taken_apart"), [(True, ""), (False, "python was taken apart\n")], ids=["a thread", "nothing"])
def test_python_is_not_taken_apart_beneath_a_thread_that_a_verb_could_not_call_back(leaves: bool, taken_apart: str) -> None:
    program = (
        "import atexit, sys, threading\n"
        "from streams.cli import main\n"
        "atexit.register(print, 'python was taken apart')\n"
        f"leave = threading.Thread(target=threading.Event().wait, daemon=True).start if {leaves} else int\n"
        "main.run = lambda _: (leave(), print('said'), sys.stdout.flush(), 7)[-1]\n"
        "main.main()"
    )

    ran = python(program)

    assert (ran.returncode, ran.stdout, ran.stderr) == (7, f"said\n{taken_apart}", "")


@pytest.mark.parametrize("failure", ["SystemError('returned a result with an exception set')", "RuntimeError('release unlocked lock')"])
@pytest.mark.parametrize("is_interrupted", [True, False])
def test_an_interrupt_that_a_client_lost_is_one_and_without_it_the_failure_is_ours(failure: str, is_interrupted: bool) -> None:
    program = (
        "import signal, sys\n"
        "from contextlib import suppress\n"
        "from streams.cli import main\n"
        "def called(*_):\n"
        "    with suppress(KeyboardInterrupt):\n"
        f"        signal.raise_signal(signal.SIGINT) if {is_interrupted} else None\n"
        f"    raise {failure}\n"
        "main._called = called\n"
        "main.main()"
    )

    ran = python(program, "nodes")

    assert (ran.returncode, "this is a mistake in claimlog" in ran.stderr) == ((130, False) if is_interrupted else (1, True))


def test_an_interrupt_while_python_ends_comes_too_late() -> None:
    program = (
        "import atexit, signal\n"
        "from streams.cli import main\n"
        "atexit.register(signal.raise_signal, signal.SIGINT)\n"
        "main.run = lambda _: 3\n"
        "main.main()"
    )

    ran = python(program)

    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "", "")


def test_an_interrupt_before_a_verb_begins_ends_with_130_too() -> None:
    interrupts = (
        "import sys\n"
        "from streams.cli.main import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, *_):\n"
        "        raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "main()"
    )

    ran = python(interrupts, "nodes")

    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_an_interrupt_while_the_command_itself_is_imported_ends_with_130_too() -> None:
    interrupts = (
        "import signal, sys\n"
        "from streams.cli.entry import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == sys.argv[1]:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "main()"
    )

    for module in ("streams.cli.main", "streams.cli.printed.stdout"):
        ran = python(interrupts, module)

        assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")
    whole = python("from streams.cli.entry import main; main()", "--version")
    assert (whole.returncode, whole.stdout[:9]) == (0, "claimlog ")


def test_an_interrupt_within_an_import_comes_after_it(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nprint('imported')\n")
    imports = (
        "import signal, sys\n"
        "from streams.cli.interrupts import imports_spared\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "with imports_spared():\n"
        "    import interrupted\n"
        "    signal.pause()"
    )

    ran = python(imports, str(tmp_path))

    assert (ran.returncode, ran.stdout) == (-signal.SIGINT, "imported\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gret"], 'Unknown command "gret". Did you mean "greet"'),
        (["--colour", "greet"], "a verb comes first and its flags behind it: claimlog nodes --colour …\nSee: claimlog --help"),
        (["greet", "--colour"], "Unknown option: --colour"),
        (["greet", "-o", "xml"], 'Invalid value "xml" for -o'),
        (["greet", "x", "-c", "nam"], "there is no column 'nam'; there are: name, at"),
        (["group", "al"], 'Unknown command "al"'),
        (["greet", "-", "--log", "-"], "- stands there more than once, and stdin is one thing only"),
    ],
)
def test_a_wrong_command_line_exits_2_and_says_what_is_right(
    greet: tuple[Verb, ...], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = said(capsys, *arguments, verbs=greet)

    assert (code, out) == (2, "")
    assert err.startswith("claimlog: ")
    assert message in err


def test_stdout_of_a_wrong_command_line_is_empty_when_run_as_a_process() -> None:
    ran = python("from streams.cli.main import main; main()", "nodez")

    assert (ran.returncode, ran.stdout) == (2, "")
    assert "See: claimlog --help" in ran.stderr


def test_every_verb_of_a_verb_has_a_line_of_help_in_the_list_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {}
    for name in ("node", "produce", "snapshot"):
        assert run([name, "--help"]) == 0
        listed[name] = capsys.readouterr().out

    assert re.findall(r"^│ [\w-]+ +│$", "".join(listed.values()), re.MULTILINE) == []
    assert "close-home" in listed["node"]
    assert "libvirt" in listed["produce"]


@pytest.mark.parametrize(
    ("line", "see"),
    [
        ("claims release x --reason r", "claimlog claims release --help"),
        ("node retire", "claimlog node retire --help"),
        ("nodes --nosuch", "claimlog nodes --help"),
        ("claims nosuch", "claimlog claims --help"),
        ("nosuch", "claimlog --help"),
    ],
)
def test_a_wrong_command_line_names_the_help_of_its_own_command(line: str, see: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(line.split())

    assert code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"See: {see}"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_stream_that_the_caller_closed_is_no_mistake_and_takes_no_file(closed: str, tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    verb = f'"$0" -m streams.cli.main topics {{}} --log sqlite:{log}'
    command = f"{verb.format('apply')} {closed} && {verb.format('check')}"

    ran = subprocess.run(["sh", "-c", command, sys.executable], cwd=ROOT, capture_output=True, text=True)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("as needed") >= 12


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("verb", ["--version", "--help", "topics check", "topics --help", "schemas show claim-requested"])
def test_a_full_disk_behind_stdout_is_named_and_exits_1(verb: str, unbuffered: str, tmp_path: Path) -> None:
    log = f"sqlite:{tmp_path / 'log.db'}"
    assert run(["topics", "apply", "--log", log]) == 0
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "CLAIMLOG_LOG": log}

    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "streams.cli.main", *verb.split()], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, env=environ
        )

    assert (ran.returncode, ran.stderr) == (1, "claimlog: stdout: No space left on device\n")


def unread(log: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command whose output nobody reads, as that of `claimlog … | head -1` from the second line on."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "streams.cli.main", *arguments]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "CLAIMLOG_LOG": log}
    try:
        return subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, env=environ, timeout=60)
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("--help", 0), ("nodes --help", 0), ("schemas --help", 0), ("events -w", 0), ("what-if --vcpus 1", 4), ("topics check", 0)],
)
def test_an_answer_that_nobody_reads_to_its_end_keeps_its_exit_code(arguments: str, code: int, tmp_path: Path) -> None:
    log = f"sqlite:{tmp_path / 'log.db'}"
    assert run(["topics", "apply", "--log", log]) == 0

    ran = unread(log, *arguments.split())

    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr


def test_work_that_nobody_reads_about_is_done_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = f"sqlite:{tmp_path / 'log.db'}"
    assert run(["topics", "apply", "--ledger-partitions", "2", "--log", log]) == 0

    ran = unread(log, "snapshot", "write")

    assert ran.returncode == 0
    assert said(capsys, "snapshot", "list", "-o", "value", "-c", "partition", "--log", log)[1].splitlines()[-2:] == ["0", "1"]


def test_an_argument_that_is_no_text_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["explain", "caf\udce9", "--log", "sqlite:nowhere.db"])

    assert code == 2
    assert "'caf\\udce9' is no text in this locale" in capsys.readouterr().err


def test_an_answer_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    place = ["place", "--vcpus", "1", "--request", "\N{LATIN SMALL LETTER U WITH DIAERESIS}\N{MIDDLE DOT}", "--wait", "0s"]
    log = ["--log", f"sqlite:{tmp_path / 'log.db'}"]
    assert run(["topics", "apply", *log]) == 0
    assert run([*place, *log]) == 0
    latin = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}

    command = [sys.executable, "-m", "streams.cli.main", "events", "--topic", "placement-requests", "-o", "json", *log]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, env=latin)

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert json.loads(ran.stdout.decode())["items"][0]["key"] == "\N{LATIN SMALL LETTER U WITH DIAERESIS}\N{MIDDLE DOT}"


@pytest.mark.parametrize("log", ["sqlite:old", "old.jsonl", "-"])
def test_a_setting_of_kafkas_client_where_no_log_is_on_kafka_is_a_wrong_command_line(
    log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = (2, "", f"claimlog: -X is about Kafka, and the log is {log}; leave out -X\n")

    assert said(capsys, "nodes", "--log", log, "-X", "linger.ms=5") == refused
    assert said(capsys, "nodes", f"--log={log}", "-Xlinger.ms=5") == refused
    monkeypatch.setenv("CLAIMLOG_LOG", log)
    assert said(capsys, "copy", "new.jsonl", "-X", "linger.ms=5") == refused
    assert said(capsys, "nodes", "-X", "linger.ms=5", "--help")[0] == 0


@pytest.mark.parametrize(
    "line",
    [
        "copy kafka://b:0/new --log sqlite:LOG",
        "produce openstack --from kafka://b:0/nova --log sqlite:LOG",
        "nodes --log kafka://b:0/fleet",
    ],
)
def test_a_setting_of_kafkas_client_is_for_whichever_log_of_a_command_is_on_kafka(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = FleetLog(tmp_path)

    code, _, err = said(capsys, *line.replace("sqlite:LOG", ledger.spec).split(), "-X", "linger.ms=5")

    assert (code, "-X" in err, "port" in err) == (2, False, True)
