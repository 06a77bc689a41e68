"""The examples, run as they are on either host: a request becomes a domain on a real libvirt, and the dashboard shows it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from uuid import uuid4

import pytest
from msgspec import structs

from schemas.inventory import OperatorFields, ResourceRule
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import Resources
from schemas.results import Placement
from schemas.topics import AUDITS, CLAIMS, NODE_RESOURCES
from streams.cli.main import run
from streams.cli.reading.open_log import open_log
from streams.cli.reading.state_at import state_at
from streams.log.base import Log
from streams.operator import Stamp, ask, configure
from tests.cli_log import FleetLog
from tests.faults.harness import CLAIMLOG
from tests.kafka_broker import bootstrap

needs_libvirt = pytest.mark.skipif(
    find_spec("libvirt") is None, reason="libvirt-python is not installed: it needs libvirt-dev, pkg-config and gcc, then `make setup`"
)
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
UNLIMITED = OperatorFields(memory_mib=ResourceRule(ratio_milli=None), disk_mib=ResourceRule(ratio_milli=None))


def example(name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def module(name: str) -> ModuleType:
    spec = spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def has_open(process: subprocess.Popen[str], path: Path) -> bool:
    def leads_to(opened: Path) -> Path | None:
        try:
            return opened.readlink()
        except FileNotFoundError:  # closed since the folder was read
            return None

    return path.resolve() in map(leads_to, Path(f"/proc/{process.pid}/fd").iterdir())


def soon(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, f"not within 30 s: {what}"
        time.sleep(0.1)


@pytest.fixture(params=["sqlite", "kafka"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A log that is not there yet, as `--log` names it."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'lab.sqlite'}"
    return f"kafka://{bootstrap()}/lab-{uuid4().hex[:10]}?single-broker=true"


def is_audited(log: Log) -> bool:
    return AUDITS in log.topics() and any(log.ends(AUDITS).values())


@needs_libvirt
def test_from_request_to_claim_to_running_domain_to_confirmed(spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_flag = ("--log", spec)
    launcher = example("launch.py", *log_flag, "--limit", "1")
    request = PlacementRequested(request_id="r-1", flavor=Flavor(vcpus=1, memory_mib=128))
    with open_log(spec, {}, io.BytesIO(), create=True) as log:
        soon(lambda: is_audited(log), "the host is audited")
        log.append([configure("vm", Stamp("c-1", 1), fields=UNLIMITED), ask(request, Stamp("r-1", 1))])
    assert launcher.poll() is None

    def work(only: str, *flags: str) -> None:
        """Until nothing is left to do."""
        command = [*CLAIMLOG, "run", *log_flag, "--only", only, *flags, "--until-idle"]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr

    keeping = ("--state", str(tmp_path / "state"))
    work("processor", *keeping)
    work("scheduler")
    out, err = launcher.communicate(timeout=60)

    assert (launcher.returncode, err) == (0, "")
    assert out.startswith(f"{request.instance(0)}: started on ")
    work("processor", *keeping)
    assert run(["claims", "list", *log_flag, "-o", "json"]) == 0
    (claim,) = json.loads(capsys.readouterr().out)["items"]
    assert (claim["state"], claim["instance_id"], claim["memory_mib"]) == ("confirmed", request.instance(0), 128)
    shown, _ = example("dashboard.py", *log_flag, "--once").communicate(timeout=60)
    assert "16 / 3 / 1 / 13" in shown


@pytest.mark.parametrize("name", ["dashboard.py", pytest.param("launch.py", marks=needs_libvirt)])
def test_an_example_ends_by_an_interrupt_or_without_a_log_in_plain_words(name: str, tmp_path: Path) -> None:
    log = f"sqlite:{tmp_path / 'lab.sqlite'}"
    assert run(["topics", "apply", "--log", log]) == 0

    running = example(name, "--log", log)
    soon(lambda: has_open(running, tmp_path / "lab.sqlite"), "it has opened the log")
    running.send_signal(signal.SIGINT)
    interrupted = running.communicate(timeout=30)[1]
    none = example(name, "--log", "nothing")
    refused = none.communicate(timeout=30)[1]

    assert (running.returncode, interrupted) == (130, "")
    assert none.returncode == 2
    assert refused.startswith("claimlog: --log nothing is no log")


def test_the_dashboard_prints_into_a_pipe_a_node_a_line_however_wide_and_ends_it(tmp_path: Path) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("compute-0001.rack-17.example.org", memory_mib=81_920_000)
    fleet.append(NODE_RESOURCES, state_at(fleet.log).row("compute-0001.rack-17.example.org"))

    shown, _ = example("dashboard.py", "--log", fleet.spec, "--once").communicate(timeout=60)

    (row,) = [line for line in shown.splitlines() if "compute-0001.rack-17.example.org" in line]
    assert "81,920,000 / 0 / 0 / 81,920,000" in row
    assert (shown.endswith("\n"), shown.endswith("\n\n")) == (True, False)


def test_a_nodes_name_is_one_line_of_the_dashboard_and_no_markup(tmp_path: Path) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c[red]01\n(rack 7)", memory_mib=8192)
    fleet.append(NODE_RESOURCES, state_at(fleet.log).row("c[red]01\n(rack 7)"))

    shown, _ = example("dashboard.py", "--log", fleet.spec, "--once").communicate(timeout=60)

    assert [line for line in shown.splitlines() if "c[red]01\\n(rack 7)" in line]


def test_a_log_without_rows_of_nodes_ends_the_dashboard_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_text('{"topic":"claims","partition":0,"offset":0,"key":"k","payload":"{}"}\n')

    _, said = (running := example("dashboard.py", "--log", str(tmp_path / "l.jsonl"), "--once")).communicate(timeout=60)

    assert "topic node-resources is missing" in said
    assert "Traceback" not in said
    assert running.returncode != 0


def test_the_dashboard_prints_a_table_into_a_pipe_whenever_a_row_is_new(tmp_path: Path) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", memory_mib=8192)
    row = state_at(fleet.log).row("c01")
    fleet.append(NODE_RESOURCES, row)

    with example("dashboard.py", "--log", fleet.spec) as running:
        assert running.stdout is not None
        first = [running.stdout.readline() for _ in range(6)]
        fleet.append(NODE_RESOURCES, structs.replace(row, node_id="c02", offset=row.offset + 1))
        rest = [running.stdout.readline() for _ in range(6)]
        running.send_signal(signal.SIGINT)

    assert ("c01" in "".join(first), "c02" in "".join(first)) == (True, False)
    assert "c02" in "".join(rest)


@needs_libvirt
def test_claims_are_held_where_their_history_was_archived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = module("launch")
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.claim("r1/0/s-1.1", "i1", "c01", memory_mib=512)
    number = fleet.log.partition(CLAIMS, b"c01")
    place = Placement(instance_id="i1", node_id="c01", claim_id="r1/0/s-1.1", partition=number, resources=Resources(memory_mib=512))
    running = launch.Claims(fleet.log)
    assert fleet.run(capsys, "archive", str(tmp_path / "history"), "--below", "now").code == 0

    assert fleet.log.start(CLAIMS, number) > 0
    assert running.hold(place, fleet.now_ms)
    held_to = running.ledgers[number].claims["r1/0/s-1.1"].deadline_ms
    fleet.now_ms += 60_000
    again = launch.Claims(fleet.log)
    assert again.hold(place, fleet.now_ms)
    assert again.ledgers[number].claims["r1/0/s-1.1"].deadline_ms == held_to + 60_000, "after a crash it is held for longer"


@needs_libvirt
@pytest.mark.parametrize("vcpus", [1, 0])
def test_a_guest_that_libvirt_will_not_define_gives_its_claim_back_and_the_launcher_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], vcpus: int
) -> None:
    launch = module("launch")
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.claim("r1/0/s-1.1", "web-1", "c01", memory_mib=512, vcpus=vcpus)
    number = fleet.log.partition(CLAIMS, b"c01")
    size = Resources(memory_mib=512, vcpus=vcpus, disk_mib=1024)
    place = Placement(instance_id="web-1", node_id="c01", claim_id="r1/0/s-1.1", partition=number, resources=size)

    is_started = launch.Launcher(fleet.log, "test:///default", "c01").start(place)

    said = capsys.readouterr().err
    assert not is_started
    assert "web-1: this example makes no disks and pins no CPUs" in said
    assert "web-1: not started, its claim is given back: " in said
    assert fleet.run(capsys, "claims", "list", "-o", "json").json["items"] == []


@needs_libvirt
def test_of_two_launchers_of_one_host_the_slower_one_leaves_the_claim_to_the_guest_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = module("launch")
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    instance_id, number = str(uuid4()), fleet.log.partition(CLAIMS, b"c01")
    fleet.claim("r1/0/s-1.1", instance_id, "c01", memory_mib=64, vcpus=1)
    size = Resources(memory_mib=64, vcpus=1)
    place = Placement(instance_id=instance_id, node_id="c01", claim_id="r1/0/s-1.1", partition=number, resources=size)
    launcher = launch.Launcher(fleet.log, "test:///default", "c01")
    other = launcher.handle.createXML(launch.domain_xml(place, "test", "i686"))
    looks = iter([[], launcher.handle.listAllDomains(0)])

    class Late:
        """As libvirt is to who looked a moment before the other one started the guest."""

        def __getattr__(self, name: str) -> object:
            return getattr(other.connect(), name)

        def listAllDomains(self, flags: int) -> list[object]:  # noqa: N802 - libvirt's name
            return next(looks)

    launcher.handle = Late()
    is_started = launcher.start(place)
    other.destroy()

    assert (is_started, capsys.readouterr().err) == (False, "")
    assert [each["claim_id"] for each in fleet.run(capsys, "claims", "list", "-o", "json").json["items"]] == ["r1/0/s-1.1"]


@needs_libvirt
@pytest.mark.parametrize("flags", [("--uri", "nonsense"), ("--uri", "qemu+tcp://127.0.0.1:1/system", "--no-report")])
def test_a_host_that_cannot_be_opened_ends_the_launcher_in_one_line(tmp_path: Path, flags: tuple[str, ...]) -> None:
    launcher = example("launch.py", "--log", f"sqlite:{tmp_path / 'lab.sqlite'}", *flags)
    out, err = launcher.communicate(timeout=60)

    assert (launcher.returncode, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"{flags[1]}: ")
    assert err.endswith("; start it again when libvirt answers: it takes up where it was\n")


@needs_libvirt
def test_a_libvirtd_that_goes_away_ends_the_launcher_and_its_claims_stay(
    libvirt_events: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from libvirt import libvirtError

    from producers.libvirt_connect import HypervisorUnreachable
    from tests.libvirt_daemon import running, until

    launch = module("launch")
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    places = []
    for index in range(2):
        claim_id, instance_id = f"r1/{index}/s-1.1", str(uuid4())
        fleet.claim(claim_id, instance_id, "c01", memory_mib=64, vcpus=1)
        size = Resources(memory_mib=64, vcpus=1)
        number = fleet.log.partition(CLAIMS, b"c01")
        places.append(Placement(instance_id=instance_id, node_id="c01", claim_id=claim_id, partition=number, resources=size))

    with running() as daemon:
        launcher = launch.Launcher(fleet.log, daemon.uri, "c01")
        is_started = launcher.start(places[0])
        domain = launcher.handle.lookupByUUIDString(places[0].instance_id)
        is_running_and_defined = (domain.isActive(), domain.isPersistent())
        daemon.kill()
        until(lambda: not launcher.handle.isAlive())
        with pytest.raises(HypervisorUnreachable):
            launcher.turn()
        with pytest.raises(libvirtError):
            launcher.start(places[1])
        daemon.start()
        again = launch.Launcher(fleet.log, daemon.uri, "c01")
        started_again = [again.start(place) for place in places]

    assert (is_started, is_running_and_defined) == (True, (1, 0))
    assert started_again == [False, True]
    assert len(fleet.run(capsys, "claims", "list", "-o", "json").json["items"]) == 2


def test_the_dashboard_is_at_most_sixty_lines() -> None:
    assert len((ROOT / "examples" / "dashboard.py").read_text().splitlines()) <= 60


def test_without_libvirt_the_starter_says_what_to_install() -> None:
    program = f"import runpy, sys; sys.modules['libvirt'] = None; runpy.run_path({str(ROOT / 'examples/launch.py')!r}, run_name='__main__')"

    ended = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("libvirt-python is not installed: pip install 'claimlog[libvirt]'")
    assert "Traceback" not in ended.stderr
