"""From `--log` to a log."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from streams.cli.exits import Exit, exit_of
from streams.cli.main import run
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import ENVIRONMENT, open_log
from streams.log.base import LogReadOnly, LogUnreachable, Message, TopicSpec

NOTHING = io.BytesIO()


def test_an_sqlite_log_is_made_when_asked_for_and_opened_from_the_environment(tmp_path: Path) -> None:
    spec = f"sqlite:{tmp_path / 'fleet.sqlite'}"
    with open_log(spec, {}, NOTHING, create=True) as log:
        log.create([TopicSpec("claims", 1)])
        log.append([Message("claims", b"c01", b"{}")])

    with open_log(None, {ENVIRONMENT: spec}, NOTHING) as log:
        assert [record.value for record in log.read("claims", 0, 0)] == [b"{}"]


def test_the_flag_outranks_the_environment(tmp_path: Path) -> None:
    with open_log(f"sqlite:{tmp_path / 'a.sqlite'}", {ENVIRONMENT: "nonsense"}, NOTHING, create=True) as log:
        assert dict(log.topics()) == {}


def test_a_log_that_is_not_there_is_unreachable_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(LogUnreachable) as raised:
        open_log(f"sqlite:{tmp_path / 'none.sqlite'}", {}, NOTHING)

    assert exit_of(raised.value) == Exit.UNREACHABLE
    assert list(tmp_path.iterdir()) == []


LINE = b'{"topic":"claims","partition":1,"offset":0,"ts":1795257727113,"key":"c01","payload":"{}","headers":[]}\n'


def test_lines_of_kcat_are_a_log_from_a_file_and_from_stdin(tmp_path: Path) -> None:
    file = tmp_path / "claims.jsonl"
    file.write_bytes(LINE)

    for spec, stdin in ((str(file), NOTHING), ("-", io.BytesIO(LINE))):
        with open_log(spec, {}, stdin) as log:
            (record,) = log.read("claims", 1, 0)
            assert (record.key, record.value, record.time_ms) == (b"c01", b"{}", 1_795_257_727_113)
            with pytest.raises(LogReadOnly):
                log.append([Message("claims", b"c01", b"{}")])


@pytest.mark.parametrize("name", ["none.jsonl", "folder.jsonl"])
def test_a_file_that_cannot_be_read_is_unreachable(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.jsonl").mkdir()

    with pytest.raises(LogUnreachable, match=f"{name} cannot be read: "):
        open_log(str(tmp_path / name), {}, NOTHING)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (None, "which log\\? Pass --log .*CLAIMLOG_LOG"),
        ("", "--log '' is no log: pass .* or leave it out for CLAIMLOG_LOG"),
        ("kafka://broker", "broker is no broker's HOST:PORT"),
        ("kafka:broker:9092", "the address of a Kafka log is kafka://HOST:PORT"),
        ("kafka://broker:9092/a.b", "prefix 'a.b' may have letters"),
        ("kafka://broker:9092?acks=1", "acks cannot be changed"),
        ("kafka://broker:9092?no.such.setting=1", "no.such.setting"),
        ("fleet.sqlite", "write sqlite:fleet.sqlite"),
        ("http://x", "is no log: pass sqlite:PATH"),
        ("sqlite:", "sqlite:PATH"),
        ("sqlite::memory:", "sqlite::memory: is no file, and nobody else would see what is in it; write sqlite:PATH"),
        ("sqlite://fleet.sqlite", "write sqlite:fleet.sqlite, or sqlite:/fleet.sqlite"),
        ("sqlite:~/fleet.sqlite", "write sqlite:.HOME/fleet.sqlite"),
        ("me@fleet.sqlite", "write sqlite:me@fleet.sqlite"),
        ("me:hunter2@fleet", "^--log [.][.][.]@fleet is no log"),
    ],
)
def test_what_names_no_log_is_a_usage_problem_with_the_way_out(spec: str | None, message: str) -> None:
    with pytest.raises(UsageProblem, match=message) as raised:
        open_log(spec, {}, NOTHING)

    assert exit_of(raised.value) == Exit.USAGE


@pytest.mark.parametrize("slashes", ["", "//"])
def test_a_path_from_the_root_may_have_the_slashes_of_an_address(slashes: str, tmp_path: Path) -> None:
    with open_log(f"sqlite:{slashes}{tmp_path / 'fleet.sqlite'}", {}, NOTHING, create=True):
        pass

    assert (tmp_path / "fleet.sqlite").exists()


def test_a_hyphen_reaches_the_log_through_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINE)))

    assert run(["events", "--log", "-", "-o", "value", "-c", "position"]) == 0
    assert capsys.readouterr().out == "claims/1@0\n"
