"""A connection to libvirt that cannot hang its caller: asked in a worker with a deadline, kept alive, its events run by a thread.

libvirt has no time-outs of its own: opening a stopped daemon, or asking one without keepalive, waits without end. A call that missed its
deadline cannot be ended from outside; its connection is left behind with it, and its answer is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import libvirt

Answer = TypeVar("Answer")

OPEN_TIMEOUT_SECONDS = 10.0
CLOSE_TIMEOUT_SECONDS = 0.3
"""Closing is no more than a message to the daemon; what takes longer is left to its worker."""
KEEPALIVE_SECONDS = 5
KEEPALIVE_TRIES = 3
"""A daemon that is silent for 20 s is given up: then its pending calls fail, and the close callback tells."""
TICK_MS = 200
"""libvirt's event loop blocks without handlers; a timer makes it look at `stop` five times a second."""
OPENING_MAX = 3
OPENING_PAUSE_SECONDS = 600.0
"""Attempts to open that may hang at once; after that one more every ten minutes, so that a host that never answers costs little."""


class HypervisorUnreachable(Exception):
    """The hypervisor could not be opened or asked in time; the message names the URI and what libvirt said."""


class Pending(Generic[Answer]):
    """A call under way in a worker."""

    def __init__(self, job: Callable[[], Answer], name: str) -> None:
        self._job, self._name = job, name
        self._over = threading.Event()
        self._outcome: tuple[Answer | None, BaseException | None] = (None, None)

    @property
    def done(self) -> bool:
        """Whether the call has returned."""
        return self._over.is_set()

    def answer(self, timeout_seconds: float, *, waited_seconds: float = 0.0) -> Answer:
        """What the call returned, or raised. Raises HypervisorUnreachable if it takes longer; `waited_seconds` have passed already."""
        if not self._over.wait(timeout_seconds):
            raise HypervisorUnreachable(f"{self._name}: no answer in {round(waited_seconds + timeout_seconds, 2):g} s")
        found, error = self._outcome
        if error is not None:
            raise error
        return found  # type: ignore[return-value]  # there is an answer where there is no error

    def wait(self, timeout_seconds: float) -> None:
        """Wait for the call to return, for so long at most; what it returns or raises is dropped."""
        self._over.wait(timeout_seconds)

    def run(self) -> None:
        """Make the call; in the worker's thread."""
        try:
            self._outcome = (self._job(), None)
        except libvirt.libvirtError as error:
            # It says itself what happened. Its frames would hold the connection, and so its socket, until garbage is collected.
            self._outcome = (None, error.with_traceback(None))
        except Exception as error:
            self._outcome = (None, error)
        del self._job  # it holds the connection, which must not outlive its last caller
        self._over.set()


class Worker:
    """Makes blocking calls in a thread of its own, one at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Pending[Any] | None] = SimpleQueue()
        self._last: Pending[Any] | None = None
        self._thread = threading.Thread(target=self._run, name=f"libvirt {name}", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether the last call has returned."""
        return self._last is None or self._last.done

    @property
    def alive(self) -> bool:
        """Whether the thread is still there."""
        return self._thread.is_alive()

    def start(self, job: Callable[[], Answer]) -> Pending[Answer]:
        """Begin a call. Raises HypervisorUnreachable while an earlier one has not returned."""
        if not self.idle:
            raise HypervisorUnreachable(f"{self._name}: an earlier call is still waiting for an answer")
        pending = self._last = Pending(job, self._name)
        self._jobs.put(pending)
        return pending

    def last(self, job: Callable[[], Answer]) -> Pending[Answer]:
        """Make one more call when the last has returned, however long that takes; then the thread ends."""
        pending = self._last = Pending(job, self._name)
        self._jobs.put(pending)
        self._jobs.put(None)
        return pending

    def close(self) -> None:
        """The thread ends when it is done with what it does."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()


class EventLoop:
    """libvirt's event loop in a thread. There is one a process: libvirt's registration is global and must come before the first open."""

    def __init__(self) -> None:
        libvirt.registerErrorHandler(lambda *_: None, None)  # else libvirt prints each error on stderr; they are raised all the same
        libvirt.virEventRegisterDefaultImpl()
        self._stop = threading.Event()
        self._timer: int = libvirt.virEventAddTimeout(TICK_MS, lambda *_: None, None)
        self._thread = threading.Thread(target=self._run, name="libvirt events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it has ended, within some ticks."""
        self._stop.set()
        self._thread.join()
        libvirt.virEventRemoveTimeout(self._timer)

    def _run(self) -> None:
        while not self._stop.is_set():
            libvirt.virEventRunDefaultImpl()


