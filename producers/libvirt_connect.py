"""A connection to libvirt that cannot hang its caller: asked in a worker with a deadline, kept alive, its events run by a thread.

libvirt has no time-outs of its own: opening a stopped daemon, or asking one without keepalive, waits without end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import libvirt

Answer = TypeVar("Answer")

OPEN_TIMEOUT_SECONDS = 10.0
KEEPALIVE_SECONDS = 5
KEEPALIVE_TRIES = 3
"""A daemon that is silent for 20 s is given up: then its pending calls fail, and the close callback tells."""
TICK_MS = 200
"""libvirt's event loop blocks without handlers; a timer makes it look at `stop` five times a second."""


class HypervisorUnreachable(Exception):
    """The hypervisor could not be opened or asked in time; the message names the URI and what libvirt said."""


class Worker:
    """Makes blocking calls in a thread of its own, one at a time, each with a deadline.

    A call that missed its deadline cannot be ended from outside. Until it returns, further calls are refused at once, so that one stuck
    hypervisor costs one thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[tuple[Any, BaseException | None]]] | None] = SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        threading.Thread(target=self._run, name=f"libvirt {name}", daemon=True).start()

    def call(self, job: Callable[[], Answer], timeout_seconds: float) -> Answer:
        """The job's answer, or what it raised. Raises HypervisorUnreachable if it takes too long, or an earlier one still does."""
        if not self._idle.is_set():
            raise HypervisorUnreachable(f"{self._name}: an earlier call is still waiting for an answer")
        self._idle.clear()
        answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._jobs.put((job, answers))
        if not self._idle.wait(timeout_seconds):
            raise HypervisorUnreachable(f"{self._name}: no answer in {timeout_seconds:g} s")
        answer, error = answers.get()
        if error is not None:
            raise error
        result: Answer = answer
        return result

    def close(self) -> None:
        """The thread ends when it is done with what it does."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                outcome: tuple[Any, BaseException | None] = (job[0](), None)
            except Exception as error:
                outcome = (None, error)
            job[1].put(outcome)
            self._idle.set()


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
    """One open connection; `closed` says why it is no longer one."""

    def __init__(self, uri: str, handle: Any, worker: Worker) -> None:
        self.uri = uri
        self.handle = handle
        self.closed = ""
        self._worker = worker

    def ask(self, job: Callable[[Any], Answer], timeout_seconds: float) -> Answer:
        """`job(handle)` with a deadline. Raises HypervisorUnreachable, also for what libvirt raises."""
        if self.closed:
            raise HypervisorUnreachable(f"{self.uri}: {self.closed}")
        try:
            return self._worker.call(lambda: job(self.handle), timeout_seconds)
        except libvirt.libvirtError as error:
            raise HypervisorUnreachable(f"{self.uri}: {said(error)}") from error

    def close(self) -> None:
        """Give it up. A connection that is stuck is left to its worker."""
        handle = self.handle

        def leave() -> None:
            handle.close()

        if not self.closed:
            self.closed = "closed by us"
            try:
                self._worker.call(leave, OPEN_TIMEOUT_SECONDS)
            except (HypervisorUnreachable, libvirt.libvirtError) as error:
                self.closed = f"closed by us, badly: {error}"
        self._worker.close()


CLOSE_REASONS = ("error", "end of file: the daemon went away", "keepalive: the daemon is silent", "closed by the client")


def connect(uri: str, *, timeout_seconds: float = OPEN_TIMEOUT_SECONDS, read_only: bool = True) -> Connection:
    """Open `uri` with keepalive where the driver has it; an EventLoop must run. Raises HypervisorUnreachable within the deadline."""
    worker = Worker(uri)

    def opened() -> Any:
        handle = libvirt.openReadOnly(uri) if read_only else libvirt.open(uri)
        try:
            handle.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_TRIES)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:  # in-process drivers have nobody to keep alive
                raise
        return handle

    try:
        connection = Connection(uri, worker.call(opened, timeout_seconds), worker)
    except libvirt.libvirtError as error:
        worker.close()
        raise HypervisorUnreachable(f"{uri}: {said(error)}") from error
    except HypervisorUnreachable:
        worker.close()
        raise

    def lost(_: Any, reason: int, __: Any) -> None:
        connection.closed = CLOSE_REASONS[reason] if 0 <= reason < len(CLOSE_REASONS) else f"reason {reason}"

    connection.ask(lambda handle: handle.registerCloseCallback(lost, None), timeout_seconds)
    return connection


def said(error: Any) -> str:
    """What libvirt said, with its code: `Domain not found (42)`."""
    return f"{error.get_error_message() or error} (libvirt error {error.get_error_code()})"
