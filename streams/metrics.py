"""What a process tells Prometheus, and whether it is well: `/metrics`, `/healthz` and `/readyz` over HTTP, loopback by default.

With `metrics_text` and `metrics_nodes` the home of prometheus_client. Names follow Prometheus' rules: base units, `_total` on counters,
never an instance's id as a label.
"""

from __future__ import annotations

import io
import socket
import sys
import threading
import time
from collections import Counter as CountOf
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any, Final, get_args
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from schemas.results import FailureReason, NodeResources, OutcomeKind
from streams.clock import ClockMs, wall_clock_ms
from streams.log.base import Partition
from streams.metrics_nodes import Breath, NodeTexts
from streams.metrics_text import Environ, StartResponse, exposed

# How long a client may take for its request, and again to read its answer: as long as Prometheus waits. A thread each, and a file each.
CLIENT_SECONDS: Final = 10.0
CLIENTS_MAX: Final = 64
# How long a turn may take in which states are loaded: as long as a table may. 300,000 held claims took 45 s on a busy machine, and whoever
# ends a process that is not alive after 60 s would end that of a large ledger at every start.
LOADING_SECONDS: Final = 300.0
ANSWERS_SECONDS: Final = 5.0
"""How long a turn of a process that is ready may take until it is called ready no more: none does where the log answers."""


class Metrics:
    """Every series of claimlog, in a registry of its own. Series exist from the start, so that a rate over them is never empty.

    `clock` is what partitions' times are compared with when somebody asks.
    """

    def __init__(self, version: str, clock: ClockMs = wall_clock_ms) -> None:
        registry = self.registry = CollectorRegistry()
        self.version, self.clock = version, clock
        self.build = Info("claimlog_build", "Version of the running code", registry=registry)
        self.build.info({"version": version})
        self.records = Counter("claimlog_records_total", "Records processed", ["step", "topic"], registry=registry)
        self.outcomes = Counter("claimlog_claim_outcomes_total", "Outcomes of claims as folded", ["outcome"], registry=registry)
        self.dead_letters = Counter("claimlog_dead_letters_total", "Messages that count for nothing", ["topic", "kind"], registry=registry)
        self.offset = Gauge("claimlog_projection_offset", "Next offset of claims to fold", ["partition"], registry=registry)
        self.lag = Gauge("claimlog_projection_lag_records", "Records of claims not folded yet", ["partition"], registry=registry)
        self.republished = Counter("claimlog_node_rows_republished_total", "Rows mended that a zombie left behind", registry=registry)
        self.digest_mismatches = Counter(
            "claimlog_digest_mismatches_total", "Digests of other processes unlike this one's at the same offset", registry=registry
        )
        self.discarded = Counter(
            "claimlog_states_discarded_total", "Tables and snapshots not used: damaged, too slow, or of another log", registry=registry
        )
        self.placements = Counter("claimlog_placements_total", "Requests this process answered", ["result"], registry=registry)
        self.scheduled = {
            "conflicts": Counter("claimlog_claim_conflicts_total", "Claims refused because another took the room", registry=registry),
            "alternates_used": Counter(
                "claimlog_claim_alternates_used_total",
                "Claims granted on an alternate because another took the chosen node's room",
                registry=registry,
            ),
            "lost_races": Counter(
                "claimlog_placement_lost_races_total", "Requests that another scheduler answered first", registry=registry
            ),
            "late_results": Counter("claimlog_placement_late_results_total", "Own results that came too late to count", registry=registry),
        }
        """What a scheduler counts under these names."""
        self.placing = Histogram(
            "claimlog_placement_duration_seconds",
            "From the append of a request to the append of the result that counts",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
            registry=registry,
        )
        self.turns = Counter("claimlog_engine_turns_total", "Turns of an engine's loop", ["engine"], registry=registry)
        self.busy = Counter("claimlog_engine_busy_seconds_total", "Time spent in an engine's turns", ["engine"], registry=registry)
        # A series that begins with what it counts first has no rate for that.
        for outcome in get_args(OutcomeKind):
            self.outcomes.labels(outcome)
        for result in ("placed", *get_args(FailureReason)):
            self.placements.labels(result)
        self.lags: dict[str, Mapping[Partition, int]] = {}
        """Of each engine how many records it has still to read, as last measured; a mapping is replaced, never changed."""
        self.times_ms: dict[int, int] = {}
        """The time of each partition of claims: the largest append time there so far."""
        self.rows: dict[str, NodeResources] = {}
        """The newest row of each node, as published."""
        self.findings: CountOf[tuple[str, str]] = CountOf()
        """Open findings by kind and state."""
        registry.register(_Fleet(self))
        ProcessCollector(registry=registry)

    def dead(self, topic: str, kind: str) -> None:
        """One more message of `topic` counts for nothing, as `kind` says why."""
        self.dead_letters.labels(topic, kind).inc()

    def folded_to(self, partition: int, next_offset: int, end: int, time_ms: int) -> None:
        """How far the fold of a partition of claims is, and how far the log; `time_ms` is the partition's time there."""
        self.times_ms[partition] = time_ms
        self.offset.labels(str(partition)).set(next_offset)
        self.lag.labels(str(partition)).set(max(end - next_offset, 0))

    def forget(self, partition: int) -> None:
        """This process folds the partition no more: what it last knew of it is nobody's truth."""
        for gauge in (self.offset, self.lag):
            gauge.remove(str(partition))
        self.times_ms.pop(partition, None)


