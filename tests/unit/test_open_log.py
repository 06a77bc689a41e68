"""From `--log` to a log."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from streams.cli.exits import Exit, UsageProblem, exit_of
from streams.cli.open_log import ENVIRONMENT, open_log
from streams.log.base import LogUnreachable, Message, TopicSpec

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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (None, "which log\\? Pass --log .*CLAIMLOG_LOG"),
        ("", "which log"),
        ("kafka://broker:9092", "no Kafka log yet"),
        ("fleet.sqlite", "write sqlite:fleet.sqlite"),
        ("http://x", "is no log: pass sqlite:PATH"),
        ("sqlite:", "sqlite:PATH"),
    ],
)
def test_what_names_no_log_is_a_usage_problem_with_the_way_out(spec: str | None, message: str) -> None:
    with pytest.raises(UsageProblem, match=message) as raised:
        open_log(spec, {}, NOTHING)

    assert exit_of(raised.value) == Exit.USAGE
