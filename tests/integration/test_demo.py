"""The demonstration, as somebody runs it who has just cloned the project; and the commands that it prints at its end."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schemas.topics import CLAIMS, REQUESTS
from streams.cli.demo.stage import FACTOR, Stage
from streams.log import sqlite_wal
from streams.log.base import Message
from streams.log.sqlite import SqliteLog
from tests.faults.harness import until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(sys.executable).with_name("claimlog")


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=90)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    # The command stands where people may have it: in a folder with a space in its name.
    script = folder / "my tools" / "claimlog"
    script.parent.mkdir()
    script.symlink_to(SCRIPT)
    ended = run([str(script), "demo", "--seed", "7"], folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder, ended.stdout


def shape(line: str) -> str:
    """A line without what differs between two runs: amounts, times, ids, zones, how many leaks, and which schedulers it was."""
    line = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", line)
    line = re.sub(r"\bs\d( and s\d)?\b", "SCHEDULER", line)
    line = re.sub(r"\b((\d+(ms|[smh]))+\b ?)+", "AGO ", line)
    line = re.sub(r"\d[\d,.:TZ-]*( [MGT]iB)?", "0", line)
    line = re.sub(r"\b(east|west)\b", "ZONE", line).replace("without them", "without it")
    return " ".join(re.sub(r"\b(claim|leak|vCPU)s\b", r"\1", line).split())


def test_what_the_readme_shows_of_the_demo_is_what_it_prints(story: tuple[Path, str]) -> None:
    _, text = story
    told = (ROOT / "README.md").read_text().split("## What the demo shows")[1].split("```console")[0]
    shown = [line for block in re.findall(r"```\n(.*?)```", told, re.DOTALL) for line in block.splitlines()]

    printed = {shape(line) for line in text.splitlines()}

    assert len(shown) > 12
    assert [line for line in shown if shape(line) not in printed] == []


def test_nothing_is_over_committed_and_nothing_placed_twice_although_a_scheduler_was_killed(story: tuple[Path, str]) -> None:
    _, text = story

    placed = re.search(r"(\d+) placed, (\d+) refused; (\d+) claims granted, 0 over-committed", text)
    killed = re.search(r"s2 killed \(SIGKILL\) with (\d+) claims? in flight: finished by (s1|s3|s1 and s3), 0 placed twice", text)

    assert placed is not None
    assert int(placed[1]) > 40
    assert killed is not None
    assert int(killed[1]) >= 1


def test_all_nodes_add_up_but_the_one_with_the_leak(story: tuple[Path, str]) -> None:
    _, text = story
    table = text.split("one line does not add up:")[1].split("\n5. ")[0]

    rows = re.findall(r"^compute-\d\d .*", table, re.MULTILINE)

    assert len(rows) == 12
    assert sum("+" in row for row in rows) == 1


def test_the_refusal_is_explained_by_numbers_that_add_up_and_the_leak_that_would_make_room(story: tuple[Path, str]) -> None:
    _, text = story
    why = text.split("\n5. ")[1].split("\n6. ")[0]

    assert re.search(r"12 = 12 rejected \+ 0 left", why)
    assert "made again, it gives the same choice" in why
    closest = re.search(r"closest: (compute-\d\d), if", why)
    assert closest is not None
    assert re.search(rf"1 leak on {closest[1]} holds .*without (it|them) the request would fit there", why)


def test_the_leak_is_told_event_by_event_with_the_one_that_is_missing(story: tuple[Path, str]) -> None:
    _, text = story
    leak = text.split("\n6. ")[1].split("\n7. ")[0]

    assert len(re.findall(r"claims/\d@\d+", leak)) >= 4
    assert re.search(r"missing +InstanceDeparted or InstanceDeleted of", leak)
    assert "The finding is resolved" in text


def test_the_first_line_names_the_log_and_the_last_says_that_all_held(story: tuple[Path, str]) -> None:
    _, text = story
    lines = text.splitlines()

    assert lines[0].endswith("demo-data/ledger.sqlite")
    assert re.fullmatch(r"All of it held, in \d+ s\.", lines[-1])


def test_the_commands_to_paste_work_as_printed_on_the_log_that_was_left(story: tuple[Path, str]) -> None:
    folder, text = story
    commands = re.findall(r"^  (\S.*)$", text.split("Try these")[1], re.MULTILINE)

    codes = {command: run(shlex.split(command), folder).returncode for command in commands}

    assert len(commands) >= 5
    assert set(codes.values()) <= {0, 3, 4}, codes


def test_a_fleet_with_many_large_nodes_leaves_none_empty_that_would_take_what_the_leak_hinders(tmp_path: Path) -> None:
    ended = run([str(SCRIPT), "demo", "--seed", "5"], tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"5\. A request for \d+ GiB was refused", ended.stdout)
    assert re.search(r"12 = 12 rejected \+ 0 left", ended.stdout)


def test_on_the_log_that_was_left_every_node_adds_up_again(story: tuple[Path, str]) -> None:
    folder, _ = story

    shown = run([str(SCRIPT), "nodes", "-o", "json", "--log", "sqlite:demo-data/ledger.sqlite"], folder)

    gaps = [node[resource]["gap"] for node in json.loads(shown.stdout)["items"] for resource in ("vcpus", "memory_mib", "disk_mib")]
    assert len(gaps) == 36
    assert set(gaps) <= {0, None}


def test_a_machine_that_takes_many_times_as_long_does_not_run_ahead_of_the_present(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "ledger.sqlite", seed=7, nodes=2)
    stage.close()

    shown_ms = stage.clock.wall_ms()

    assert shown_ms + 50_000 * FACTOR < time.time_ns() // 1_000_000


def test_on_a_slow_disk_a_scheduler_is_caught_before_the_claims_it_made_are_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path / "ledger.sqlite", seed=7, nodes=2)
    synced: list[int] = []
    monkeypatch.setattr(sqlite_wal, "_to_disk", synced.append)

    with SqliteLog.open(stage.path) as scheduler:
        stage.append([Message(REQUESTS, b"no", b"request", (), 0)])
        scheduler.append_early([Message(CLAIMS, b"no", b"claim", (), 0)])
        stage.read()

    assert stage.ledgers[0].next_offset == stage.log.end(CLAIMS, 0)
    assert synced == []
    stage.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_whose_terminal_is_closed_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen([SCRIPT, "demo", "--seed", "7"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: len(of(demo.pid)) >= 2, 60.0, "the demo has started processes")
    started = of(demo.pid)

    demo.send_signal(number)

    assert demo.wait(60) == 128 + number
    until(lambda: not [pid for pid in started if Path(f"/proc/{pid}").exists()], 30.0, "they have ended")


def of(parent: int) -> list[int]:
    """The processes that one has started."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