class _Fleet(Collector):
    """What is read off the rows when somebody asks, instead of kept up to date for nobody."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._nodes = metrics, NodeTexts()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The series of nodes, claims and findings. Called by the server's thread: it takes copies, which CPython makes in one go."""
        every = list(self._metrics.rows.values())
        yield from self._nodes.families(every, Breath())
        # A node that was taken out for good is missed by nobody.
        rows = [row for row in every if row.status != "withdrawn"]
        blind = GaugeMetricFamily("claimlog_nodes_unseen", "Nodes whose state is not known now, and why", labels=["why"])
        blind.add_metric(["audit-failed"], sum(row.unknown_since_ms is not None for row in rows))
        # Each node once: one whose audits fail falls silent after a while, and may never have had another.
        others = [row for row in rows if row.unknown_since_ms is None]
        blind.add_metric(["silent"], sum(row.silent_since_ms is not None for row in others))
        blind.add_metric(["never-audited"], sum(row.audit_taken_at_ms is None and row.silent_since_ms is None for row in others))
        yield blind
        nodes = GaugeMetricFamily("claimlog_nodes", "Nodes by the status that operators gave them", labels=["status"])
        for status, count in sorted(CountOf(row.status for row in every).items()):
            nodes.add_metric([status], count)
        yield nodes
        held = GaugeMetricFamily("claimlog_claims_held", "Held claims", labels=["confirmed"])
        unconfirmed = sum(row.claims_unconfirmed for row in every)
        held.add_metric(["no"], unconfirmed)
        held.add_metric(["yes"], sum(row.claims for row in every) - unconfirmed)
        yield held
        leaks = GaugeMetricFamily("claimlog_leaks", "Open findings of the leak audit", labels=["kind", "state"])
        for (kind, state), count in sorted(self._metrics.findings.copy().items()):
            leaks.add_metric([kind, state], count)
        yield leaks
        lags = GaugeMetricFamily("claimlog_reader_lag_records", "Records an engine has to read", labels=["engine", "topic", "partition"])
        for engine, places in sorted(self._metrics.lags.copy().items()):
            for (topic, number), lag in sorted(places.items()):
                lags.add_metric([engine, topic, str(number)], lag)
        yield lags
        yield self._ahead()

    def _ahead(self) -> GaugeMetricFamily:
        ahead = GaugeMetricFamily(
            "claimlog_projection_ahead_seconds", "How far a partition of claims has a time that is still to come", labels=["partition"]
        )
        now_ms = self._metrics.clock()
        for number, time_ms in sorted(self._metrics.times_ms.copy().items()):
            ahead.add_metric([str(number)], max(time_ms - now_ms, 0) / 1000)
        return ahead


class Health:
    """Whether the process is well: alive while its loop turns, ready once it has caught up."""

    def __init__(self, monotonic: Callable[[], float], stalled_seconds: float = 60.0, *, loads: bool = False) -> None:
        self._monotonic, self._stalled_seconds = monotonic, stalled_seconds
        self.loads = loads
        """Whether it loads what it takes over, at a start too: that is within one turn, however large the ledger. The next one ends it."""
        self._turned = monotonic()
        self.ready = False
        self.doing = "still catching up with the log"
        """What keeps it from being ready."""
        self.waits_for: Callable[[], str] = str
        """What it waits for before it can go on, where that is not the log, in words; nothing while it works."""
        self.waits = False
        """Whether it can only wait for a log that is full or out of reach. Who waits says itself when that has lasted too long."""
        self.troubles = 0
        """How often the loop came to such a log: who waits tries again and again, and who hangs does not."""

    def lacks(self) -> str:
        """What keeps the process from being ready now; nothing if it is."""
        if self.waits:
            return "waiting for a log that is full or out of reach"
        if self.ready and (idle := self.idle_seconds()) > ANSWERS_SECONDS:
            return f"the loop has not turned for {idle:.0f} s; it may wait for a log that does not answer"
        return "" if self.ready else self.waits_for() or self.doing

    def met_trouble(self) -> None:
        """The loop came round to a log that is full or out of reach."""
        self.ready, self.waits = False, True
        self.troubles += 1
        self._turned = self._monotonic()

    def turned(self) -> None:
        """The loop came round once more."""
        self._turned, self.loads = self._monotonic(), False

    def idle_seconds(self) -> float:
        """How long ago the loop came round."""
        return self._monotonic() - self._turned

    def limit_seconds(self) -> float:
        """How long ago that may be: longer while states are loaded."""
        return max(self._stalled_seconds, LOADING_SECONDS) if self.loads else self._stalled_seconds

    def alive(self) -> tuple[bool, str]:
        """Whether the loop still turns, and a sentence about it."""
        idle, limit, loads = self.idle_seconds(), self.limit_seconds(), self.loads
        if idle > limit:
            return False, f"the loop has not turned for {idle:.0f} s (limit {limit:.0f} s)"
        if loads and idle > self._stalled_seconds:
            return True, f"loading the ledger for {idle:.0f} s (limit {limit:.0f} s)"
        return True, f"the loop turned {idle:.1f} s ago"


