"""Whether a node takes part at all (Nova's ComputeFilter)."""

from __future__ import annotations

from datetime import UTC, datetime

from projections.room import Room
from streams.scheduling.ask import Ask, Check
from streams.scheduling.options import Options


def compute(ask: Ask, _: Options) -> Check:
    """Audited, enabled by the operator, and not silent."""
    del ask
    return Check(lambda rooms: [r for r in rooms if r.ready and r.node.silent_since_ms is None], _why)


def _why(room: Room) -> str:
    node = room.node
    if node.hypervisor is None:
        return "no audit of it is known"
    if node.status != "enabled":
        return node.status + (f" ({node.status_reason})" if node.status_reason else "")
    since = datetime.fromtimestamp((node.silent_since_ms or 0) / 1000, UTC)
    return f"silent since {since:%Y-%m-%dT%H:%M:%SZ}"
