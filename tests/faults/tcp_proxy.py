"""A TCP proxy that makes a network bad: slow, cut in the middle of a message, silent in one direction or both, or closed.

What it holds back is not lost, as on a real network: it is delivered when the trouble is over, even if its sender has gone by then.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from msgspec import Struct

CHUNK_BYTES: Final = 64 << 10
START_SECONDS: Final = 10.0


class Weather(Struct, frozen=True, kw_only=True):
    """What the network is like. `delay_seconds` each way; a connection is cut after `cut_after_bytes` at most, drawn anew for each."""

    delay_seconds: float = 0.0
    cut_after_bytes: int = 0
    holds_to_server: bool = False
    holds_to_client: bool = False
    refuses: bool = False


FINE: Final = Weather()


class _Connection:
    """One client's connection and the one to the server that stands for it."""

    def __init__(self, up: asyncio.StreamWriter, down: asyncio.StreamWriter) -> None:
        self.writers = (up, down)
        self.left_bytes: int | None = None

    def cut(self) -> None:
        """Both ends see a reset."""
        for writer in self.writers:
            # A connection that is lost already needs no more.
            with suppress(RuntimeError, OSError):
                writer.transport.abort()


class TcpProxy:
    """Listens at `port` and passes everything on to `target`, in the weather of the moment. Runs in a thread of its own."""

    def __init__(self, seed: int = 0) -> None:
        self.target: tuple[str, int] = ("127.0.0.1", 0)
        self.connections = self.cuts = self.refused = self.passed_bytes = 0
        self._random = Random(seed)
        self._weather = FINE
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Condition()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), name="proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"

    def becomes(self, weather: Weather) -> None:
        """Change the weather for all connections, also those that are open. One that refuses resets these."""
        self._do(self._become(weather))

    def cut(self) -> None:
        """Reset every open connection."""
        self._do(self._cut())

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(START_SECONDS)

    async def _become(self, weather: Weather) -> None:
        self._weather = weather
        for connection in self._open:
            connection.left_bytes = self._drawn()
        if weather.refuses:
            await self._cut()
        async with self._changed:
            self._changed.notify_all()

    async def _cut(self) -> None:
        for connection in self._open:
            connection.cut()

    def _drawn(self) -> int | None:
        most = self._weather.cut_after_bytes
        return self._random.randint(1, most) if most else None

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, sock=self._socket)
        await self._stopped.wait()
        server.close()
        await self._cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A transport is closed in the turn of the loop after the one that aborts it.
        while self._open:  # noqa: ASYNC110 - the loop ends here; nobody is left to set an event
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather.refuses:
            self.refused += 1
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            # The server is away, and its clients are to see that.
            self.refused += 1
            writer.transport.abort()
            return
        self.connections += 1
        connection = _Connection(writer, far_writer)
        connection.left_bytes = self._drawn()
        self._open.add(connection)
        ways = [
            asyncio.ensure_future(self._carry(connection, reader, far_writer, to_server=True)),
            asyncio.ensure_future(self._carry(connection, far_reader, writer, to_server=False)),
        ]
        self._tasks.update(ways)
        await asyncio.wait(ways)
        self._tasks.difference_update(ways)
        self._open.discard(connection)
        connection.cut()

    async def _carry(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool) -> None:
        """One way: reading goes on while writing waits, so that what was sent is kept when its sender goes."""
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            try:
                while chunk := await reader.read(CHUNK_BYTES):
                    held.put_nowait((self._loop.time(), chunk))
            except OSError:
                # A reset ends the way as its end does: what came before it is passed on.
                return
            finally:
                held.put_nowait((self._loop.time(), b""))

        reading = asyncio.ensure_future(read())
        try:
            while True:
                came, chunk = await held.get()
                await self._wait(came, to_server=to_server)
                if not chunk:
                    break
                if self._passes(connection, writer, chunk):
                    return
                await writer.drain()
            writer.write_eof()
        except OSError:
            # The other side has gone; the way that leads there has nothing to do any more.
            return
        finally:
            reading.cancel()

    def _passes(self, connection: _Connection, writer: asyncio.StreamWriter, chunk: bytes) -> bool:
        """Pass a chunk on, or as much as may go; whether the connection was cut with that."""
        left = connection.left_bytes
        if left == 0:
            return True
        part = chunk if left is None else chunk[:left]
        writer.write(part)
        self.passed_bytes += len(part)
        if left is not None:
            connection.left_bytes = left - len(part)
            if connection.left_bytes == 0:
                self.cuts += 1
                self._loop.call_later(0.001, connection.cut)
                return True
        return False

    async def _wait(self, came: float, *, to_server: bool) -> None:
        while self._weather.holds_to_server if to_server else self._weather.holds_to_client:
            async with self._changed:
                await self._changed.wait()
        delay = came + self._weather.delay_seconds - self._loop.time()
        if delay > 0:
            await asyncio.sleep(delay)

    def close(self) -> None:
        """Reset everything and listen no more."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(START_SECONDS)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
