"""`claimlog produce` from its command line into a real log file."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from producers.traces import FLAVORS_FILE, TRACE_FILE
from schemas.audits import HypervisorAudited
from schemas.codec import decode_keyed
from schemas.lifecycle import InstanceArrived
from schemas.topics import AUDITS, LIFECYCLE, REQUESTS
from streams.cli.main import run
from streams.clock import SystemClock
from streams.log.sqlite import SqliteLog
from tests.faults.harness import until

needs_libvirt = pytest.mark.skipif(
    find_spec("libvirt") is None, reason="libvirt-python is not installed: it needs libvirt-dev, pkg-config and gcc, then `make setup`"
)


def records(path: Path, topic: str) -> list[Any]:
    with SqliteLog.open(str(path)) as log:
        found = [record for number in range(log.topics().get(topic, 0)) for record in log.read(topic, number, 0)]
    return [decode_keyed(topic, record.key, record.value) for record in found]


def claimlog(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from streams.cli.main import main; main()", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@needs_libvirt
def test_one_look_at_a_real_libvirt_host_is_on_the_log(tmp_path: Path) -> None:
    process = claimlog("produce", "libvirt", "--uri", "test:///default", "--once", "--log", f"sqlite:{tmp_path}/l.sqlite")

    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (0, "")
    assert err.endswith(": audited; domains: 1, life-cycle events: 1\n")
    (audit,) = records(tmp_path / "l.sqlite", AUDITS)
    assert isinstance(audit, HypervisorAudited)
    assert audit.hypervisor is not None
    assert (audit.hypervisor.vcpus, audit.hypervisor.memory_mib) == (16, 3_072)
    (event,) = records(tmp_path / "l.sqlite", LIFECYCLE)
    assert isinstance(event, InstanceArrived)
    assert (event.instance.name, event.resync) == ("test", True)


def test_hosts_that_are_played_again_have_a_higher_epoch_although_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for now_ms in (1_800_000_000_000, 1_790_000_000_000):
        monkeypatch.setattr(SystemClock, "wall_ms", lambda _, now_ms=now_ms: now_ms)
        assert run(["produce", "load", "--nodes", "1", "--once", "--log", f"sqlite:{tmp_path}/l.db"]) == 0

    assert [audit.epoch for audit in records(tmp_path / "l.db", AUDITS)] == [1_800_000_000_000, 1_800_000_000_001]


@needs_libvirt
def test_nodes_then_shows_what_libvirt_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = claimlog("produce", "libvirt", "--once", "--node", "c01", "--log", f"sqlite:{tmp_path}/l.sqlite")
    assert process.wait(60) == 0
    process.communicate()

    assert run(["nodes", "--log", f"sqlite:{tmp_path}/l.sqlite", "-o", "json"]) == 0

    (node,) = json.loads(capsys.readouterr().out)["items"]
    assert (node["node_id"], node["vcpus"]["total"], node["memory_mib"]["reported"], node["instances"]) == ("c01", 16, 8_192, 1)


@needs_libvirt
def test_a_host_that_is_not_there_is_an_error_and_with_its_name_a_published_failure(tmp_path: Path) -> None:
    unnamed = claimlog("produce", "libvirt", "--uri", "test:///no/such.xml", "--once", "--log", f"sqlite:{tmp_path}/l.sqlite")
    named = claimlog("produce", "libvirt", "--uri", "test:///no/such.xml", "--once", "--node", "c9", "--log", f"sqlite:{tmp_path}/l.sqlite")

    said = [process.communicate(timeout=60)[1] for process in (unnamed, named)]

    assert (unnamed.returncode, named.returncode) == (1, 1)
    assert "to publish the failure give it one (--uri NAME=URI, or node in its" in said[0]
    assert "c9: the audit failed, which is published: test:///no/such.xml" in said[1]
    assert [record.node_id for record in records(tmp_path / "l.sqlite", AUDITS)] == ["c9"]


@needs_libvirt
def test_a_running_producer_audits_again_and_ends_on_interrupt(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    process = claimlog("produce", "libvirt", "--interval", "0.2", "--log", f"sqlite:{path}")
    until(lambda: (tmp_path / "l.sqlite-wake").exists() and len(records(path, AUDITS)) >= 3, 30.0, "three audits stand in the log")

    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "audited" in err
    audits = records(path, AUDITS)
    assert [audit.counter for audit in audits] == list(range(1, len(audits) + 1))
    assert [audit.instances is not None for audit in audits[:3]] == [True, False, False]


@needs_libvirt
def test_a_restarted_producer_has_a_higher_epoch(tmp_path: Path) -> None:
    for _ in range(2):
        process = claimlog("produce", "libvirt", "--once", "--log", f"sqlite:{tmp_path}/l.sqlite")
        assert process.wait(60) == 0
        process.communicate()

    first, second = records(tmp_path / "l.sqlite", AUDITS)

    assert second.epoch > first.epoch
    assert (first.counter, second.counter) == (1, 1)


@needs_libvirt
@pytest.mark.parametrize("spooled", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_one_look_beside_a_running_producer_is_refused_and_other_hosts_are_looked_at(tmp_path: Path, named: bool, spooled: bool) -> None:
    """A node without a name of its own has its host's, which only the first connection tells."""
    path, uri, other = tmp_path / "l.sqlite", "c01=test:///default" if named else "test:///default", "c02=test:///default"
    log, spool = ("--log", f"sqlite:{path}"), ("--spool", str(tmp_path / "spool")) if spooled else ()
    running = claimlog("produce", "libvirt", "--uri", uri, "--interval", "2", *log)
    until(lambda: (tmp_path / "l.sqlite-wake").exists() and len(records(path, AUDITS)) >= 2, 30.0, "two audits stand in the log")
    name = records(path, AUDITS)[0].node_id

    both, own = ("--uri", uri, "--uri", other), ("--uri", uri)
    looks = [claimlog("produce", "libvirt", "--once", *log, *spool, *uris) for uris in (own, both) if not spooled or uris is both]
    said = [look.communicate(timeout=60)[1] for look in looks]

    running.terminate()
    running.communicate(timeout=30)
    audits, events = records(path, AUDITS), records(path, LIFECYCLE)
    assert {look.returncode for look in looks} == {2}
    assert all(f"claimlog: {name} is reported by another process, every 2s, the last time " in each for each in said)
    assert all("end it, and wait 6s then" in each for each in said)
    assert "c02: audited" in said[-1]
    for observed in (audits, events):
        assert len({record.epoch for record in observed if record.node_id == name}) == 1
        assert {record.node_id for record in observed} == {name, "c02"}


