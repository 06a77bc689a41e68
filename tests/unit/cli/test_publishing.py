"""Whether a node is reported by a process that goes on, as the newest audits on the log tell."""

from __future__ import annotations

import pytest

from schemas.audits import HypervisorAudited
from schemas.codec import encode
from schemas.topics import AUDITS
from streams.cli.produce.publishing import Reporting, reporting
from streams.ledger_topics import open_ledger
from streams.log.base import Message
from streams.log.memory import MemoryLog

NOW_MS = 1_800_000_000_000


def told(
    *audits: tuple[int, int, float], node_id: str = "n1", producer: str = "libvirt", carried_seconds_ago: float | None = None
) -> MemoryLog:
    """A log of audits by epoch, counter and how many seconds ago they were taken, each appended then, or all when they were carried."""
    now_ms = [0]
    log = MemoryLog(clock=lambda: now_ms[0])
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    for epoch, counter, seconds_ago in audits:
        taken_ms = NOW_MS - int(seconds_ago * 1000)
        now_ms[0] = taken_ms if carried_seconds_ago is None else NOW_MS - int(carried_seconds_ago * 1000)
        look = HypervisorAudited(
            node_id=node_id,
            producer=producer,
            epoch=epoch,
            counter=counter,
            taken_at_ms=taken_ms,
            mono_ms=taken_ms - 1_700_000_000_000,
            digest="d",
        )
        log.append([Message(AUDITS, node_id.encode(), encode(look))])
    return log


def found(log: MemoryLog) -> Reporting | None:
    return reporting(log, "libvirt", "n1", NOW_MS)


@pytest.mark.parametrize(("seconds_ago", "is_running"), [(12, True), (179, True), (181, False)])
def test_a_node_is_reported_until_three_of_its_reports_were_missed(seconds_ago: int, is_running: bool) -> None:
    log = told((7, 1, 200 + seconds_ago), (7, 2, 60 + seconds_ago), (7, 3, seconds_ago))

    assert found(log) == (Reporting(every_ms=60_000, ago_ms=seconds_ago * 1000) if is_running else None)


@pytest.mark.parametrize(("seconds_ago", "is_running"), [(4, True), (6, False)])
def test_one_that_reports_all_the_time_is_given_some_seconds(seconds_ago: int, is_running: bool) -> None:
    assert (found(told((7, 1, seconds_ago + 0.1), (7, 2, seconds_ago))) is not None) is is_running


def test_who_looks_once_again_and_again_does_not_report_all_the_time() -> None:
    assert found(told((7, 1, 180), (8, 1, 120), (9, 1, 60))) is None


def test_a_look_that_arrived_twice_is_one() -> None:
    assert found(told((7, 1, 2), (7, 1, 2))) is None


def test_a_process_that_goes_on_behind_one_look_of_a_later_one_is_found_all_the_same() -> None:
    log = told((7, 1, 70), (7, 2, 10), (8, 1, 5))

    assert found(log) == Reporting(every_ms=60_000, ago_ms=10_000)


def test_what_a_spool_carried_at_once_was_reported_in_its_own_time() -> None:
    assert found(told((7, 1, 150), (7, 2, 90), (7, 3, 30), carried_seconds_ago=20)) == Reporting(every_ms=60_000, ago_ms=20_000)


def test_other_nodes_and_other_producers_are_others() -> None:
    assert found(told((7, 1, 70), (7, 2, 10), node_id="n2")) is None
    assert found(told((7, 1, 70), (7, 2, 10), producer="openstack")) is None


def test_a_time_of_the_future_says_nothing() -> None:
    assert found(told((7, 1, -3_540), (7, 2, -3_600))) is None
