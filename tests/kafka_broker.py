"""A real Kafka broker for tests: the one of KAFKA_BOOTSTRAP, else one in a container, else one of our own, run by the local Java.

`bootstrap()` gives the address that all tests share: each takes a prefix of its own. Our own broker is started by whoever asks first and
ends when the last process that asked has ended, however it ended. `Broker` is one for tests that kill it.

    python tests/kafka_broker.py serve FOLDER     run one in FOLDER until nobody uses it
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from random import SystemRandom
from typing import Protocol, TypeVar

import pytest

POM = Path(__file__).parent / "kafka" / "pom.xml"
CLUSTER = "Y2xhaW1sb2ctdGVzdC1rZg"
START_SECONDS = 60.0
# How long a broker without users lives: the next test file of the same run may be a moment away.
LINGER_SECONDS = 5.0
# Started a hundred times more often than it runs for minutes: no second compiler, the smallest collector.
JAVA = ("java", "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
ARCHIVE = "classes.jsa"
"""What Java has made of a broker's classes, kept beside the jars: a broker starts in half the time, for half the processor's."""
CLOSED_SECONDS = 60.0
"""How long a broker may take to hand over what it leads and end."""
# Systems give out ports from 32768 on; below 10000 are those of other programs.
PORTS = (15_000, 32_000)
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.cleaner.backoff.ms=500
log.initial.task.delay.ms=500
log.segment.delete.delay.ms=1000
"""


class Starting(Protocol):
    """A broker, or several."""

    def start(self) -> None:
        """Raises NoBroker."""

    def stop(self) -> None:
        """End what was started."""


B = TypeVar("B", bound=Starting)


class NoBroker(Exception):
    """Why no broker can be had here."""


