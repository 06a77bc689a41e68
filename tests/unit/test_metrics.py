"""Metrics and health over HTTP, on a port of their own."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from schemas.results import NodeResources, ResourceRow
from streams.metrics import Health, Metrics, serve


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


def test_a_loop_that_does_not_turn_is_not_well(served: tuple[Metrics, Health, str], clock: Time) -> None:
    _, health, url = served
    health.ready = True
    assert got(f"{url}/healthz")[0] == 200

    clock.now = 11

    status, says = got(f"{url}/healthz")
    assert status == 503
    assert "has not turned for 11 s" in says


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

    health.ready = True
    clock.now = 4

    after = got(f"{url}/metrics")[1]
    assert "claimlog_ready 0.0" in before
    assert "claimlog_ready 1.0" in after
    assert "claimlog_loop_idle_seconds 4.0" in after


def test_a_partition_that_is_another_s_is_shown_no_more(served: tuple[Metrics, Health, str]) -> None:
    metrics, _, url = served
    metrics.folded_to(3, next_offset=7, end=10)
    before = got(f"{url}/metrics")[1]

    metrics.forget(3)

    assert 'claimlog_projection_lag_records{partition="3"} 3.0' in before
    assert 'partition="3"' not in got(f"{url}/metrics")[1]


def test_nodes_that_are_not_seen_are_counted_by_the_reason(served: tuple[Metrics, Health, str]) -> None:
    metrics, _, url = served

    metrics.rows["n1"] = NodeResources(node_id="n1", partition=0, offset=1, unknown_since_ms=1, audit_taken_at_ms=1)
    metrics.rows["n2"] = NodeResources(node_id="n2", partition=0, offset=2)

    text = got(f"{url}/metrics")[1]
    assert 'claimlog_nodes_unseen{why="audit-failed"} 1.0' in text
    assert 'claimlog_nodes_unseen{why="never-audited"} 1.0' in text
    assert 'claimlog_nodes_unseen{why="silent"} 0.0' in text
