"""`claimlog run`: the long-running process. It hosts the stream processor and a scheduler on one log, or only one of the two."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from cyclopts import Parameter

from schemas.topics import CLAIMS, STREAM_PARTITIONS
from streams.cli.exits import Exit, exit_of
from streams.cli.flags import LogFlag
from streams.cli.given.documents import policy_named
from streams.cli.given.units_in import folder, of_seconds, whole
from streams.cli.printed.printable import say
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import named_log, open_log
from streams.cli.reading.state_folder import STATE_HELP, state_folder
from streams.cli.version import installed_version
from streams.cli.writing import PARTITIONS_MAX, check_partitions
from streams.clock import Clock, parse
from streams.log.base import Lease, Log, LogUnreachable

if TYPE_CHECKING:
    from streams.log.kafka import KafkaLog
    from streams.metrics import Health, Metrics
    from streams.runner import Engine, Host
    from streams.scheduling.policy import Policy

EngineName = Literal["auto", "reference", "profiles", "first-fit"]
ENGINE_DEFAULT: Final = "auto"
ENGINE_HELP = (
    "How a scheduler selects: reference looks at every node, profiles choose alike and are quicker from 32 nodes on, auto takes either; "
    "first-fit measures the log alone."
)
AGAIN_SECONDS = 1.0
"""A second signal so much later is no echo of the first, as `timeout` and shells send one to a process and its group."""
POLICY_HELP = "A policy by name (spread, pack, nova, best-fit, bin-pack …) or its TOML file; default: spread."
NAME_HELP = (
    "What this process is called in records; default: the host's name and the process id. Each needs a name of its own: on an embedded log "
    "who starts under a name takes over from who had it, which ends."
)
AUDIT_HELP = "From one audit of a node to the next, in seconds or as 2m; three times that without one is silence."
LEASE_HELP = "Without a sign of life for so many seconds, or 2m, others take over; on Kafka 6 to 1800, a scheduler's alone."
RECOVERY_HELP = "Seconds, or 5m, that a table may take to load and catch up; then it is made anew from a snapshot or the log."
SECONDS_MAX = 7 * 86_400
AUDIT_SECONDS, LEASE_SECONDS, RECOVERY_SECONDS = 60.0, 10.0, 300.0
DEFAULTS = {
    "--policy": None, "--engine": ENGINE_DEFAULT, "--state": None,
    "--audit-interval": AUDIT_SECONDS, "--recovery-deadline": RECOVERY_SECONDS, "--lease-timeout": LEASE_SECONDS,
}  # fmt: skip
KAFKA_LEASE_SECONDS = (6, 1800)
"""What brokers take for a session unless they are told otherwise (`group.min.session.timeout.ms`, `group.max.session.timeout.ms`)."""
PROCESS_CHARACTERS_MAX = 100
"""Of 255 that an id may have. Names of hosts, of which a process is called if nothing else is said, have 64."""
PORT_MAX = 65_535
METRICS_ADDRESS = "127.0.0.1"
Only = Literal["processor", "scheduler"]


class Pace(NamedTuple):
    """How often producers audit a node, and how long a table may take until it is loaded and caught up."""

    audit_interval_ms: int
    recovery_seconds: float


def _fits(_type: object, name: str | None) -> None:
    """Raises ValueError for no name, and for one that leaves no room in an id: what nobody can read is no answer."""
    if name is None:
        return
    if not name:
        raise ValueError("expected a name; leave it out for one of the host's and the process id")
    if "/" in name:
        raise ValueError(f"expected a name without `/`, which parts claims' ids from it, got {name!r}")
    if len(name) > PROCESS_CHARACTERS_MAX:
        raise ValueError(f"expected at most {PROCESS_CHARACTERS_MAX} characters, got {len(name)}: claims' ids have it beside the request's")


def run(
    *,
    log: LogFlag = None,
    only: Annotated[Only | None, Parameter(help="Host only the stream processor, or only a scheduler; default: both.")] = None,
    state: Annotated[Path | None, Parameter(converter=folder, help=STATE_HELP)] = None,
    policy: Annotated[Path | None, Parameter(help=POLICY_HELP)] = None,
    engine: Annotated[EngineName, Parameter(help=ENGINE_HELP)] = ENGINE_DEFAULT,
    name: Annotated[str | None, Parameter(help=NAME_HELP, validator=_fits)] = None,
    audit_interval: Annotated[float, of_seconds(AUDIT_HELP)] = AUDIT_SECONDS,
    lease_timeout: Annotated[float, of_seconds(LEASE_HELP)] = LEASE_SECONDS,
    recovery_deadline: Annotated[float, of_seconds(RECOVERY_HELP)] = RECOVERY_SECONDS,
    ledger_partitions: Annotated[
        int | None, Parameter(converter=whole, show_default=False, help="Partitions of claims, 4 if left out; never changes.")
    ] = None,
    metrics: Annotated[int | None, Parameter(converter=whole, help="Serve Prometheus metrics and health at this port.")] = None,
    metrics_address: Annotated[str, Parameter(help="The address to serve them at.")] = METRICS_ADDRESS,
    until_idle: Annotated[bool, Parameter(negative=(), help="End when nothing is left to do that others who live do not do.")] = False,
    clock: Annotated[str, Parameter(show=False)] = "",
) -> int:
    """Carry observations into the ledger, fold it, publish what follows, and place instances, until stopped.

    Several processes on one log share its partitions, and schedulers the requests; when one ends the others take over what it had. On Kafka
    this is the stream processor alone, unless --only scheduler: its workers have a --state of their own each.
    """
    from streams.digest_check import DigestCheck, digest_name
    from streams.folder import Folder
    from streams.log.kafka import KafkaLog
    from streams.metrics import Health, Metrics
    from streams.runner import NoShare
    from streams.scheduling_engine import SchedulerEngine

    if ledger_partitions is not None and not 1 <= ledger_partitions <= PARTITIONS_MAX:
        raise UsageProblem(f"--ledger-partitions: expected 1 to {PARTITIONS_MAX}, got {ledger_partitions}; one a core that folds is plenty")
    _check_served(metrics, metrics_address)
    timing, pace, process = _clock(clock), Pace(round(audit_interval * 1000), recovery_deadline), name or _own_name()
    seconds = {"--audit-interval": audit_interval, "--recovery-deadline": recovery_deadline, "--lease-timeout": lease_timeout}
    _check_used(log, only, {"--policy": policy, "--engine": engine, "--state": state, **seconds})
    # All is read before a log is made: how many partitions its topics have never changes.
    chosen = _policy(policy, engine) if _places(log, only) else None
    asked: list[int] = []
    with ExitStack() as stack:
        stack.push(partial(_was_to_end, asked))
        opened = _opened(stack, log, timing, asked)
        _open_ledger(opened, ledger_partitions)
        version = installed_version("checkout")
        series, health = Metrics(version, timing.wall_ms), Health(time.monotonic, loads=True)
        _serve(stack, series, health, metrics, metrics_address)
        home = state or state_folder(log)
        if only != "scheduler" and isinstance(opened, KafkaLog):
            _workers_share(opened, home, name or "", series, health, timing, pace, asked, only=only, until_idle=until_idle)
            return _code(asked)
        engines = [] if only == "scheduler" else _processor(opened, home, process, series, timing, pace)
        if chosen is not None:
            engines.append(DigestCheck(opened, digest_name(process), series, say, everything=True))
            # Beside a stream processor nothing is placed before that has said which nodes went silent while it was away.
            may_begin = next((each.has_looked for each in engines if isinstance(each, Folder)), None)
            given = (opened, process, chosen, engine, timing, series, say)
            scheduler = SchedulerEngine(*given, lease_timeout_seconds=lease_timeout, version=version, may_begin=may_begin)
            health.waits_for = scheduler.lease.waits_for
            engines.append(scheduler)
        share = NoShare() if only == "scheduler" else opened.lease("stream-processor", STREAM_PARTITIONS, process, lease_timeout)
        _host(opened, engines, series, share, health).run(partial(bool, asked), until_idle=until_idle)
    return _code(asked)


def _host(log: Log, engines: Sequence[Engine], series: Metrics, share: Lease, health: Health) -> Host:
    """The host of these engines, which waits for what a scheduler among them has a share of, or has taken up."""
    from streams.measured import Measured
    from streams.runner import Host
    from streams.scheduling_engine import SchedulerEngine

    placing = [each for each in engines if isinstance(each, SchedulerEngine)]
    beside, is_open = [each.lease for each in placing], lambda: any(each.is_open() for each in placing)
    return Host(log, [Measured(each, log, series) for each in engines], share, health, sys.stderr, beside=beside, is_open=is_open)


PLACES_NOTHING = "this process hosts the stream processor and places nothing; it goes with `run --only scheduler`"
KEEPS_NOTHING = "this process hosts a scheduler, which keeps no tables and audits nothing; it goes with `run --only processor`"
IN_ANY_CASE = f"a worker on Kafka is missed after {KAFKA_LEASE_SECONDS[0]} s in any case; it goes with `run --only scheduler`"


def _check_used(log: str | None, only: Only | None, given: Mapping[str, Any]) -> None:
    """Raises UsageProblem for a time that cannot be meant, and for a flag that does nothing here: who gave it believes that it does."""
    for flag, seconds in given.items():
        if isinstance(seconds, float) and not 0 < seconds <= SECONDS_MAX:
            raise UsageProblem(f"{flag}: expected more than 0 and at most {SECONDS_MAX} seconds, got {seconds}")
    unused = {} if _places(log, only) else dict.fromkeys(("--policy", "--engine"), PLACES_NOTHING)
    if only == "scheduler":
        unused = dict.fromkeys(("--state", "--audit-interval", "--recovery-deadline"), KEEPS_NOTHING)
    if _is_kafka(log) and not _places(log, only):
        unused["--lease-timeout"] = IN_ANY_CASE
    for flag, why in unused.items():
        if given[flag] != DEFAULTS[flag]:
            raise UsageProblem(f"{flag}: {why}")
    least, most = KAFKA_LEASE_SECONDS
    if _is_kafka(log) and _places(log, only) and not least <= (seconds := given["--lease-timeout"]) <= most:
        raise UsageProblem(f"--lease-timeout: on Kafka expected {least} to {most} seconds, which is what brokers take, got {seconds:g}")


def _places(log: str | None, only: Only | None) -> bool:
    """Whether this process hosts a scheduler."""
    return only == "scheduler" or (only is None and not _is_kafka(log))


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _is_kafka(log: str | None) -> bool:
    return named_log(log).startswith("kafka:")


def _open_ledger(log: Log, partitions: int | None) -> None:
    """Make what is missing. Raises UsageProblem for another number of partitions of `claims` than there are."""
    from streams.ledger_topics import LEDGER_PARTITIONS_DEFAULT, made_anew, open_ledger

    check_partitions(log.topics(), "--ledger-partitions", partitions, CLAIMS)
    if made := open_ledger(log, ledger_partitions=partitions or LEDGER_PARTITIONS_DEFAULT):
        say(made_anew(made))


def _check_served(port: int | None, address: str) -> None:
    """Raises UsageProblem for a port or an address at which nothing can be served."""
    if port is not None and not 0 <= port <= PORT_MAX:
        raise UsageProblem(f"--metrics {port}: expected a port, 0 (any that is free) to {PORT_MAX}")
    if port is None and address != METRICS_ADDRESS:
        raise UsageProblem(f"--metrics-address {address}: nothing is served without --metrics PORT")
    if not address:
        raise UsageProblem("--metrics-address '': expected an address, such as 127.0.0.1, ::1, or 0.0.0.0 for all that this machine has")


def _serve(stack: ExitStack, metrics: Metrics, health: Health, port: int | None, address: str) -> None:
    """Serve metrics and health until the stack is left, where they are asked for."""
    from streams.metrics import serve, url

    if port is None:
        return
    try:
        server = stack.enter_context(serve(metrics, health, port, address))
    except OSError as problem:
        what_to_do = "name another port with --metrics (0: any that is free), or an address of this machine with --metrics-address"
        raise OSError(problem.errno, f"{problem.strerror}; {what_to_do}", problem.filename) from None
    stack.callback(server.shutdown)
    say(f"metrics and health at {url(address, server.server_port)}")


def _clock(text: str) -> Clock:
    try:
        return parse(text)
    except ValueError as problem:
        raise UsageProblem(f"--clock: {problem}") from None


def _workers_share(
    log: KafkaLog,
    home: Path,
    name: str,
    metrics: Metrics,
    health: Health,
    clock: Clock,
    pace: Pace,
    asked: list[int],
    *,
    only: Only | None,
    until_idle: bool,
) -> None:
    """On Kafka the stream processor is one of several workers among which Faust shares the partitions out."""
    from streams.app import FaustHost
    from streams.measured import Measured
    from streams.worker_directory import worker_directory

    if only is None:
        say("this process hosts the stream processor; on Kafka schedulers are processes of their own: claimlog run --only scheduler")
    settings, partitions = log.settings, log.topics()[STREAM_PARTITIONS]
    log.close()
    with worker_directory(home) as own_directory:
        worker_id = own_directory.worker_id
        # As constant as the worker's directory: each name of a process leaves a record of its digests.
        process = name or f"{socket.gethostname()}-{worker_id[:8]}"

        def engines(own: Log) -> list[Engine]:
            own_directory.check()
            return [Measured(each, own, metrics) for each in _processor(own, home, process, metrics, clock, pace)]

        FaustHost(
            settings, home, worker_id, partitions, engines, health, sys.stderr,
            until_idle=until_idle, recovery_seconds=pace.recovery_seconds, asked=asked, asked_code=_code, exit_code=exit_of,
        ).run()  # fmt: skip


def _processor(log: Log, state: Path, process: str, metrics: Metrics, clock: Clock, pace: Pace) -> list[Engine]:
    """The engines of a stream processor."""
    from streams.digest_check import DigestCheck, discard
    from streams.engines import Carrier, Watcher
    from streams.folder import Folder
    from streams.republisher import Republisher

    interval_ms, recovery_seconds = pace
    folder = Folder(
        log, state, process, metrics, say, clock=clock.wall_ms, audit_interval_ms=interval_ms, recovery_seconds=recovery_seconds
    )
    check = DigestCheck(log, process, metrics, say, discard=partial(discard, log, folder))

    def passed_over(reason: str) -> None:
        metrics.discarded.inc()
        say(reason)

    # The check comes first: it tells what this process publishes from what an earlier start of it did.
    return [
        check,
        Carrier(log, count_dead=metrics.dead, tell=say, passed_over=passed_over),
        folder,
        Republisher(log, folder),
        Watcher(log, count_dead=metrics.dead, tell=say, passed_over=passed_over),
    ]


def _policy(policy: Path | None, engine: str) -> Policy:
    """What a scheduler chooses by. Raises UsageProblem."""
    from streams.scheduling.policy import DEFAULT
    from streams.scheduling.select import unprofiled

    chosen = DEFAULT if policy is None else policy_named(str(policy), "--policy")
    if why := unprofiled(engine, chosen):
        say(f"--policy {policy}: every decision looks at every node, since {why} (docs/policies.md)")
    return chosen


def _was_to_end(asked: list[int], kind: type[BaseException] | None, _problem: BaseException | None, _where: TracebackType | None) -> bool:
    """Whether a log that is away ends a process that was asked to end: the code is that of the signal, however far it had come."""
    return bool(asked) and kind is not None and issubclass(kind, LogUnreachable)


def _opened(stack: ExitStack, log: str | None, clock: Clock, asked: list[int]) -> Log:
    """The log. Signals that ask this process to end are `asked` once they come; then a log that is away is not waited for much longer."""
    hurried: list[Callable[[], None]] = []
    _stopped_by_signals(stack, hurried, asked)

    def met(opened: KafkaLog) -> None:
        hurried.append(opened.hurry)
        if asked:
            opened.hurry()

    return stack.enter_context(open_log(log, os.environ, sys.stdin.buffer, create=True, clock=clock.wall_ms, met=met))


def _stopped_by_signals(stack: ExitStack, hurried: Iterable[Callable[[], None]], asked: list[int]) -> None:
    """SIGTERM and SIGINT end the process after the present turn; the handler takes note, and whoever waits for brokers is `hurried`.

    A turn that does not end, as in a policy's own code, is not waited for by who asks again: no end leaves anything half done.
    """
    first_s: list[float] = []

    def note(number: int, _frame: FrameType | None) -> None:
        first_s.append(time.monotonic())
        if first_s[-1] - first_s[0] > AGAIN_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        asked.append(number)
        for hurry in hurried:
            hurry()

    for number in (signal.SIGTERM, signal.SIGINT):
        stack.callback(signal.signal, number, signal.signal(number, note))


def _code(asked: list[int]) -> Exit:
    """How a process ends that did as it was asked: SIGTERM is how its supervisor ends it (0), and SIGINT interrupts as it does any verb."""
    return Exit.INTERRUPTED if asked[:1] == [signal.SIGINT] else Exit.DONE