def shared_folder() -> Path:
    """Where jars and the shared broker live: one place for this user and this version of the broker."""
    version = sha256(POM.read_bytes() + PROPERTIES.encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"claimlog-kafka-{os.getuid()}-{version}"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, from below those that systems give to whoever connects.

    One of those could be taken before a broker that was killed is back: even by a client that tries to reach the broker there.
    """
    with ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            port, taken = SystemRandom().randrange(*PORTS), held.enter_context(socket.socket())
            with suppress(OSError):
                taken.bind(("127.0.0.1", port))
                found.append(port)
        return found


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise NoBroker(f"{' '.join(command[:3])} …: {(done.stdout + done.stderr).strip()[-600:]}")


def jars() -> Path:
    """The broker's jars, fetched once by Maven (43 MB). The caller holds the lock. Raises NoBroker."""
    libs = shared_folder() / "libs"
    if not libs.is_dir():
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                raise NoBroker(f"{program} is not installed: apt install default-jre-headless maven")
        part = libs.with_name("libs-unfinished")
        shutil.rmtree(part, ignore_errors=True)
        _run("mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={part}")
        part.rename(libs)
    return libs


class Broker:
    """One broker with its data in `folder`; it can be killed and started again on the same data and port.

    `settings` are lines of its own, which win over PROPERTIES; `{port}`, `{controller}` and `{second}` in them become free ports. `java` is
    what runs it.
    """

    def __init__(self, folder: Path, settings: str = "", java: tuple[str, ...] = JAVA) -> None:
        self.folder, self.settings, self.port, self.second_port, self._java = folder, settings, 0, 0, java
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Make it on free ports and wait until it answers. Raises NoBroker."""
        self.port, controller, self.second_port = free_ports(3)
        self.prepare(controller)
        self.again()

    def prepare(self, controller: int) -> None:
        """Write its settings and an empty disk, with `controller` as the port of its controller. Raises NoBroker."""
        with locked(shared_folder()):
            libs = jars()
        _archive(self._java)
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        wanted = PROPERTIES + self.settings
        properties.write_text(wanted.format(port=self.port, controller=controller, second=self.second_port, data=self.folder / "data"))
        _format(libs, properties, self.folder / "data")

    def again(self) -> None:
        """Start it on the data and ports it had, and wait until it answers. Raises NoBroker."""
        self.launch()
        self.answers()

    def launch(self) -> None:
        """Start its process on the data and ports it had."""
        archive = shared_folder() / ARCHIVE
        with (self.folder / "broker.log").open("ab") as log:
            java = [*self._java, *([f"-XX:SharedArchiveFile={archive}"] if archive.exists() else [])]
            command = [*java, "-cp", f"{shared_folder() / 'libs'}/*", "kafka.Kafka", str(self.folder / "server.properties")]
            # A group of its own: what interrupts the tests does not interrupt the broker.
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def answers(self) -> None:
        """Wait until it does. Raises NoBroker."""
        assert self._process is not None
        until = time.monotonic() + START_SECONDS
        while not _answers(self.address):
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise NoBroker(f"the broker does not answer: {(self.folder / 'broker.log').read_text()[-600:]}")
            time.sleep(0.05)

    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process, once it was started."""
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP: all its threads have stopped then, which takes a moment on a busy machine."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            if number == signal.SIGSTOP:
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def closes(self, seconds: float) -> None:
        """SIGTERM, and wait at most so long until it has ended in order."""
        self.signal(signal.SIGTERM)
        if self._process is not None:
            self._process.wait(seconds)

    def stop(self) -> None:
        """End it. Its data is not needed any more, so it need not take its time."""
        self.kill()


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def _archive(java: tuple[str, ...]) -> None:
    """Have one broker write the archive of its classes, unless somebody has or does: without one, or with another Java's, all goes on."""
    writes, wanted = "-XX:ArchiveClassesAtExit=", shared_folder() / ARCHIVE
    if wanted.exists() or any(each.startswith(writes) for each in java):
        return
    with (shared_folder() / "archiving").open("w") as lock, suppress(NoBroker, OSError), tempfile.TemporaryDirectory() as folder:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part = wanted.with_suffix(".unfinished")
        writer = Broker(Path(folder), java=(*JAVA, f"{writes}{part}"))
        writer.start()
        writer.closes(CLOSED_SECONDS)
        part.rename(wanted)


def _format(libs: Path, properties: Path, data: Path) -> None:
    """Write the cluster's id into the data folder; a formatted folder is kept, since formatting takes a second and a half of Java."""
    template = shared_folder() / "formatted"
    with locked(shared_folder()):
        if not template.is_dir():
            part = template.with_name("formatted-unfinished")
            shutil.rmtree(part, ignore_errors=True)
            draft = properties.with_name("format.properties")
            draft.write_text(properties.read_text().replace(str(data), str(part)))
            _run(*JAVA, "-cp", f"{libs}/*", "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(draft))
            part.rename(template)
    shutil.copytree(template, data)


@contextmanager
def started(brokers: B) -> Iterator[B]:
    """Brokers of a test's own, ended at the end: whoever uses them is to be ended before. Skips where there are none, which fails on CI."""
    try:
        try:
            brokers.start()
        except NoBroker as reason:
            pytest.skip(f"no Kafka broker of one's own: {reason}")
        yield brokers
    finally:
        brokers.stop()


def bootstrap() -> str:
    """The address of the broker that tests share. Where there is none the test is skipped, which on CI is a failure."""
    found = _found()
    if isinstance(found, NoBroker):
        pytest.skip(f"no Kafka broker: {found}")
    # Said at once: each test would wait as long as its clients are patient, which is hours for all of them.
    if not any(map(_answers, found.split(","))):
        pytest.skip(f"no Kafka broker: {found} does not answer")
    return found


@cache
def _found() -> str | NoBroker:
    """Looked for once in a process, also if in vain."""
    given = os.environ.get("KAFKA_BOOTSTRAP")
    if given:
        return given
    try:
        return _container() or _shared()
    except NoBroker as reason:
        return reason


def _container() -> str | None:
    """A broker in a container that lives as long as this process; None where no Docker engine answers or testcontainers is missing."""
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        return None
    try:
        container = import_module("testcontainers.kafka").KafkaContainer().with_kraft()
    except ImportError:
        return None
    container.start()
    return str(container.get_bootstrap_server())


def _shared() -> str:
    """The broker of our own, started by whoever comes first. What a killed run left in the folder says nothing: only locks do."""
    folder = shared_folder() / "shared"
    with locked(folder):
        _use(folder)
        if not _is_held(folder / "serving"):
            (folder / "failed").unlink(missing_ok=True)
    until = time.monotonic() + START_SECONDS + 120
    while time.monotonic() < until:
        with locked(folder):
            if (failed := folder / "failed").exists():
                raise NoBroker(failed.read_text())
            if not _is_held(folder / "serving"):
                _serve_aside(folder)
            elif (address := folder / "address").exists():
                return address.read_text()
        time.sleep(0.05)
    raise NoBroker(f"the shared broker did not come up; see {folder}/serve.log")


def _use(folder: Path) -> None:
    """Be one of the broker's users as long as this process lives: the system gives the lock back, however the process ends."""
    users = os.open(folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(users, fcntl.LOCK_SH)


def _serve_aside(folder: Path) -> None:
    """Start `serve` as a process of its own, which inherits the lock that says it lives."""
    (folder / "address").unlink(missing_ok=True)
    with (folder / "serve.log").open("ab") as log, (folder / "serving").open("w") as serving:
        fcntl.flock(serving, fcntl.LOCK_EX)
        command = [sys.executable, str(Path(__file__).resolve()), "serve", str(folder)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=[serving.fileno()]
        )
    # Nobody waits for it, and nobody should be warned of that.
    process.returncode = 0


def _is_held(path: Path) -> bool:
    """Whether a living process holds the lock on this file."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def serve(folder: Path) -> None:
    """Run a broker in `folder` until none of its users lives."""
    # Those who started us are told by what stands in the folder; nobody waits for us.
    data = Path(tempfile.mkdtemp(prefix="claimlog-kafka-data-"))
    broker = Broker(data)
    try:
        broker.start()
        # Under the lock: whoever looks meanwhile would find a file that has nothing in it yet.
        with locked(folder):
            (folder / "address").write_text(broker.address)
        idle_since = time.monotonic()
        while broker.is_running() and time.monotonic() - idle_since < LINGER_SECONDS:
            time.sleep(0.5)
            with locked(folder):
                if _is_held(folder / "users.lock"):
                    idle_since = time.monotonic()
    except NoBroker as reason:
        with locked(folder):
            (folder / "failed").write_text(str(reason))
    finally:
        with locked(folder):
            (folder / "address").unlink(missing_ok=True)
        broker.stop()
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    serve(Path(sys.argv[2]))