class _Wellness(Collector):
    """What `/healthz` and `/readyz` say, as series."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The series of this process."""
        yield GaugeMetricFamily("claimlog_ready", "Whether this process has caught up with the log", value=not self._health.lacks())
        yield GaugeMetricFamily("claimlog_loop_idle_seconds", "Since the loop came round", value=self._health.idle_seconds())
        limit = self._health.limit_seconds()
        yield GaugeMetricFamily("claimlog_loop_idle_limit_seconds", "How long that may be: longer while a ledger is loaded", value=limit)


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each client: one that connects and says nothing must not keep others from asking whether the process lives."""

    daemon_threads = True
    request_queue_size = CLIENTS_MAX

    def __init__(self, *given: Any, **named: Any) -> None:
        self._room = threading.BoundedSemaphore(CLIENTS_MAX)
        super().__init__(*given, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin its thread, or hang up where there are too many."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be begun
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone or fallen silent is no news."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    """The same at an address of IPv6."""

    address_family = socket.AF_INET6


class _InTime(io.RawIOBase):
    """One direction of a connection, for `CLIENT_SECONDS` in all: with a byte each second a client would keep its thread for days.

    To be late and to be gone is the same, and no news.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._until = connection, 0.0

    def readable(self) -> bool:
        """See the base class."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See the base class. Raises ConnectionAbortedError."""
        return self._done(self._connection.recv_into, buffer) or 0

    def write(self, data: Any) -> int:
        """All of it. Raises ConnectionAbortedError."""
        self._done(self._connection.sendall, data)
        return len(data)

    def _done(self, act: Callable[[Any], int | None], data: Any) -> int | None:
        now = time.monotonic()
        self._until = self._until or now + CLIENT_SECONDS
        try:
            self._connection.settimeout(max(self._until - now, 0.001))
            return act(data)
        except OSError as problem:
            raise ConnectionAbortedError(f"the client is gone or late: {problem}") from None


class _QuietHandler(WSGIRequestHandler):
    """Requests of scrapers are no news, nor are clients that go."""

    def setup(self) -> None:
        """See the base class."""
        super().setup()
        streams: Any = self  # Their types are those of buffers, which an answer needs none of.
        streams.rfile, streams.wfile = io.BufferedReader(_InTime(self.connection)), _InTime(self.connection)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the base class's
        """Say nothing."""


def application(metrics: Metrics, health: Health) -> Callable[[Environ, StartResponse], Iterable[bytes]]:
    """The WSGI application behind `serve`."""
    exposition = exposed(metrics.registry)

    def answer(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path == "/metrics":
            return exposition(environ, start_response)
        if path in {"/healthz", "/readyz"}:
            alive, says = health.alive()
            lacks = health.lacks() if alive and path == "/readyz" else ""
            well, says = alive and not lacks, lacks or says
            start_response("200 OK" if well else "503 Service Unavailable", [("Content-Type", "text/plain; charset=utf-8")])
            return [says.encode() + b"\n"]
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"here are /metrics, /healthz and /readyz\n"]

    return answer


def serve(metrics: Metrics, health: Health, port: int, address: str = "127.0.0.1") -> WSGIServer:
    """Serve in threads of its own; `server_port` of what is returned tells the port if 0 was asked for.

    Raises OSError, which names address and port.
    """
    metrics.registry.register(_Wellness(health))
    try:
        server = make_server(address, port, application(metrics, health), _Server6 if ":" in address else _Server, _QuietHandler)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, f"{_host(address)}:{port}") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def url(address: str, port: int) -> str:
    """Where what is served at this address and port is found."""
    return f"http://{_host(address)}:{port}/metrics"


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
