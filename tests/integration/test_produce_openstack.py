"""`claimlog produce openstack` from its command line: files, standard input, and a Kafka bus as oslo.messaging writes to it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # public, though not in its __all__

from schemas.topics import LIFECYCLE
from streams.cli.main import run
from streams.cli.produce.openstack import notifications
from streams.cli.produce.sources import Bus
from streams.clock import SystemClock
from streams.log.base import LogError, Partition
from streams.log.sqlite import SqliteLog
from tests.kafka_broker import bootstrap
from tests.nova_cloud import LARGE, NovaCloud, Sent, samples

PARTITIONS = 3
FOLLOW = (sys.executable, "-c", "from streams.cli.main import main; main()", "produce", "openstack")


def cloud_and_messages() -> tuple[NovaCloud, list[Sent]]:
    cloud = NovaCloud()
    messages = [*cloud.create("a", "h1"), *cloud.resize("a", "h2", LARGE), *cloud.create("b", "h1"), *cloud.live_migrate("b", "h2")]
    messages += [*cloud.confirm("a"), *cloud.create("c", "h1", LARGE)]
    return cloud, messages


def tracked(spec: str, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[int, int, int]]:
    """The tracked view of each node that anything uses, as `claimlog nodes` answers it."""
    capsys.readouterr()
    assert run(["nodes", "--log", spec, "-o", "json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["items"]
    sums = {
        row["node_id"]: tuple(row[name]["tracked"] for name in ("vcpus", "memory_mib", "disk_mib")) for row in rows if row["memory_mib"]
    }
    return {node_id: (used[0], used[1], used[2]) for node_id, used in sums.items() if any(used)}


def test_a_file_is_followed_and_read_again_it_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud, messages = cloud_and_messages()
    file, spec = tmp_path / "nova.jsonl", f"sqlite:{tmp_path}/l.db"
    file.write_bytes(b"".join(sent.value + b"\n" for sent in messages) + b"junk\n")

    first = run(["produce", "openstack", "--from", str(file), "--log", spec])
    said = capsys.readouterr().err
    second = run(["produce", "openstack", "--from", str(file), "--log", spec])
    again = capsys.readouterr().err

    assert (first, second) == (0, 0)
    assert said.startswith(f"{len(messages) + 1} notifications: ")
    assert said.endswith(" 0 node settings, 1 dead letter\n")
    assert again == f"{len(messages) + 1} notifications: 0 life-cycle events, 0 node settings, 1 dead letter\n"
    assert tracked(spec, capsys) == cloud.usage()
    assert run(["dead-letters", "list", "--log", spec]) == 0
    assert f"file:{file}/0@{len(messages) + 1}" in capsys.readouterr().out


def test_novas_samples_go_in_as_files_and_the_unnamed_host_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = f"sqlite:{tmp_path}/l.db"
    files = [argument for path in sorted(samples().glob("*.json")) for argument in ("--from", str(path))]

    code = run(["produce", "openstack", *files, "--log", spec])

    said = capsys.readouterr().err
    assert code == 0
    assert said.startswith("34 notifications: ")
    assert "services on host1: no message named their node, so status and aggregates are not told; pass --hypervisors\n" in said


def test_a_host_that_the_list_of_hypervisors_lacks_is_said_to_be_lacking_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, listed = f"sqlite:{tmp_path}/l.db", tmp_path / "hypervisors.json"
    listed.write_text(
        json.dumps(
            {"hypervisors": [{"hypervisor_hostname": "h9", "service": {"host": "h9"}, "vcpus": 4, "memory_mb": 4096, "local_gb": 9}]}
        )
    )
    files = [argument for path in sorted(samples().glob("*.json")) for argument in ("--from", str(path))]

    run(["produce", "openstack", *files, "--hypervisors", str(listed), "--log", spec])

    said = capsys.readouterr().err
    assert "services on host1: no message named their node" in said
    assert "--hypervisors does not list it" in said
    assert "pass --hypervisors" not in said


def test_totals_come_from_novas_own_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud, messages = cloud_and_messages()
    file, listed, spec = tmp_path / "nova.jsonl", tmp_path / "hypervisors.json", f"sqlite:{tmp_path}/l.db"
    file.write_bytes(b"".join(sent.value + b"\n" for sent in messages))
    hosts = [
        {"hypervisor_hostname": f"{host}.example.org", "service": {"host": host}, "vcpus": 16, "memory_mb": 65_536, "local_gb": 500}
        for host in ("h1", "h2", "h3")
    ]
    listed.write_text(json.dumps({"hypervisors": hosts}))

    assert run(["produce", "openstack", "--from", str(file), "--hypervisors", str(listed), "--log", spec]) == 0

    capsys.readouterr()
    assert run(["nodes", "--log", spec, "-o", "json"]) == 0
    rows = {row["node_id"]: row for row in json.loads(capsys.readouterr().out)["items"]}
    assert {node_id: row["memory_mib"]["total"] for node_id, row in rows.items()} == dict.fromkeys(rows, 65_536)
    assert len(rows) == 3
    assert tracked(spec, capsys) == cloud.usage()


def test_a_newer_list_of_hypervisors_counts_although_the_clock_went_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, listed, spec = tmp_path / "nova.jsonl", tmp_path / "hypervisors.json", f"sqlite:{tmp_path}/l.db"
    file.write_bytes(b"")
    for vcpus, now_ms in ((8, 1_800_000_000_000), (16, 1_790_000_000_000)):
        hosts = [{"hypervisor_hostname": "h1", "vcpus": vcpus, "memory_mb": 65_536, "local_gb": 500}]
        listed.write_text(json.dumps(hosts))
        monkeypatch.setattr(SystemClock, "wall_ms", lambda _, now_ms=now_ms: now_ms)
        assert run(["produce", "openstack", "--from", str(file), "--hypervisors", str(listed), "--log", spec]) == 0
    monkeypatch.undo()
    capsys.readouterr()

    assert run(["nodes", "--log", spec, "-o", "json"]) == 0
    assert [row["vcpus"]["total"] for row in json.loads(capsys.readouterr().out)["items"]] == [16]


def test_use_on_a_host_without_a_known_node_is_no_silent_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = NovaCloud()
    messages = [*cloud.create("a", "h1"), *list(cloud.resize("a", "h2", LARGE))[:3]]
    file = tmp_path / "nova.jsonl"
    file.write_bytes(b"".join(sent.value + b"\n" for sent in messages))

    code = run(["produce", "openstack", "--from", str(file), "--log", f"sqlite:{tmp_path}/l.db"])

    assert code == 6
    assert "the node of h2 is not known: no message named it, so what 1 instances use there is not counted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--from", "/nowhere/n.jsonl"], "cannot be read: No such file or directory"),
        (["--from", "kafka://localhost:9"], "names no topic"),
        (["--from", "-", "--swap-mib", "m1.small"], "expected FLAVOR=MIB"),
        (["--from", "-", "--swap-mib", "m1.small=5", "--swap-mib", "m1.small=6"], "'m1.small=6': another one says 5 MiB of it"),
        (["--from", "-", "--hypervisors", "/nowhere/h.json"], "--hypervisors /nowhere/h.json: No such file or directory"),
        ([], "--from"),
    ],
)
def test_a_wrong_command_line_exits_2(arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["produce", "openstack", *arguments, "--log", f"sqlite:{tmp_path}/l.db"])

    assert code == 2
    assert reason in capsys.readouterr().err


class NovaBus:
    """Topics as oslo.messaging fills them: one for each priority, partitions without order between them, no keys."""

    def __init__(self, endings: tuple[str, ...] = (".info", ".error")) -> None:
        self.broker, self.name = bootstrap(), f"nova-{uuid4().hex[:12]}"
        self.make(endings)

    def make(self, endings: tuple[str, ...]) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker})
        made = admin.create_topics([NewTopic(f"{self.name}{ending}", PARTITIONS, 1) for ending in endings])
        for future in made.values():
            future.result()

    @property
    def spec(self) -> str:
        return f"kafka://{self.broker}/{self.name}"

    def send(self, messages: list[Sent], random: Random, endings: tuple[str, str] = (".info", ".error")) -> None:
        producer = Producer({"bootstrap.servers": self.broker})
        for sent in messages:
            ending = endings[b".error" in sent.value]
            producer.produce(f"{self.name}{ending}", sent.value, partition=random.randrange(PARTITIONS))
        assert producer.flush(30) == 0


def test_a_kafka_bus_without_any_order_ends_in_what_novas_tracker_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    cloud, messages = cloud_and_messages()
    messages += cloud.fail_to_resize("b", "h1", LARGE)
    bus, spec, random = NovaBus(), f"sqlite:{tmp_path}/l.db", Random(seed)
    bus.send([*messages, Sent("nobody", b"junk")], random)

    first = run(["produce", "openstack", "--from", bus.spec, "--log", spec, "--once"])
    usage = tracked(spec, capsys)
    expected = cloud.usage()
    bus.send([*messages, *cloud.delete("b")], random)
    second = run(["produce", "openstack", "--from", f"{bus.spec}.info", "--from", f"{bus.spec}.error", "--log", spec, "--once"])

    assert (first, usage) == (0, expected)
    assert (second, tracked(spec, capsys)) == (0, cloud.usage())
    assert run(["dead-letters", "list", "--log", spec, "-o", "json"]) == 0
    (letter,) = json.loads(capsys.readouterr().out)["items"]
    assert letter["original"].startswith(f"{bus.name}.info/")


def followed(bus: NovaBus, spec: str, cloud: NovaCloud, stages: Sequence[Callable[[], None]], capsys: pytest.CaptureFixture[str]) -> str:
    """A process that follows a bus, on which this happens once events of what was there have been told; returns what it said at its end."""
    process = subprocess.Popen([*FOLLOW, "--from", bus.spec, "--log", spec], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for number, stage in enumerate(stages):
            if number:
                wait_for_events(Path(spec.removeprefix("sqlite:")).parent, 2)
            stage()
        deadline = time.monotonic() + 60
        while tracked(spec, capsys) != cloud.usage() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert tracked(spec, capsys) == cloud.usage()
    return err


def test_a_topic_of_the_very_name_is_read_and_those_of_its_priorities_beside_it_when_they_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """As a mirror fills the one, until somebody turns Nova itself to the cluster."""
    cloud, messages = cloud_and_messages()
    bus, random = NovaBus(("",)), Random(seed)

    def turned() -> None:
        bus.make((".info", ".error"))
        bus.send(messages[9:], random)

    followed(bus, f"sqlite:{tmp_path}/l.db", cloud, [lambda: bus.send(messages[:9], random, ("", "")), turned], capsys)


def test_a_bus_is_followed_until_told_to_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    cloud, messages = cloud_and_messages()
    bus, random = NovaBus(), Random(seed)

    sent = [lambda: bus.send(messages[:9], random), lambda: bus.send(messages[9:], random)]
    err = followed(bus, f"sqlite:{tmp_path}/l.db", cloud, sent, capsys)

    assert err.startswith(f"{len(messages)} notifications: ")


def test_a_pipe_is_followed_line_by_line_and_a_later_process_beside_it_ends_it_so_that_it_is_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = NovaCloud()
    first, beside = ([sent.value for sent in cloud.create(uuid, "h1")] for uuid in "ab")
    lost, spec = tmp_path / "lost.jsonl", f"sqlite:{tmp_path}/l.db"
    lost.write_bytes(b"\n".join(beside))
    command = [*FOLLOW, "--from", "-", "--log", spec]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.write(b"\n".join(first) + b"\n")
        process.stdin.flush()
        wait_for_events(tmp_path, 2)

        assert run(["produce", "openstack", "--from", str(lost), "--log", spec, "--once"]) == 0

        assert process.wait(timeout=60) == 1
        err = process.stderr.read().decode() if process.stderr is not None else ""
    finally:
        process.kill()
        process.communicate()

    assert f"{len(first)} notifications: " in err
    assert "another `claimlog produce openstack`, which began later, told of h1.example.org at instance-lifecycle/" in err
    assert tracked(spec, capsys) == cloud.usage()


def test_a_slow_once_that_a_follower_has_overtaken_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it said of that node counts for nothing."""
    cloud = NovaCloud()
    first, later = ([sent.value for sent in cloud.create(uuid, "h1")] for uuid in "ab")
    beside, spec = tmp_path / "later.jsonl", f"sqlite:{tmp_path}/l.db"
    beside.write_bytes(b"\n".join(later))
    command = [*FOLLOW, "--from", "-", "--log", spec]
    process = subprocess.Popen([*command, "--once"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_events(tmp_path, 0)
        time.sleep(1.1)  # Its epoch is the time of its start.
        assert run(["produce", "openstack", "--from", str(beside), "--log", spec]) == 0

        _, err = process.communicate(b"\n".join(first).decode(), timeout=60)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 1
    assert "another `claimlog produce openstack`, which began later, told of h1.example.org at instance-lifecycle/" in err


def wait_for_events(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with SqliteLog.open(str(folder / "l.db")) as log:
                if sum(log.ends(LIFECYCLE).values()) >= count:
                    return
        except (LogError, KeyError):
            pass  # Not made yet.
        time.sleep(0.1)
    raise AssertionError(f"{count} events are not there after 60 s")


def test_marks_that_a_mirrors_transactions_leave_hold_nothing_up() -> None:
    """Each takes an offset: whoever waits for its message waits for ever."""
    bus = NovaBus((".info",))
    producer = Producer({"bootstrap.servers": bus.broker, "transactional.id": bus.name})
    producer.init_transactions()
    found = list[bytes]()
    with notifications(bus.spec) as (source, *_):
        assert isinstance(source, Bus)
        for number in (1, 2):
            producer.begin_transaction()
            producer.produce(f"{bus.name}.info", b"%d" % number, partition=0)
            producer.commit_transaction()
            deadline = time.monotonic() + 60
            while source._next[Partition("info", 0)] < 2 * number and time.monotonic() < deadline:
                found += [record.value for record in source.read()]

    assert found == [b"1", b"2"]
    assert source._next == {Partition("info", 0): 4, Partition("info", 1): 0, Partition("info", 2): 0}


def test_a_topic_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["produce", "openstack", "--from", f"kafka://{bootstrap()}/absent-{uuid4().hex}", "--log", f"sqlite:{tmp_path}/l.db"])

    assert code == 2
    assert "did Nova write to it yet?" in capsys.readouterr().err
