"""compose.yaml and the Dockerfile: valid, and true. The commands of the file run here as processes on a broker with the file's settings."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

from schemas.codec import decode_keyed
from schemas.results import InstancesPlaced
from schemas.topics import RESULTS
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import parse_settings
from tests.faults.harness import CLAIMLOG, ROOT, Process, until
from tests.kafka_broker import Broker, NoBroker, bootstrap, free_ports

COMPOSE = ROOT / "compose.yaml"
PATIENCE_SECONDS = 90.0
ROOTS = {"", "0", "root", "0:0"}


def services() -> dict[str, Any]:
    read: dict[str, Any] = YAML(typ="safe").load(COMPOSE.read_text())["services"]
    return read


def ours() -> dict[str, Any]:
    """The services that go on and are claimlog."""
    return {name: service for name, service in services().items() if "build" in service and "profiles" not in service}


def goes_on() -> list[str]:
    """The services of ours that are not done once they ended with 0."""
    return [name for name, service in ours().items() if not str(service["restart"]).startswith("on-failure")]


def test_every_service_that_goes_on_says_whether_it_is_healthy() -> None:
    finished = set(services()) - {name for name, service in services().items() if "healthcheck" in service}

    assert finished == {"topics", "cli"}


def test_the_file_is_valid_by_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]

    checked = subprocess.run(command, capture_output=True, text=True)

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_nobody_can_log_in_to_the_board() -> None:
    says = services()["grafana"]["environment"]

    assert (says["GF_AUTH_DISABLE_LOGIN_FORM"], says["GF_AUTH_BASIC_ENABLED"]) == ("true", "false")
    assert (says["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"], says["GF_AUTH_ANONYMOUS_ORG_ROLE"]) == ("true", "Viewer")


def test_nothing_runs_as_root_and_every_image_is_of_a_named_version() -> None:
    for name, service in services().items():
        assert str(service.get("user", "")).partition(":")[0] not in ROOTS, f"{name} runs as root"
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), f"{name}: {service['image']} names no version"
        assert "restart" in service, f"{name} says nothing about restarts"
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert all(re.search(r":\d+\.\d+\.\d+", base) for base in bases), bases


def test_prometheus_asks_each_process_that_has_metrics_and_no_other() -> None:
    config = YAML(typ="safe").load((ROOT / "deploy" / "prometheus" / "prometheus.yaml").read_text())
    (targets,) = [each["targets"] for scrape in config["scrape_configs"] for each in scrape["static_configs"]]

    serving = [f"{name}:{port(service)}" for name, service in ours().items() if "--metrics" in service["command"]]

    assert sorted(targets) == sorted(serving)


def test_files_that_services_mount_are_there() -> None:
    mounted = [str(volume).split(":")[0] for service in services().values() for volume in service.get("volumes", [])]

    missing = [path for path in mounted if path.startswith(".") and not (ROOT / path).is_dir()]

    assert missing == []


def copied() -> list[str]:
    """What the Dockerfile takes from the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return [path for line in lines for path in line.split()[:-1]]


def test_the_image_is_built_from_what_is_there_and_holds_the_four_packages_and_the_command(tmp_path: Path) -> None:
    let_through = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(let_through) == sorted(copied())
    for path in copied():
        source, target = ROOT / path, tmp_path / "src" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)

    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(tmp_path / "src")]
    built = subprocess.run(command, capture_output=True, text=True)

    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("claimlog-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if name.endswith(".py")} == {"schemas", "projections", "streams", "producers"}
    assert any(name.endswith("entry_points.txt") for name in names)


def test_the_image_s_versions_are_what_the_project_asks_for() -> None:
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    wanted = [Requirement(text) for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]]

    unmet = [str(each) for each in wanted if each.name not in pinned or pinned[each.name] not in each.specifier]

    assert unmet == []


def port(service: dict[str, Any]) -> str:
    command = service["command"]
    return str(command[command.index("--metrics") + 1])


def broker_settings() -> str:
    """The broker's environment as the image turns it into properties, at free ports of this machine."""
    lines = []
    for name, value in services()["kafka"]["environment"].items():
        text = re.sub(r"(kafka)?:9092", "127.0.0.1:{port}", re.sub(r"(kafka)?:9093", "127.0.0.1:{controller}", value))
        lines.append(f"{name.removeprefix('KAFKA_').lower().replace('_', '.')}={'{data}' if name == 'KAFKA_LOG_DIRS' else text}")
    return "\n" + "\n".join(lines) + "\n"


