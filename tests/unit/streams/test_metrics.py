"""Metrics and health over HTTP, on a port of their own."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from schemas.results import NodeResources, ResourceRow
from streams.metrics import CLIENTS_MAX, LOADING_SECONDS, Health, Metrics, serve, url


class Time:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def served(clock: Time) -> Iterator[tuple[Metrics, Health, str]]:
    metrics, health = Metrics("1.2.3"), Health(clock, stalled_seconds=10)
    server = serve(metrics, health, 0)
    yield metrics, health, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def got(url: str) -> tuple[int, str]:
    try:
        with urlopen(url) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_every_series_is_there_before_anything_happened(served: tuple[Metrics, Health, str]) -> None:
    _, _, url = served

    status, text = got(f"{url}/metrics")

    assert status == 200
    assert 'claimlog_build_info{version="1.2.3"} 1.0' in text
    assert "claimlog_claim_conflicts_total 0.0" in text
    assert 'claimlog_claim_outcomes_total{outcome="refused"} 0.0' in text
    assert all(f'claimlog_placements_total{{result="{result}"}} 0.0' in text for result in ("placed", "no-valid-node", "gave-up"))


def test_a_count_is_seen_by_the_next_scrape(served: tuple[Metrics, Health, str]) -> None:
    metrics, _, url = served

    metrics.outcomes.labels("granted").inc(3)

    assert 'claimlog_claim_outcomes_total{outcome="granted"} 3.0' in got(f"{url}/metrics")[1]


def test_a_process_is_ready_only_when_it_has_caught_up(served: tuple[Metrics, Health, str]) -> None:
    _, health, url = served
    before = got(f"{url}/readyz")

    health.ready = True

    assert before == (503, "still catching up with the log\n")
    assert got(f"{url}/readyz")[0] == 200


def test_a_process_that_waits_before_it_can_catch_up_says_for_what(served: tuple[Metrics, Health, str]) -> None:
    _, health, url = served
    health.waits_for = lambda: "waiting for brokers"
    waiting = got(f"{url}/readyz")

    health.ready = True

    assert waiting == (503, "waiting for brokers\n")
    assert got(f"{url}/readyz")[0] == 200


def test_a_loop_that_does_not_turn_is_not_well(served: tuple[Metrics, Health, str], clock: Time) -> None:
    _, health, url = served
    health.ready = True
    assert got(f"{url}/healthz")[0] == 200

    clock.now = 11

    status, says = got(f"{url}/healthz")
    assert status == 503
    assert "has not turned for 11 s" in says


def test_a_process_whose_question_to_the_log_is_not_answered_is_not_ready(served: tuple[Metrics, Health, str], clock: Time) -> None:
    _, health, url = served
    health.ready = True

    clock.now = 6
    waiting = got(f"{url}/readyz")
    health.turned()

    assert waiting == (503, "the loop has not turned for 6 s; it may wait for a log that does not answer\n")
    assert got(f"{url}/readyz")[0] == 200


def test_a_process_that_waits_for_the_log_is_alive_and_not_ready(served: tuple[Metrics, Health, str]) -> None:
    _, health, url = served
    health.ready = health.waits = True

    assert got(f"{url}/readyz") == (503, "waiting for a log that is full or out of reach\n")
    assert got(f"{url}/healthz")[0] == 200
    assert "claimlog_ready 0.0" in got(f"{url}/metrics")[1]


def test_other_paths_say_what_there_is(served: tuple[Metrics, Health, str]) -> None:
    assert got(f"{served[2]}/")[0] == 404


def test_nodes_are_shown_by_view_in_base_units_and_what_nothing_reports_is_left_out(served: tuple[Metrics, Health, str]) -> None:
    metrics, _, url = served

    metrics.rows["n1"] = NodeResources(
        node_id="n1",
        partition=0,
        offset=7,
        memory_mib=ResourceRow(limit=2, reported=1, tracked=None, claimed=1, used=1, free=1),
        claims=3,
        claims_unconfirmed=1,
        audit_taken_at_ms=1500,
    )

    text = got(f"{url}/metrics")[1]
    assert 'claimlog_node_memory_bytes{node="n1",view="limit"} 2.097152e+06' in text
    assert 'claimlog_node_memory_bytes{node="n1",view="tracked"}' not in text
    assert 'claimlog_node_audit_timestamp_seconds{node="n1"} 1.5' in text
    assert 'claimlog_claims_held{confirmed="yes"} 2.0' in text
    assert 'claimlog_nodes{status="enabled"} 1.0' in text


def test_open_findings_are_counted_by_kind_and_state(served: tuple[Metrics, Health, str]) -> None:
    metrics, _, url = served

    metrics.findings["ghost-instance", "confirmed"] = 2

    assert 'claimlog_leaks{kind="ghost-instance",state="confirmed"} 2.0' in got(f"{url}/metrics")[1]


def test_whether_the_process_is_well_is_a_series_too(served: tuple[Metrics, Health, str], clock: Time) -> None:
    _, health, url = served
    before = got(f"{url}/metrics")[1]

    health.ready, health.loads = True, True
    clock.now = 4

    after = got(f"{url}/metrics")[1]
    assert "claimlog_ready 0.0" in before
    assert "claimlog_ready 1.0" in after
    assert "claimlog_loop_idle_seconds 4.0" in after
    assert "claimlog_loop_idle_limit_seconds 10.0" in before
    assert "claimlog_loop_idle_limit_seconds 300.0" in after


def test_a_partition_that_is_another_s_is_shown_no_more(served: tuple[Metrics, Health, str]) -> None:
    metrics, _, url = served
    metrics.folded_to(3, next_offset=7, end=10, time_ms=0)
    before = got(f"{url}/metrics")[1]

    metrics.forget(3)

    assert 'claimlog_projection_lag_records{partition="3"} 3.0' in before
    assert 'partition="3"' not in got(f"{url}/metrics")[1]


def test_nodes_that_are_not_seen_are_counted_by_the_reason(served: tuple[Metrics, Health, str]) -> None:
    metrics, _, url = served

    metrics.rows["n1"] = NodeResources(node_id="n1", partition=0, offset=1, unknown_since_ms=1, audit_taken_at_ms=1)
    metrics.rows["n2"] = NodeResources(node_id="n2", partition=0, offset=2)
    metrics.rows["n3"] = NodeResources(node_id="n3", partition=0, offset=3, silent_since_ms=1, audit_taken_at_ms=1)
    # Its audits have failed for so long that it takes nothing new.
    metrics.rows["n4"] = NodeResources(node_id="n4", partition=0, offset=4, unknown_since_ms=1, silent_since_ms=1, audit_taken_at_ms=1)
    # Its only audit failed.
    metrics.rows["n5"] = NodeResources(node_id="n5", partition=0, offset=5, unknown_since_ms=1)

    text = got(f"{url}/metrics")[1]
    assert 'claimlog_nodes_unseen{why="audit-failed"} 3.0' in text
    assert 'claimlog_nodes_unseen{why="never-audited"} 1.0' in text
    assert 'claimlog_nodes_unseen{why="silent"} 1.0' in text


def test_a_node_that_was_withdrawn_is_missed_by_nobody(served: tuple[Metrics, Health, str]) -> None:
    metrics, _, url = served

    metrics.rows["n1"] = NodeResources(
        node_id="n1", partition=0, offset=1, status="withdrawn", silent_since_ms=1, audit_taken_at_ms=1, claims=1
    )
    metrics.rows["n2"] = NodeResources(node_id="n2", partition=0, offset=2, status="disabled", silent_since_ms=1, audit_taken_at_ms=1)

    text = got(f"{url}/metrics")[1]
    assert 'claimlog_nodes_unseen{why="silent"} 1.0' in text
    assert 'node="n1"' not in text
    assert 'claimlog_node_audit_timestamp_seconds{node="n2"}' in text
    assert 'claimlog_nodes{status="withdrawn"} 1.0' in text
    assert 'claimlog_claims_held{confirmed="yes"} 1.0' in text


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_client_that_says_nothing_keeps_no_other_from_its_answer(served: tuple[Metrics, Health, str]) -> None:
    _, _, url = served

    with socket.create_connection(("127.0.0.1", port_of(url))) as silent, socket.create_connection(("127.0.0.1", port_of(url))) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
        silent.sendall(b"")
        with urlopen(f"{url}/healthz", timeout=5) as answer:
            assert answer.status == 200


def test_of_very_many_silent_clients_those_beyond_a_bound_are_hung_up_on(served: tuple[Metrics, Health, str]) -> None:
    _, _, url = served

    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port_of(url)))) for _ in range(CLIENTS_MAX + 1)]
        silent[-1].settimeout(5)
        assert silent[-1].recv(1) == b""
        silent[0].sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        silent[0].settimeout(5)
        assert silent[0].recv(12) == b"HTTP/1.0 200"


def test_a_client_that_goes_in_the_middle_is_no_news(served: tuple[Metrics, Health, str], capfd: pytest.CaptureFixture[str]) -> None:
    _, _, url = served

    with socket.create_connection(("127.0.0.1", port_of(url))) as gone:
        gone.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
        time.sleep(0.1)
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset

    assert got(f"{url}/healthz")[0] == 200
    assert capfd.readouterr().err == ""


def fill(metrics: Metrics, nodes: int) -> None:
    for number in range(nodes):
        amounts = ResourceRow(limit=2, reported=1, tracked=1, claimed=1, used=1, free=1)
        metrics.rows[f"n{number}"] = NodeResources(node_id=f"n{number}", partition=0, offset=7, vcpus=amounts, memory_mib=amounts)


def serving() -> int:
    """How many clients have a thread."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_a_client_that_reads_little_or_nothing_of_a_large_answer_loses_it_and_is_no_news(
    served: tuple[Metrics, Health, str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.metrics.CLIENT_SECONDS", 1.0)
    metrics, _, url = served
    fill(metrics, 10_000)  # Far more than waits in the connection.

    with ExitStack() as stack:
        idle, slow, gone = clients = [stack.enter_context(socket.socket()) for _ in range(3)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(5)
            client.connect(("127.0.0.1", port_of(url)))
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        begun = [client.recv(12) for client in clients]
        busy, until = serving(), time.monotonic() + 10
        gone.close()
        while serving() and time.monotonic() < until:
            slow.recv(1)
            time.sleep(0.01)
        assert idle.recv(1)

    assert begun == [b"HTTP/1.0 200"] * 3
    assert busy > 0
    assert serving() == 0
    assert capfd.readouterr().err == ""


def test_a_client_that_says_a_byte_now_and_then_keeps_no_thread(
    served: tuple[Metrics, Health, str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.metrics.CLIENT_SECONDS", 0.5)

    with socket.create_connection(("127.0.0.1", port_of(served[2]))) as slow:
        until = time.monotonic() + 10
        with suppress(OSError):
            while time.monotonic() < until:
                slow.sendall(b"G")
                time.sleep(0.05)

    assert time.monotonic() < until
    while serving() and time.monotonic() < until + 10:  # hung up on, and not yet over
        time.sleep(0.01)
    assert serving() == 0
    assert capfd.readouterr().err == ""


INET6 = Path("/proc/net/if_inet6")


@pytest.mark.skipif(not INET6.exists() or "1".zfill(32) not in INET6.read_text(), reason="a machine without a loopback of IPv6")
def test_it_is_served_on_ipv6_too(clock: Time) -> None:
    server = serve(Metrics("1"), Health(clock), 0, "::1")

    assert got(url("::1", server.server_port))[0] == 200
    server.shutdown()
    server.server_close()


def test_a_port_that_is_taken_is_named(served: tuple[Metrics, Health, str], clock: Time) -> None:
    port = port_of(served[2])

    with pytest.raises(OSError, match="in use") as raised:
        serve(Metrics("1"), Health(clock), port)

    assert raised.value.filename == f"127.0.0.1:{port}"


def test_who_meets_a_full_log_while_it_loads_may_still_take_the_time_that_loading_may() -> None:
    now = [0.0]
    health = Health(lambda: now[0], stalled_seconds=60, loads=True)
    health.met_trouble()

    now[0] += LOADING_SECONDS - 1

    assert health.alive()[0]
    health.turned()
    now[0] += 61
    assert not health.alive()[0]
