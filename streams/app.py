"""The Faust host: on Kafka, Faust shares the ledger's partitions out among workers and runs their life cycle. It carries no data.

Faust subscribes to the empty topic `stream-partitions` and nothing else. For what it assigns, one thread runs the same engines in the same
loop as the embedded host (`streams.runner.Host`) on a log of its own; when partitions are taken away, that thread has ended and the tables
are closed before Faust goes on. Why so, and each setting's reason: docs/faust.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

import faust

from schemas.topics import STREAM_PARTITIONS
from streams.app_errors import is_not_allowed, meant
from streams.app_security import address_family, resolve_only, security
from streams.ledger_topics import check_share
from streams.log.base import Log, LogUnreachable
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from streams.metrics import Health
from streams.patience import PAUSE_SECONDS, Patience
from streams.runner import Engine, Host
from streams.seldom import Seldom
from streams.tables import RECOVERY_SECONDS, mark_overdue
from streams.watchdog import GROUP, Share, Watchdog

SESSION_SECONDS: Final = 6.0
"""A worker not heard from for so long loses its partitions; brokers allow no less unless told."""
HEARTBEAT_SECONDS: Final = 1.0
REBALANCE_SECONDS: Final = 60.0
"""How long a rebalance waits for a worker that still closes its tables: longer than a turn that waits for a broker (`patience_ms`)."""
POLL_SECONDS_MAX: Final = 300.0
METADATA_SECONDS: Final = 10.0
"""How often Faust's client asks which partitions there are. Who shares out right behind a broker's start may be told of none."""
STOP_SECONDS: Final = 10.0
"""How long an orderly end may take. A crash loses nothing, so a process that hangs is ended."""
FAUST_STOP_SECONDS: Final = 4.0
"""How long Faust may take to end once the engines have. With brokers away its client (aiokafka 0.14) may end its thread, and it waits."""
UNREACHABLE: Final = 5
"""The exit code of the command line for a log that is away, also where Faust cannot end without its brokers."""


class _EngineThread:
    """One assignment's engines, in a thread that opens its own log and closes everything before it ends."""

    def __init__(self, host: FaustHost, partitions: frozenset[int], ended: Callable[[], None]) -> None:
        self._host, self._ended = host, ended
        self.share = Share(partitions)
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self._log: KafkaLog | None = None
        self._thread = threading.Thread(target=self._run, name="engines", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        host = self._host
        try:
            log = self._opened()
            if log is None:
                return
            with log:
                self._log = log
                if host.is_stopping():
                    log.hurry()
                check_share(log, self.share.owned, host.partitions)
                engines = host.make_engines(log)
                self.share.engines = engines
                Host(log, engines, self.share, host.health, host.err).run(self.stopped.is_set, until_idle=host.until_idle)
        except BaseException as failure:
            self.failure = failure
        if self.failure is not None or not self.stopped.is_set():
            self._ended()

    def _opened(self) -> KafkaLog | None:
        """The log, as soon as brokers answer; None when told to stop before. Raises LogUnreachable when that takes too long."""
        host, patience = self._host, Patience(self._host.tell, time.monotonic)
        while not self.stopped.is_set():
            try:
                log = KafkaLog.open(host.settings)
            except LogUnreachable as trouble:
                patience.met(trouble)
                self.stopped.wait(PAUSE_SECONDS)
            else:
                patience.over()
                return log
        return None

    def hurry(self) -> None:
        """The process is to end: brokers that are away are not waited for much longer."""
        if self._log is not None:
            self._log.hurry()

    async def stop(self) -> None:
        """Let it finish its turn and close; returns when it has."""
        self.stopped.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)


