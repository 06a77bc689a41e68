"""Clocks of hosts, for `claimlog doctor`: what they report is told by their own, and the log by its own when it came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from projections.rules import SKEW_MS
from schemas.topics import AUDITS, LIFECYCLE
from streams.cli.doctor.checks import Check
from streams.cli.printed import units
from streams.cli.reading.state import State
from streams.log.base import Log
from streams.log.reading import topic_records

AUDIT_LATE_MS = 60_000
"""An audit is in the ledger within seconds of the look; a minute is what a worker that starts has to catch up with."""
TAIL_RECORDS = 2_000
"""Of each partition the newest are looked at: a host whose clock is ahead says so with every audit."""


class _Times(Struct):
    taken_at_ms: int = -1
    event_time_ms: int = -1


def host_clocks(log: Log, state: State, now_ms: int) -> Iterator[Check]:
    """Reports must be neither much older than their records nor newer: claims are confirmed, and expire, by the time they were made."""
    found = [*_late(state, now_ms), *_ahead(log)]
    yield from found or [Check("ok", "clocks of hosts", "audits are in the log soon after they were taken")]


def _late(state: State, now_ms: int) -> Iterator[Check]:
    """Audits older than their records.

    Where a partition's time is ahead nobody knows when a record came, so the nodes heard of since are passed over.
    """
    ages_ms = {
        node_id: mark.heard_ms - node.audit.taken_at_ms
        for number, leaks in state.leaks.items()
        for node_id, mark in leaks.marks.items()
        # A failed audit is heard as well, and what it says is of before.
        if (node := state.ledgers[number].nodes[node_id]).audit is not None and node.unknown_since_ms is None and node.status != "withdrawn"
        if mark.heard_ms <= now_ms + SKEW_MS
    }
    if late := {node_id: behind_ms for node_id, behind_ms in ages_ms.items() if behind_ms > AUDIT_LATE_MS}:
        says = f"the newest audits of {_named(late)[0]} older than their records ({_named(late)[1]})"
        fix = "check NTP where they are audited, or what holds audits up: claims there are confirmed, and expire, as much later"
        yield Check("warn", "clocks of hosts", says, fix)


def _ahead(log: Log) -> Iterator[Check]:
    """Audits and life-cycle events newer than their records, by more than clocks may differ."""
    last = {}
    for topic in (AUDITS, LIFECYCLE):
        for record in topic_records(log, topic, TAIL_RECORDS):
            try:
                times = msgspec.json.decode(record.value, type=_Times)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # a dead letter
            node_id = (record.key or b"").decode(errors="replace")
            last[topic, node_id] = max(times.taken_at_ms, times.event_time_ms) - record.time_ms
    ahead: dict[str, int] = {}
    for (_, node_id), ahead_ms in last.items():
        if ahead_ms > SKEW_MS:
            ahead[node_id] = max(ahead_ms, ahead.get(node_id, 0))
    if ahead:
        says = f"the newest reports of {_named(ahead)[0]} newer than their records ({_named(ahead)[1]})"
        fix = "check NTP where they are made, and where the log's clock is: until then they count as made when the log took them"
        yield Check("warn", "clocks of hosts", says, fix)


def _named(by_node: Mapping[str, int]) -> tuple[str, str]:
    """`2 nodes are up to 3m`, and the one of which that is so."""
    worst_ms, worst = max((ms, node_id) for node_id, ms in by_node.items())
    return f"{units.counted(len(by_node), 'node')} are up to {units.span(worst_ms)}", worst