class Connection:
    """One open connection, which is asked one thing at a time; `closed` says why it is no longer one.

    libvirt 9.0 crashes when keepalive gives up a connection on which two calls wait, so a call that hangs has its connection to itself.
    """

    def __init__(self, uri: str, handle: Any, worker: Worker) -> None:
        self.uri = uri
        self.handle = handle
        self.closed = ""
        self._worker = worker
        self._leaving: list[Callable[[], Any]] = []

    @property
    def busy(self) -> bool:
        """Whether a call has not returned."""
        return not self._worker.idle

    def start(self, job: Callable[[Any], Answer]) -> Pending[Answer]:
        """Begin `job(handle)`. Raises HypervisorUnreachable if the connection is lost, or an earlier call has not returned."""
        if self.closed:
            raise HypervisorUnreachable(f"{self.uri}: {self.closed}")
        handle = self.handle
        return self._worker.start(lambda: job(handle))

    def ask(self, job: Callable[[Any], Answer], timeout_seconds: float) -> Answer:
        """`job(handle)` with a deadline. Raises HypervisorUnreachable, also for what libvirt raises."""
        try:
            return self.start(job).answer(timeout_seconds)
        except libvirt.libvirtError as error:
            raise HypervisorUnreachable(f"{self.uri}: {said(error)}") from error

    def at_close(self, leave: Callable[[], Any]) -> None:
        """Have `leave` called before the connection is closed: libvirt keeps one open as long as somebody listens on it."""
        self._leaving.append(leave)

    def close(self) -> None:
        """Give it up, whatever state it is in. With a call that hangs it is closed when that returns: libvirt frees what it uses."""
        handle, self.handle = self.handle, None
        if handle is None:
            return
        self.closed = self.closed or "closed by us"
        leaving, self._leaving = [*self._leaving, handle.unregisterCloseCallback, handle.close], []

        def leave() -> None:
            for each in leaving:
                # That the other side is gone, or never had it, is no reason to keep the rest; there is nobody left to tell.
                with suppress(libvirt.libvirtError):
                    each()

        was_busy = self.busy
        left = self._worker.last(leave)
        if not was_busy:
            left.wait(CLOSE_TIMEOUT_SECONDS)


CLOSE_REASONS = ("error", "end of file: the daemon went away", "keepalive: the daemon is silent", "closed by the client")


class Opener:
    """Opens one URI again and again, and bears attempts that hang: a stopped daemon, or a host that fell silent in mid-sentence."""

    def __init__(self, uri: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds and only runs."""
        self._uri, self._clock = uri, clock
        self._hanging: list[Worker] = []
        self._last = 0.0

    def open(self, *, timeout_seconds: float = OPEN_TIMEOUT_SECONDS, read_only: bool = True) -> Connection:
        """Open with keepalive where the driver has it; an EventLoop must run. Raises HypervisorUnreachable within the deadline."""
        now = self._clock()
        self._hanging = [worker for worker in self._hanging if worker.alive]
        if len(self._hanging) >= OPENING_MAX and now - self._last < OPENING_PAUSE_SECONDS:
            raise HypervisorUnreachable(f"{self._uri}: {len(self._hanging)} earlier attempts to open it are still waiting for an answer")
        self._last = now
        uri, too_late, worker = self._uri, threading.Event(), Worker(self._uri)

        def opened() -> Any:
            handle = libvirt.openReadOnly(uri) if read_only else libvirt.open(uri)
            supported(lambda: handle.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_TRIES))  # in-process drivers have nobody to keep alive
            if too_late.is_set():
                handle.close()
            return handle

        pending = worker.start(opened)
        try:
            connection = Connection(uri, pending.answer(timeout_seconds), worker)
        except libvirt.libvirtError as error:
            worker.close()
            raise HypervisorUnreachable(f"{uri}: {said(error)}") from error
        except HypervisorUnreachable:
            too_late.set()
            worker.close()
            self._hanging.append(worker)
            raise
        self._hear_of_its_end(connection, max(0.1, now + timeout_seconds - self._clock()))
        return connection

    def _hear_of_its_end(self, connection: Connection, timeout_seconds: float) -> None:
        def lost(_: Any, reason: int, __: Any) -> None:
            connection.closed = connection.closed or (CLOSE_REASONS[reason] if 0 <= reason < len(CLOSE_REASONS) else f"reason {reason}")

        try:
            connection.ask(lambda handle: handle.registerCloseCallback(lost, None), timeout_seconds)
        except HypervisorUnreachable:
            connection.close()
            raise


def connect(uri: str, *, timeout_seconds: float = OPEN_TIMEOUT_SECONDS, read_only: bool = True) -> Connection:
    """Open `uri` once; see `Opener.open`."""
    return Opener(uri).open(timeout_seconds=timeout_seconds, read_only=read_only)


def said(error: Any) -> str:
    """What libvirt said, with its code: `Domain not found (42)`."""
    return f"{error.get_error_message() or error} (libvirt error {error.get_error_code()})"


def supported(call: Callable[[], Any]) -> Any:
    """The call's answer, or None if this driver does not have it. Raises libvirtError for anything else."""
    try:
        return call()
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_SUPPORT:
            return None
        raise