def test_a_generated_fleet_reports_and_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = f"sqlite:{tmp_path}/l.sqlite"

    assert run(["produce", "load", "--nodes", "7", "--once", "--log", log]) == 0
    assert run(["produce", "load", "--nodes", "0", "--limit", "40", "--speed", "1e9", "--log", log]) == 0

    assert {audit.node_id for audit in records(tmp_path / "l.sqlite", AUDITS)} == {f"node-{number:05d}" for number in range(7)}
    assert len(records(tmp_path / "l.sqlite", REQUESTS)) == 40
    assert "40 requested" in capsys.readouterr().err


def test_nothing_is_played_of_a_trace_that_is_wrong_half_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FLAVORS_FILE).write_text("flavor,vcpus,mem_gb\na,1,1\n")
    with gzip.open(tmp_path / TRACE_FILE, "wt") as file:
        file.write("arrival_s,batch,flavor,life_lo_s,life_hi_s,censored\n")
        file.write("".join(f"{300 * number},{number},a,300,600,0\n" for number in range(5_000)) + "1500000,1,a,1,200,600,0\n")

    code = run(["produce", "trace", "--data", str(tmp_path), "--nodes", "0", "--speed", "1e9", "--log", f"sqlite:{tmp_path}/l.db"])

    assert (code, f"{TRACE_FILE}:5002: expected 6 columns, the line has more" in capsys.readouterr().err) == (2, True)
    assert not (tmp_path / "l.db").exists()


