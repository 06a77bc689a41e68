"""The proxy of the network tests does what it says: otherwise they would show nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.tcp_proxy import FINE, TcpProxy, Weather

PATIENCE_SECONDS = 10.0


class Echo:
    """A server that remembers what it is sent, and sends it back."""

    def __init__(self) -> None:
        self.heard = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while chunk := connection.recv(1000):
                    self.heard += chunk
                    connection.sendall(chunk)
            except OSError:
                return

    def hears(self, expected: bytes) -> bool:
        """Wait until it has heard exactly this."""
        end = time.monotonic() + PATIENCE_SECONDS
        while self.heard != expected and time.monotonic() < end:
            time.sleep(0.01)
        return self.heard == expected

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy(seed=1) as proxy:
        proxy.target = ("127.0.0.1", echo.port)
        yield proxy


def client(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_SECONDS)


def test_in_fine_weather_everything_passes_both_ways(proxy: TcpProxy, echo: Echo) -> None:
    with client(proxy) as here:
        here.sendall(b"hello")

        assert here.recv(100) == b"hello"
    assert echo.heard == b"hello"


def test_a_delay_delays_and_loses_nothing(proxy: TcpProxy) -> None:
    proxy.becomes(Weather(delay_seconds=0.1))
    with client(proxy) as here:
        began = time.monotonic()
        here.sendall(b"hello")

        assert here.recv(100) == b"hello"
    assert time.monotonic() - began >= 0.2


def test_a_connection_is_cut_after_so_many_bytes(proxy: TcpProxy, echo: Echo) -> None:
    proxy.becomes(Weather(cut_after_bytes=100))
    with client(proxy) as here, pytest.raises((ConnectionError, TimeoutError)):
        for _ in range(1000):
            here.sendall(b"x" * 10)
            if here.recv(100) == b"":
                raise ConnectionResetError("cut")

    assert len(echo.heard) <= 100
    assert proxy.cuts == 1


def test_a_hole_for_answers_lets_questions_through_and_delivers_later(proxy: TcpProxy, echo: Echo) -> None:
    with client(proxy) as here:
        proxy.becomes(Weather(holds_to_client=True))
        here.sendall(b"hello")
        assert echo.hears(b"hello")
        here.settimeout(0.1)
        with pytest.raises(TimeoutError):
            here.recv(100)

        proxy.becomes(FINE)
        here.settimeout(PATIENCE_SECONDS)

        assert here.recv(100) == b"hello"


def test_what_a_hole_swallowed_arrives_later_though_its_sender_has_gone(proxy: TcpProxy, echo: Echo) -> None:
    with client(proxy) as here:
        proxy.becomes(Weather(holds_to_server=True))
        here.sendall(b"hello")
    time.sleep(0.1)
    before = echo.heard

    proxy.becomes(FINE)

    assert before == b""
    assert echo.hears(b"hello")


def test_who_is_refused_sees_it_at_once_and_may_come_again(proxy: TcpProxy) -> None:
    with client(proxy) as here:
        here.sendall(b"hello")
        assert here.recv(100) == b"hello"
        proxy.becomes(Weather(refuses=True))
        with pytest.raises(ConnectionError):
            if here.recv(100) == b"":
                raise ConnectionResetError("closed")
    with client(proxy) as other, pytest.raises(ConnectionError):
        if other.recv(100) == b"":
            raise ConnectionResetError("closed")
    proxy.becomes(FINE)

    with client(proxy) as again:
        again.sendall(b"hello")

        assert again.recv(100) == b"hello"
    assert proxy.refused >= 1
