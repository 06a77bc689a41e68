"""`claimlog run`: what it refuses, that it ends when it is told to, and that it says how it is."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from schemas import topics
from streams.cli.main import run
from streams.cli.run import EngineName
from streams.cli.shadow import verb as shadow_verb
from streams.clock import wall_clock_ms
from streams.log.sqlite import SqliteLog
from streams.scheduling.select import ENGINES
from tests.cli_log import FleetLog


def test_until_idle_makes_a_ledger_works_through_it_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    code = run(["run", "--until-idle", "--ledger-partitions", "2", "--log", f"sqlite:{path}"])

    assert code == 0
    with SqliteLog.open(path) as log:
        assert log.ends(topics.CLAIMS) == {0: 1, 1: 1}
        assert sum(log.ends(topics.DIGESTS).values()) == 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--ledger-partitions", "0"], "expected 1 to 1024"),
        (["--ledger-partitions", "100000000"], "expected 1 to 1024"),
        (["--audit-interval", "0"], "--audit-interval: expected more than 0"),
        (["--audit-interval", "nan"], "'nan' is no length of time; write seconds, or one such as 45s, 10m or 1h30m"),
        (["--lease-timeout", "soon"], "'soon' is no length of time"),
        (["--recovery-deadline", "8d"], "--recovery-deadline: expected more than 0 and at most 604800 seconds, got 691200.0"),
        (["--lease-timeout", "nan"], "'nan' is no length of time"),
        (["--metrics", "99999"], "expected a port, 0 (any that is free) to 65535"),
        (["--metrics=-1"], "expected a port"),
        (["--metrics-address", "::1"], "--metrics-address ::1: nothing is served without --metrics PORT"),
        (["--metrics", "0", "--metrics-address", ""], "--metrics-address '': expected an address"),
        (["--name", "n" * 101], "expected at most 100 characters, got 101: claims' ids have it"),
        (["--metrics", "80.5"], "'80.5' is no whole number"),
        (["--engine", "best"], 'Choose from: "auto", "reference", "profiles", "first-fit"'),
        (["--policy", "no-such.toml"], "--policy:"),
        (["--clock", "x2"], "--clock:"),
        (["--only", "processor", "--policy", "pack"], "--policy: this process hosts the stream processor and places nothing"),
        (["--only", "processor", "--engine", "reference"], "it goes with `run --only scheduler`"),
        (["--only", "scheduler", "--state", "x"], "--state: this process hosts a scheduler, which keeps no tables"),
        (["--only", "scheduler", "--audit-interval", "30"], "--audit-interval: this process hosts a scheduler"),
        (["--only", "scheduler", "--recovery-deadline", "30"], "it goes with `run --only processor`"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_was_expected_and_makes_no_log(
    flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["run", "--until-idle", "--log", f"sqlite:{tmp_path / 'ledger.sqlite'}", *flags])

    assert code == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--policy", "pack"], "--policy: this process hosts the stream processor"),
        (["--lease-timeout", "30"], "--lease-timeout: a worker on Kafka is missed after 6 s in any case"),
        (["--only", "scheduler", "--lease-timeout", "2"], "--lease-timeout: on Kafka expected 6 to 1800 seconds"),
        (["--only", "scheduler", "--lease-timeout", "7200"], "what brokers take, got 7200"),
        (["-X", "session.timeout.ms=60000"], "session.timeout.ms cannot be changed here: a scheduler's is `run --lease-timeout`"),
        (["-X", "delivery.report.only.error=true"], "delivery.report.only.error cannot be changed"),
        (["-X", "stats_cb=1"], "stats_cb cannot be changed"),
        (["-X", "default.topic.config=1"], "default.topic.config cannot be changed"),
    ],
)
def test_what_a_process_on_a_cluster_cannot_use_is_refused_before_the_cluster_is_asked(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["run", "--log", "kafka://127.0.0.1:1", *flags])

    assert code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("asked", "code"), [("2", 0), ("4", 2)])
def test_other_partitions_than_the_ledger_has_are_refused(
    asked: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ["--log", f"sqlite:{tmp_path / 'ledger.sqlite'}"]
    assert run(["run", "--until-idle", "--ledger-partitions", "2", *log]) == 0

    assert run(["run", "--until-idle", "--ledger-partitions", asked, *log]) == code

    assert ("--ledger-partitions 4: claims has 2 here, and that never changes; leave it out" in capsys.readouterr().err) == (code == 2)


def test_a_state_folder_that_cannot_be_made_is_not_called_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")

    code = run(["run", "--until-idle", "--log", f"sqlite:{tmp_path / 'ledger.sqlite'}", "--state", str(tmp_path / "file" / "state")])

    said = capsys.readouterr().err
    assert code == 1
    assert "this folder of tables cannot be made: Not a directory; choose another" in said
    assert "delete" not in said


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["topics", "apply", "--ledger-partitions", "0"], "--ledger-partitions 0: expected 1 to 1024"),
        (["topics", "apply", "--request-partitions", "1.5"], "'1.5' is no whole number"),
        (["produce", "load", "--batch", "0"], "--batch 0: expected 1"),
        (["produce", "load", "--limit=-1"], "--limit -1: expected 0 or more"),
        (["produce", "load", "--nodes=-1"], "--nodes -1: expected 0 or more"),
        (["produce", "load", "--nodes=1000001"], "--nodes 1000001: expected at most 1000000"),
        (["produce", "load", "--speed", "nan"], "--speed nan: expected more than 0"),
        (["produce", "load", "--speed", "inf"], "--speed inf: expected more than 0"),
        (["produce", "load", "--interval", "inf"], "'inf' is no length of time"),
        (["produce", "trace", "--limit=-1"], "--limit -1: expected 0 or more"),
        (["produce", "trace", "--interval", "nan"], "'nan' is no length of time"),
    ],
)
def test_what_cannot_be_played_or_made_is_refused_before_a_log_is_made(
    flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ledger.sqlite"

    code = run([*flags, "--log", f"sqlite:{path}"])

    assert code == 2
    assert says in capsys.readouterr().err
    assert not path.exists()


def started(path: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "streams.cli.main", "run", "--log", f"sqlite:{path}", *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"])
def test_a_port_or_an_address_that_cannot_be_served_at_is_named_with_what_to_do(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        code = run(["run", "--log", f"sqlite:{tmp_path}/l.sqlite", "--metrics", port, "--metrics-address", address, "--until-idle"])

    said = capsys.readouterr().err
    assert code == 1
    assert f"claimlog: {address}:{port}: " in said
    assert "; name another port with --metrics (0: any that is free), or an address of this machine with --metrics-address" in said


def test_a_running_process_serves_its_metrics_and_ends_with_0_when_it_is_told_to(tmp_path: Path) -> None:
    process = started(tmp_path / "ledger.sqlite", "--metrics", "0")
    assert process.stderr is not None
    address = re.search(r"http://\S+(?=/metrics)", process.stderr.readline())
    assert address is not None

    deadline = time.monotonic() + 30
    while (ready := answered(f"{address[0]}/readyz")) != 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    with urlopen(f"{address[0]}/metrics") as page:
        text = page.read().decode()
    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 0
    process.stderr.close()
    assert ready == 200
    assert 'claimlog_projection_offset{partition="0"} 1.0' in text


def test_a_scheduler_says_at_its_start_what_of_its_policy_looks_at_every_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.toml").write_text('filters = ["TypeAffinityFilter"]\n[options]\nmax_instances_per_host = 9\n')
    started = ["run", "--until-idle", "--log", f"sqlite:{tmp_path / 'ledger.sqlite'}", "--policy", str(tmp_path / "p.toml")]

    told = []
    for engine in ("auto", "reference"):
        assert run([*started, "--engine", engine]) == 0
        told.append(capsys.readouterr().err)

    said = "every decision looks at every node, since TypeAffinityFilter reads the flavor of every instance (docs/policies.md)"
    assert [said in each for each in told] == [True, False]
    idle = "p.toml: max_instances_per_host is set and has no effect without NumInstancesFilter or AggregateNumInstancesFilter\n"
    assert [each.count(idle) for each in told] == [1, 1]


def test_who_hangs_in_a_policy_s_own_code_ends_when_told_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first SIGTERM waits for the turn to end; code that never returns would make it wait for ever."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})
    assert fleet.run(capsys, "place", "--memory", "1GiB", "--wait", "0s").code == 0
    hanging = "import time\n\ndef hangs(ask, room):\n    print('asked', flush=True)\n    while True:\n        time.sleep(0.1)\n"
    (tmp_path / "own_code.py").write_text(hanging)
    (tmp_path / "p.toml").write_text('filters = ["own_code:hangs"]\n')
    flags = ["--log", fleet.spec, "--only", "scheduler", "--policy", str(tmp_path / "p.toml")]
    command = [sys.executable, "-m", "streams.cli.main", "run", *flags]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        process.send_signal(signal.SIGTERM)

        assert process.wait(30) == -signal.SIGTERM


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_who_is_told_to_end_while_no_broker_answers_ends_as_the_signal_says(number: int, code: int) -> None:
    command = [sys.executable, "-m", "streams.cli.main", "run", "--log", "kafka://127.0.0.1:1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        status = Path(f"/proc/{process.pid}/status")
        deadline = time.monotonic() + 30
        while not _catches(status.read_text(), signal.SIGTERM) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)

        assert (process.wait(30), process.stderr.read() if process.stderr else None) == (code, "")


def _catches(status: str, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("only", [(), ("--only", "scheduler")], ids=["both", "scheduler"])
def test_a_running_process_that_is_interrupted_ends_in_order_too_but_with_130(only: tuple[str, ...], tmp_path: Path) -> None:
    process = started(tmp_path / "ledger.sqlite", "--metrics", "0", *only)
    assert process.stderr is not None
    process.stderr.readline()

    process.send_signal(signal.SIGINT)

    assert process.wait(30) == 130
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_process_leaves_nothing_open_that_python_would_warn_of(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-X", "dev", "-m", "streams.cli.main", "run", "--until-idle", "--metrics", "0"]

    ran = subprocess.run([*command, "--log", f"sqlite:{tmp_path / 'ledger.sqlite'}"], capture_output=True, text=True, timeout=60)

    assert ran.returncode == 0
    assert "Warning" not in ran.stderr


def answered(url: str) -> int:
    try:
        with urlopen(url) as page:
            status: int = page.status
            return status
    except HTTPError as refused:
        with refused:
            return refused.code
    except OSError:
        return 0


@pytest.mark.parametrize("tables", [True, False])
def test_nothing_is_placed_on_nodes_that_nobody_reports_any_more_since_it_was_last_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tables: bool
) -> None:
    """However fast the scheduler of the process is: which nodes went silent while nobody looked is said before it begins."""
    fleet = FleetLog(tmp_path)
    for node_id in ("c01", "c02", "c03", "c04", "c05"):
        fleet.audit(node_id, {}, memory_mib=8192)
    if tables:  # Of when all were heard of.
        clock = f"x1@{wall_clock_ms()}:{fleet.now_ms + 2000}"
        assert fleet.run(capsys, "run", "--until-idle", "--clock", clock).code == 0
        assert fleet.run(capsys, "nodes", "-o", "value", "-c", "status").out.split() == ["enabled"] * 5
    requests = [f"r{number}" for number in range(6)]
    for request in requests:
        assert fleet.run(capsys, "place", "--memory", "1GiB", "--request", request, "--wait", "0s").code == 0

    assert fleet.run(capsys, "run", "--until-idle").code == 0

    explained = [fleet.run(capsys, "explain", request) for request in requests]
    assert [said.code for said in explained] == [4] * 6
    assert all("ComputeFilter  5 -> 0  c01: silent since " in said.out for said in explained)


def test_the_engines_that_flags_offer_are_those_that_there_are() -> None:
    assert get_args(EngineName) == tuple(ENGINES)
    assert {*get_args(shadow_verb.EngineName)} < {*ENGINES}
