"""Real processes of claimlog on one log, which tests start, kill and stop; and one simulated clock that all of them share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field

from schemas.topics import NODE_RESOURCES
from streams.clock import Clock, ScaledClock, SystemClock
from streams.ledger_topics import open_ledger
from streams.log.base import Log
from streams.log.sqlite import SqliteLog

ROOT = Path(__file__).parents[2]
START_SECONDS = 30.0
"""A process on a busy machine needs a second to import what it runs; much longer than this and it hangs."""
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
KNOWN_SECONDS = 120.0
"""Until the audits of a fleet are folded, by workers that may have to start and to join a group first."""
SOAKS = bool(os.environ.get("CLAIMLOG_SOAK"))
"""`make soak`: full counts."""


def scaled_clock(factor: int) -> ScaledClock:
    """A clock that shows the present moment and runs `factor` times as fast from here on."""
    now_ms = time.time_ns() // 1_000_000
    return ScaledClock(factor, now_ms, now_ms)


def until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something that must come true. Raises AssertionError, which says what did not, when the time is up."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(POLL_SECONDS)


def until_known(log: Log, nodes: int) -> None:
    """Wait until so many nodes have their rows: a request that comes before is refused, as it should be. Raises AssertionError."""
    until(lambda: sum(log.ends(NODE_RESOURCES).values()) >= nodes, KNOWN_SECONDS, f"the audits of {nodes} nodes are folded")


class Process(Struct):
    """One process by name: started again it has the same name, as under any supervisor. What it says on stderr is kept over all starts."""

    name: str
    command: list[str]
    errors: Path
    running: subprocess.Popen[bytes] | None = None
    starts: int = 0
    kills: int = 0
    said_before: int = 0

    def start(self) -> None:
        """Start it; it must not be running."""
        assert self.running is None, f"{self.name} is running already"
        says_where = os.environ | {"PYTHONFAULTHANDLER": "1"}
        with self.errors.open("ab") as said:
            self.said_before = said.tell()
            self.running = subprocess.Popen(self.command, cwd=ROOT, env=says_where, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        self.starts += 1

    def said(self) -> str:
        """Everything it said so far."""
        return self.errors.read_text(errors="replace")

    def said_since_start(self) -> str:
        """What it said since it was started last."""
        return self.errors.read_bytes()[self.said_before :].decode(errors="replace")

    def must_run(self) -> None:
        """Raises AssertionError with its last words if it has ended by itself."""
        assert self.running is not None, f"{self.name} was not started"
        code = self.running.poll()
        assert code is None, f"{self.name} ended by itself with {code}:\n{self.said()[-3000:]}"

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        self.must_run()
        self._end(signal.SIGKILL)
        self.kills += 1

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def must_stop(self) -> None:
        """SIGTERM, after which it must end with 0; one that is still importing has no handler yet, and ends as any process does."""
        self.must_run()
        is_new = not self._catches(signal.SIGTERM)
        code = self.stop()
        was_right = code == 0 or (is_new and code == -signal.SIGTERM)
        assert was_right, f"{self.name} ended with {code} after SIGTERM:\n{self.said()[-3000:]}"

    def ended(self, seconds: float = START_SECONDS, after: str = "") -> int:
        """Wait for it to end by itself; returns the exit code. Raises AssertionError, with where it stands, if it does not."""
        assert self.running is not None, f"{self.name} was not started"
        try:
            code = self.running.wait(seconds)
        except subprocess.TimeoutExpired:
            # With SIGABRT it says where each of its threads stands.
            self.running.send_signal(signal.SIGABRT)
            self.running.wait(START_SECONDS)
            self.running = None
            raise AssertionError(f"{self.name} did not end within {seconds:g} s{after}:\n{self.said()[-6000:]}") from None
        self.running = None
        return code

    def _end(self, number: signal.Signals) -> int:
        assert self.running is not None, f"{self.name} was not started"
        self.running.send_signal(number)
        return self.ended(STOP_SECONDS, f" of {number.name}")

    def _catches(self, number: signal.Signals) -> bool:
        """Whether it has a handler for this signal (Linux: `SigCgt`)."""
        assert self.running is not None, f"{self.name} was not started"
        status = Path(f"/proc/{self.running.pid}/status").read_text()
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught, 16) & 1 << (number - 1))


class Site(Struct):
    """One log with the processes on it. Everything lies in `folder`."""

    folder: Path
    clock: Clock = field(default_factory=SystemClock)
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.folder / "log"

    @property
    def state(self) -> Path:
        """Where the stream processor keeps its tables."""
        return self.folder / "state"

    @property
    def spec(self) -> str:
        """The log as `--log` names it."""
        return f"sqlite:{self.path}"

    def opened(self, ledger_partitions: int = 2) -> Log:
        """The log, made if it is missing; stamped by this site's clock."""
        log = SqliteLog.open(self.path, create=True, clock=self.clock.wall_ms)
        open_ledger(log, ledger_partitions=ledger_partitions)
        return log

    def start(self, name: str, command: list[str]) -> Process:
        """Start a process of that name."""
        process = self.processes.setdefault(name, Process(name, command, self.folder / f"{name}.err"))
        process.command = command
        process.start()
        return process

    def run_command(self, name: str, *options: str, lease_seconds: float = 1.0) -> list[str]:
        """`claimlog run` on this log. `lease_seconds` are real ones, whatever the clock."""
        clock = ["--clock", str(self.clock)] if isinstance(self.clock, ScaledClock) else []
        factor = self.clock.factor if isinstance(self.clock, ScaledClock) else 1
        leases = ["--lease-timeout", str(lease_seconds * factor)]
        state = [] if {"--state", "scheduler"} & set(options) else ["--state", str(self.state)]
        return [*CLAIMLOG, "run", "--log", self.spec, "--name", name, *state, *leases, *clock, *options]

    def processor(self, name: str = "host", *options: str) -> Process:
        """A stream processor."""
        return self.start(name, self.run_command(name, "--only", "processor", *options))

    def scheduler(self, name: str, *options: str) -> Process:
        """A scheduler."""
        return self.start(name, self.run_command(name, "--only", "scheduler", *options))

    def verb(self, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """A verb of the command line on this log, run to its end."""
        command = [*CLAIMLOG, *arguments, "--log", self.spec]
        return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)

    def all_must_run(self) -> None:
        """Raises AssertionError if a process ended by itself."""
        for process in self.processes.values():
            process.must_run()

    def wait(self, seconds: float) -> None:
        """Let everything run for so many real seconds; nothing may end by itself."""
        time.sleep(seconds)
        self.all_must_run()

    def stop_all(self) -> None:
        """Stop every process with SIGTERM; each must end with 0."""
        for process in self.processes.values():
            if process.running is not None:
                process.must_stop()

    def process_to_the_end(self) -> None:
        """With everything else stopped, let the stream processor carry and fold what is left."""
        self.processor("last", "--until-idle")
        last = self.processes["last"]
        code = last.ended(120.0)
        assert code == 0, f"the stream processor ended with {code}:\n{last.said()[-3000:]}"


CLAIMLOG = [sys.executable, "-c", "from streams.cli.main import main; main()"]
"""The command, without a need for the package to be installed."""


@contextmanager
def site(folder: Path, clock: Clock | None = None) -> Iterator[Site]:
    """A site in `folder`; whatever still runs at the end is killed, so that a failed test leaves nothing behind."""
    here = Site(folder) if clock is None else Site(folder, clock)
    try:
        yield here
    finally:
        for process in here.processes.values():
            if process.running is not None:
                process.running.kill()
                process.running.wait()