def test_a_trace_is_read_from_its_folder_and_a_missing_one_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gzip.open(tmp_path / TRACE_FILE, "wt") as file:
        file.write("arrival_s,batch,flavor,life_lo_s,life_hi_s,censored\n" + "0,0,a,300,600,0\n" * 25)
    (tmp_path / FLAVORS_FILE).write_text("flavor,vcpus,mem_gb,count\na,1,0.75,9\n")
    log = f"sqlite:{tmp_path}/l.sqlite"

    assert run(["produce", "trace", "--data", str(tmp_path), "--nodes", "0", "--speed", "1e9", "--limit", "20", "--log", log]) == 0
    assert len(records(tmp_path / "l.sqlite", REQUESTS)) == 20

    assert run(["produce", "trace", "--data", str(tmp_path / "none"), "--nodes", "0", "--log", log]) == 2
    assert "with --data or CLAIMLOG_DATA" in capsys.readouterr().err
    assert run(["produce", "trace", "--data", str(tmp_path / "none"), "--once", "--nodes", "1", "--log", f"sqlite:{tmp_path}/n.db"]) == 2
    assert not (tmp_path / "n.db").exists(), "nothing is written for a folder that is not there"


def test_a_trace_ends_when_all_that_it_has_is_answered_though_more_were_asked_for(tmp_path: Path) -> None:
    """The guests would run for weeks."""
    with gzip.open(tmp_path / TRACE_FILE, "wt") as file:
        file.write("arrival_s,batch,flavor,life_lo_s,life_hi_s,censored\n" + "0,0,a,2000000,2000300,0\n" * 2)
    (tmp_path / FLAVORS_FILE).write_text("flavor,vcpus,mem_gb\na,1,1\n")
    log = f"sqlite:{tmp_path}/l.sqlite"
    answers = claimlog("run", "--log", log)
    trace = claimlog("produce", "trace", "--data", str(tmp_path), "--nodes", "1", "--until-answered", "--log", log)

    _, said = trace.communicate(timeout=60)
    answers.send_signal(signal.SIGTERM)
    answers.communicate(timeout=30)

    assert trace.returncode == 0
    assert "2 requested, 2 placed" in said
    assert "0 ended" in said


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["load", "--speed", "0"], "--speed 0"),
        (["load", "--once", "--until-answered"], "leave one of it and --until-answered out"),
        pytest.param(["libvirt", "--spool-mib", "8"], "without --spool FILE", marks=needs_libvirt),
        pytest.param(["libvirt", "--spool-mib", "700000"], "without --spool FILE", marks=needs_libvirt),
        pytest.param(
            ["libvirt", "--spool-mib", "20000000"],
            "--spool-mib 20000000: expected more than 0 and at most 16777216",
            marks=needs_libvirt,
        ),
        pytest.param(["libvirt", "--interval", "-1"], "--interval -1", marks=needs_libvirt),
        pytest.param(
            ["libvirt", "--once", "--interval", "5"], "--once takes one audit of each host: leave --interval", marks=needs_libvirt
        ),
        pytest.param(["libvirt", "--dedicated-cpus", "some"], "'some': expected a list such as 4-7,12-15", marks=needs_libvirt),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, flags: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["produce", *flags, "--log", f"sqlite:{tmp_path}/l.sqlite"]) == 2

    assert expected in capsys.readouterr().err


def test_without_libvirt_the_way_to_get_it_is_said(tmp_path: Path) -> None:
    program = "import sys; sys.modules['libvirt'] = None; from streams.cli.main import main; main()"
    command = [sys.executable, "-c", program, "produce", "libvirt", "--once", "--log", f"sqlite:{tmp_path}/l.sqlite"]

    process = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert process.returncode == 2
    assert "libvirt-python is not installed: pip install 'claimlog[libvirt]'" in process.stderr
