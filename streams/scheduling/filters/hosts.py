"""Beside or apart from named instances (Nova's SameHostFilter and DifferentHostFilter)."""

from __future__ import annotations

from projections.room import Room
from streams.scheduling.ask import Ask, Check
from streams.scheduling.options import Options


def different_host(ask: Ask, _: Options) -> Check | None:
    """Not where any of the hinted instances is."""
    others = ask.request.hints.different_host
    if not others:
        return None
    return Check(
        lambda rooms: [r for r in rooms if not any(other in r.instances for other in others)],
        lambda room: f"{_here(room, others)} is there, a different node is wanted",
    )


def same_host(ask: Ask, _: Options) -> Check | None:
    """Where at least one of the hinted instances is."""
    others = ask.request.hints.same_host
    if not others:
        return None
    return Check(
        lambda rooms: [r for r in rooms if any(other in r.instances for other in others)],
        lambda _: f"none of {', '.join(others[:3])} is there",
    )


def _here(room: Room, others: tuple[str, ...]) -> str:
    return ", ".join(other for other in others if other in room.instances)