async def in_time(work: Coroutine[Any, Any, object], seconds: float) -> bool:
    """Whether something comes to its end in so many seconds; else it is given up. Raises what it raises."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        task.cancel()
        return False
    task.result()
    return True


class FaustHost:
    """One worker of the stream processor on Kafka.

    `home` is the worker's own directory, locked by `streams.worker_directory`, and `worker_id` what that gave. `make_engines` is called in
    the engines' thread with their log, anew for each assignment. `partitions` is how many `stream-partitions` has. With `until_idle` the
    worker ends when nothing is left to do in its share. `stall_seconds` is how long engines may stand still while there is work,
    `recovery_seconds` how long each table may be loaded. `asked` has the signals that came before `run` listens for them itself, and gets
    those that come then; `asked_code` is the exit code of one that ends as they ask, `exit_code` of one that hangs after something had
    ended it.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        home: Path,
        worker_id: str,
        partitions: int,
        make_engines: Callable[[Log], Sequence[Engine]],
        health: Health,
        err: TextIO,
        *,
        until_idle: bool = False,
        stall_seconds: float = 60.0,
        recovery_seconds: float = RECOVERY_SECONDS,
        asked: list[int] | None = None,
        asked_code: Callable[[list[int]], int] = lambda _: 0,
        exit_code: Callable[[BaseException], int] = lambda _: 1,
    ) -> None:
        self._asked, self._asked_code, self._exit_code = [] if asked is None else asked, asked_code, exit_code
        self.settings, self.home, self.worker_id, self.partitions = settings, home, worker_id, partitions
        self.make_engines, self.health, self.err, self.until_idle = make_engines, health, err, until_idle
        self._current: _EngineThread | None = None
        self._failure: BaseException | None = None
        self._joining_since: float | None = time.monotonic()
        self._faust: faust.App | None = None
        self._member: Any = None
        """The part of Faust's client that is a member of the group; the broker that keeps it is `coordinator_id`, None while unknown."""
        self._member_loop: asyncio.AbstractEventLoop | None = None
        self._is_new = True
        """It was given nothing to do yet, nor told that there is nothing."""
        self._stopping = threading.Event()
        self._watchdog = Watchdog(
            lambda: None if self._current is None else self._current.share,
            lambda: self._joining_since,
            lambda: KafkaLog.open(settings),
            health,
            self.tell,
            self._give_up,
            # An engine that waits for an answer of brokers says so after this patience only.
            stall_seconds=max(stall_seconds, 2 * settings.patience_ms / 1000),
            recovery_seconds=recovery_seconds,
            overdue=lambda partition: mark_overdue(home, partition),
            in_touch=lambda: getattr(self._member, "coordinator_id", 0) is not None and self._trouble() is None,
            refused=self._refused,
            out_of_reach=partial(self._give_up, code=UNREACHABLE),
        )

    def run(self) -> None:
        """Work until SIGTERM or SIGINT. Raises what ended an engine or Faust; a process that hangs is ended at once."""
        _say_seldom(self.err)
        threads_say, threading.excepthook = threading.excepthook, self._thread_ended
        try:
            asyncio.run(self._run())
        finally:
            threading.excepthook = threads_say
        if self._failure is not None:
            raise self._failure

    def _thread_ended(self, said: threading.ExceptHookArgs) -> None:
        """Faust's thread that is cancelled while it ends is no news; everything else is."""
        if not (self._stopping.is_set() and issubclass(said.exc_type, asyncio.CancelledError)):
            threading.__excepthook__(said)

    def is_stopping(self) -> bool:
        """Whether the process is to end."""
        return self._stopping.is_set()

    def tell(self, sentence: str) -> None:
        """Say something to people."""
        print(sentence, file=self.err, flush=True)

    async def _run(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def asked_to_end(number: int) -> None:
            self._asked.append(number)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked_to_end, number)
        if self._asked:
            # Until here, which takes seconds on a busy machine, somebody else took note of signals.
            stop.set()

        def ended() -> None:
            loop.call_soon_threadsafe(stop.set)

        app = self._app(ended)
        _resolve(app, address_family(self.settings.options))
        self._faust = app
        self._watchdog.start()
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(self._live(app))]
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        self._stopping.set()
        self._watchdog.stop()
        if self._current is not None:
            self._current.hurry()
        backstop = threading.Timer(STOP_SECONDS, self._give_up, [f"the end took more than {STOP_SECONDS:.0f} s"])
        backstop.daemon = True
        backstop.start()
        await self._close()
        if self._failure is None and waits[1] in done and (crash := waits[1].exception()) is not None:
            self._failure = crash
        with contextlib.suppress(asyncio.CancelledError):
            waits[1].cancel()
        if await in_time(app.stop(), FAUST_STOP_SECONDS):
            backstop.cancel()
        elif self._failure is None:
            # The engines have ended as they should. Leaving is all that is left, and Python would wait for Faust's thread for good.
            self.tell(f"Faust does not end: others have these partitions once the group misses this worker, after {SESSION_SECONDS:.0f} s")
            os._exit(self._asked_code(self._asked))
        self._watchdog.join()

    async def _live(self, app: faust.App) -> None:
        """Faust's life; raises what crashed it."""
        try:
            await app.start()
            await app.wait_until_stopped()
        except Exception as problem:
            raise meant(self.settings, problem) from problem
        reason = app.crash_reason
        raise meant(self.settings, reason or RuntimeError("Faust stopped by itself and gave no reason; start this worker again"))

    def _trouble(self) -> BaseException | None:
        """What ended the membership of the group. Faust's client keeps it for who reads next, which may be nobody, and does no more."""
        member = _member(self._faust)[0] if self._faust is not None and not self._stopping.is_set() else None
        pending: BaseException | None = getattr(member, "_pending_exception", None)
        task = getattr(member, "_coordination_task", None)
        if pending is None and task is not None and task.done() and not task.cancelled():
            pending = task.exception()
        return pending

    def _refused(self) -> str:
        """Why the group does not take or keep this worker, if brokers said that its user may not be in it."""
        problem = self._trouble()
        return str(meant(self.settings, problem)) if problem is not None and is_not_allowed(problem) else ""

    def _app(self, ended: Callable[[], None]) -> faust.App:
        """Faust with everything off that would carry, keep or create data."""
        settings = self.settings
        app = faust.App(
            settings.group(GROUP),
            broker=[f"kafka://{broker}" for broker in settings.brokers],
            broker_credentials=_credentials(settings.options),
            datadir=self.home / "faust",
            web_enabled=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            autodiscover=False,
            consumer_group_instance_id=self.worker_id,
            consumer_auto_offset_reset="earliest",
            producer_acks=-1,
            stream_wait_empty=False,
            broker_session_timeout=SESSION_SECONDS,
            broker_heartbeat_interval=HEARTBEAT_SECONDS,
            broker_rebalance_timeout=REBALANCE_SECONDS,
            broker_max_poll_interval=POLL_SECONDS_MAX,
            consumer_metadata_max_age_ms=round(METADATA_SECONDS * 1000),
            worker_redirect_stdouts=False,
        )
        name = settings.topic(STREAM_PARTITIONS)
        topic = app.topic(name, key_serializer="raw", value_serializer="raw", partitions=self.partitions)

        async def ignored(stream: Any) -> None:
            async for _ in stream.events():
                self.tell(f"{name}: a record came; nothing is read from this topic, its partitions are the work that workers share")

        # Without an agent Faust subscribes to nothing.
        app.agent(topic, concurrency=1, name="stream-partitions")(ignored)

        async def revoked(_app: Any, _partitions: Any, **_: Any) -> None:
            await self._close()
            self._joining_since = time.monotonic()

        async def assigned(_app: Any, partitions: Any, **_: Any) -> None:
            # No heartbeats are sent while this runs: whatever takes time is done in the engines' thread.
            await self._close()
            self._joining_since, (self._member, self._member_loop) = None, _member(app)
            self._begin(frozenset(place.partition for place in partitions if place.topic == name), ended)
            if self._is_new and not partitions:
                asyncio.get_running_loop().call_later(METADATA_SECONDS, self._ask_again)
            self._is_new = False

        # The types that mode gives its handlers fit no coroutine function.
        signals: Any = app
        signals.on_partitions_revoked.connect(revoked)
        signals.on_partitions_assigned.connect(assigned)
        return app

    def _begin(self, partitions: frozenset[int], ended: Callable[[], None]) -> None:
        if self._stopping.is_set():
            return
        said = ", ".join(map(str, sorted(partitions))) or "none for now"
        self.tell(f"worker {self.worker_id[:8]}: partitions {said}")
        # A worker in reserve is well.
        self.health.ready, self.health.waits = not partitions, False
        self.health.turned()
        if partitions:
            self._current = _EngineThread(self, partitions, ended)

    async def _close(self) -> None:
        current, self._current = self._current, None
        if current is None:
            return
        self.health.ready = False
        await current.stop()
        if current.failure is not None:
            self._failure = current.failure

    def _ask_again(self) -> None:
        """Who was given nothing at its start joins once more, a while later; for others than the group's leader that changes nothing.

        A leader that was started again is given what it had shared out before, as if it had never gone, and is not told to share out. If
        that was nothing, as brokers that had just begun to start knew of no topic, nobody else would see to it.
        """
        rejoin, loop = getattr(self._member, "request_rejoin", None), self._member_loop
        is_in_reserve = self._current is None and self._joining_since is None
        if is_in_reserve and not self._stopping.is_set() and rejoin is not None and loop is not None:
            loop.call_soon_threadsafe(rejoin)

    def _give_up(self, reason: str, code: int = 1) -> None:
        """End the process now. Nothing is lost: what was under way is done again by whoever has the partitions next."""
        failure = self._failure or (self._current.failure if self._current is not None else None)
        self.tell(f"claimlog: {reason}" + (f"; before that: {str(failure) or repr(failure)}" if failure is not None else ""))
        os._exit(code if failure is None else self._exit_code(failure))


