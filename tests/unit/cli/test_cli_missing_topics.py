"""A log without what is asked for says so: "nothing" would be an answer, and a wrong prefix would be green for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schemas import topics
from streams.log.base import TopicSpec
from streams.log.sqlite import SqliteLog
from tests.cli_log import START_MS, FleetLog

VERBS = [
    ("dead-letters", "list", "-o", "json"),
    ("dead-letters", "show", "dead-letters/0@0"),
    ("dead-letters", "redrive", "--all"),
    ("events", "-o", "json"),
    ("timeline", "node/c01"),
    ("explain", "r1"),
    ("what-if", "r1"),
    ("capacity",),
    ("archive", "old", "--below", "now"),
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_log_without_a_ledger_is_told_by_every_verb(verb: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = FleetLog(tmp_path, opened=False).run(capsys, *verb)

    assert (said.code, said.out) == (1, "")
    assert "this log has no ledger" in said.err


@pytest.fixture
def part(tmp_path: Path) -> FleetLog:
    """A ledger of which somebody deleted all topics but those that are folded."""
    fleet = FleetLog(tmp_path, opened=False)
    fleet.log.create([TopicSpec(topic, 2) for topic in topics.FOLDED])
    fleet.audit("c01", {})
    return fleet


@pytest.mark.parametrize(
    ("verb", "lacks"),
    [
        (VERBS[0], topics.DEAD_LETTERS),
        (VERBS[1], topics.DEAD_LETTERS),
        (VERBS[2], topics.DEAD_LETTERS),
        (("events", "--topic", topics.REQUESTS), topics.REQUESTS),
        (("explain", "r1"), f"{topics.REQUESTS}, {topics.RESULTS}"),
        (("capacity",), topics.REQUESTS),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_an_answer_that_would_need_a_missing_topic_is_none(
    part: FleetLog, verb: tuple[str, ...], lacks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = part.run(capsys, *verb)

    assert (said.code, said.out) == (6, "")
    assert f"{lacks} {'are' if ',' in lacks else 'is'} missing, so what stood there is not known; see `claimlog topics check`" in said.err


def test_an_answer_that_has_some_of_its_topics_names_the_others_and_exits_6(part: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    events, timeline = part.run(capsys, "events"), part.run(capsys, "timeline", "node/c01")

    assert (events.code, timeline.code) == (6, 6)
    assert "node-observed" in events.out
    assert f"topics {topics.REQUESTS}, " in events.err
    assert f"topics {topics.REQUESTS}, {topics.RESULTS}, {topics.FINDINGS} are missing" in timeline.err


def test_a_watch_names_what_it_lacks_before_it_waits_for_what_comes(part: FleetLog) -> None:
    part.audit("c01", {"ghost": 512})
    (number,) = [number for number in range(2) if part.log.end(topics.CLAIMS, number) > 1]
    part.log.truncate(topics.CLAIMS, number, 1)
    program = "import sys; from streams.cli.main import run; sys.exit(run(sys.argv[1:]))"
    flags = ["events", "-w", "--since", str(START_MS), "--log", part.spec]
    command, root = [sys.executable, "-c", program, *flags], Path(__file__).parents[3]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=root, env={**os.environ}) as watch:
        try:
            assert watch.stderr is not None
            lacks, late = watch.stderr.readline(), watch.stderr.readline()
            watch.send_signal(signal.SIGINT)
            code = watch.wait(timeout=10)
        finally:
            watch.kill()

    assert lacks.startswith(f"topics {topics.REQUESTS}, ")
    assert lacks.endswith("`claimlog topics check`; what comes there is waited for\n")
    assert late.startswith(f"at hand are records from claims/{number}@1 on only; set CLAIMLOG_ARCHIVE")
    assert code == 130


HIDING = [
    (("nodes",), topics.AUDITS),
    (("leaks",), topics.AUDITS),
    (("leaks",), topics.LIFECYCLE),
    (("capacity", "--vcpus", "1"), topics.RESULTS),
    (("what-if", "--vcpus", "1", "--count", "2"), topics.RESULTS),
    (("snapshot", "list"), topics.SNAPSHOTS),
    (("replay", "--verify"), topics.DIGESTS),
    (("replay", "--verify"), topics.NODE_RESOURCES),
]


@pytest.mark.parametrize(("verb", "hidden"), HIDING, ids=lambda each: " ".join(each) if isinstance(each, tuple) else each)
def test_an_answer_that_needs_what_is_hidden_from_this_user_is_none(
    verb: tuple[str, ...], hidden: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker does not tell of topics that a user may not describe: they seem not to be there."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"ghost": 512})
    whole = SqliteLog.topics
    seen = fleet.run(capsys, *verb)
    monkeypatch.setattr(SqliteLog, "topics", lambda log: {name: count for name, count in whole(log).items() if name != hidden})

    said = fleet.run(capsys, *verb)

    assert seen.code in {0, 3}
    assert (said.code, said.out) == (6, "")
    assert f"topic {hidden} is missing, so what stood there is not known" in said.err