class Stack:
    """The file's services as processes of this machine: only places and ports are other ones."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.folder, self.broker = folder, broker
        self.processes: dict[str, Process] = {}
        watched = [name for name, service in ours().items() if "--metrics" in service["command"]]
        self.ports = dict(zip(watched, map(str, free_ports(len(watched))), strict=True))

    def here(self, name: str, word: str) -> str:
        """A word of the file as it reads on this machine."""
        word = word.replace("kafka:9092", self.broker.address).replace("/var/lib/claimlog", str(self.folder / name))
        word = word.replace("/dev/tcp/127.0.0.1/9092", f"/dev/tcp/127.0.0.1/{self.broker.port}").replace("0.0.0.0", "127.0.0.1")
        return word.replace("9464", self.ports[name]) if name in self.ports else word

    def environment(self, name: str) -> dict[str, str]:
        return {key: self.here(name, value) for key, value in services()[name]["environment"].items()}

    def environment_if_ours(self, name: str) -> dict[str, str]:
        return self.environment(name) if name in ours() else {}

    def start(self, name: str) -> None:
        """Start a service once what it depends on is as the file says."""
        service = services()[name]
        for other, how in service.get("depends_on", {}).items():
            if other not in self.processes and other != "kafka":
                self.start(other)
            if how["condition"] == "service_completed_successfully":
                process = self.processes[other]
                assert process.running is None or process.ended(PATIENCE_SECONDS) == 0, process.said()
            else:
                until(lambda other=other: self.is_healthy(other), PATIENCE_SECONDS, f"{other} is healthy")  # type: ignore[misc]
        environ = [f"{key}={value}" for key, value in self.environment(name).items()]
        command = ["env", *environ, *CLAIMLOG, *(self.here(name, word) for word in service["command"])]
        process = self.processes[name] = Process(name, command, self.folder / f"{name}.err")
        process.start()

    def is_healthy(self, name: str) -> bool:
        """What the service's own health check says; one whose process has ended is the end of the test."""
        if name in self.processes:
            self.processes[name].must_run()
        how, *words = services()[name]["healthcheck"]["test"]
        assert how == "CMD"
        command = [sys.executable if word == "python" else self.here(name, word) for word in words]
        environ = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | self.environment_if_ours(name)
        return subprocess.run(command, capture_output=True, env=environ).returncode == 0


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    bootstrap()
    broker = Broker(tmp_path / "kafka", broker_settings())
    try:
        broker.start()
    except NoBroker as reason:
        pytest.skip(f"no Kafka broker of our own: {reason}")
    found = Stack(tmp_path, broker)
    yield found
    for process in found.processes.values():
        if process.running is not None:
            process.running.kill()
            process.running.wait()
    broker.stop()


def test_the_file_s_commands_start_pass_their_health_checks_place_instances_and_end_at_sigterm_with_0(stack: Stack) -> None:
    for name in ours():
        if name not in stack.processes:
            stack.start(name)
    settings = parse_settings(stack.environment("load")["CLAIMLOG_LOG"], stack.environment("load") | {"CLAIMLOG_LOG": ""})

    with KafkaLog.open(settings) as log:

        def placed_by() -> set[str]:
            found = [record for number in range(log.topics()[RESULTS]) for record in log.read(RESULTS, number, 0)]
            events = [decode_keyed(RESULTS, record.key, record.value) for record in found]
            return {event.owner for event in events if isinstance(event, InstancesPlaced)}

        until(lambda: placed_by() == {"scheduler-1", "scheduler-2"}, PATIENCE_SECONDS, "both schedulers place")

    until(lambda: all(stack.is_healthy(name) for name in goes_on()), PATIENCE_SECONDS, "every service is healthy")
    running = {name: process for name, process in stack.processes.items() if process.running is not None}
    assert set(running) == {"processor", "scheduler-1", "scheduler-2", "load"}
    codes = {name: running[name]._end(signal.SIGTERM) for name in reversed(running)}
    assert codes == dict.fromkeys(running, 0)