def _member(app: faust.App) -> tuple[Any, Any]:
    """Faust says nothing of its group, so its client is asked: the member, and the loop it runs in. None from a Faust built otherwise."""
    thread = getattr(app.consumer, "_thread", None)
    return getattr(getattr(thread, "_consumer", None), "_coordinator", None), getattr(thread, "thread_loop", None)


def _say_seldom(err: TextIO) -> None:
    """Faust's client of Kafka says ten times a second that a broker is gone: to people once a minute."""
    client, said = logging.getLogger("aiokafka"), logging.StreamHandler(err)
    said.setLevel(logging.WARNING)
    said.addFilter(Seldom())
    client.handlers, client.propagate = [said], False


def _credentials(options: Mapping[str, str]) -> Any:
    """The settings of librdkafka for TLS and SASL as Faust takes them; None for plain text. Raises SettingsProblem."""
    asked = security(options)
    if asked.mechanism is None:
        return None if asked.tls is None else faust.SSLCredentials(asked.tls)
    return faust.SASLCredentials(username=asked.username, password=asked.password, ssl_context=asked.tls, mechanism=asked.mechanism)


def _resolve(app: faust.App, family: socket.AddressFamily) -> None:
    """Have both loops that Faust connects in, its own and that of its thread, take a broker's addresses of this family only."""
    if family is not socket.AF_UNSPEC:
        consumer: Any = app.consumer
        for loop in (asyncio.get_running_loop(), consumer._thread.thread_loop):  # noqa: SLF001 - Faust says nothing of it
            resolve_only(loop, family)
