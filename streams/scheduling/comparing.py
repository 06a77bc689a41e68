"""Another scheduler's choice held against ours on the same fleet: do they agree, and if not, what makes the difference."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from projections.room import Room
from schemas.results import Decision
from streams.scheduling.ask import Ask
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy
from streams.scheduling.reference import prepare, rooms_for, run_filters
from streams.scheduling.weighers import Column, weigh

Verdict = Literal["agrees", "equal", "differs", "refuses", "only-they", "only-we", "both-refuse", "unknown"]
SHARES_MAX = 3
"""Weighers named in one reason: those that make most of the difference."""


class Compared(Struct, frozen=True, kw_only=True):
    """`theirs` is the other's node, empty if it found none, None if what became of it is not known; `ours` is empty if we find none."""

    verdict: Verdict
    theirs: str | None
    ours: str
    why: str = ""


def compare(fleet: Fleet, ask: Ask, decision: Decision, theirs: str | None, policy: Policy, *, their_reason: str = "") -> Compared:
    """Hold `theirs` against `decision`, which was made for `ask` on this very fleet with this policy.

    `equal`: another node of the same score, so the tie was broken otherwise. `refuses`: our filters do not let theirs pass.
    """
    ours = decision.chosen
    if theirs is None:
        return Compared(verdict="unknown", theirs=None, ours=ours, why="no message says where it went")
    if not theirs:
        said = f"they said: {their_reason}" if their_reason else ""
        return Compared(verdict="only-we" if ours else "both-refuse", theirs="", ours=ours, why=said)
    if theirs == ours:
        return Compared(verdict="agrees", theirs=theirs, ours=ours)
    rooms = rooms_for(fleet.rooms(), ask)
    room = next((each for each in rooms if each.node_id == theirs), None)
    if room is None:
        return Compared(verdict="refuses" if ours else "only-they", theirs=theirs, ours=ours, why=f"{theirs} is not known")
    reason = rejection(room, ask, policy)
    if not ours:
        return Compared(verdict="only-they", theirs=theirs, ours="", why=reason or f"{theirs} passes every filter by itself")
    if reason:
        return Compared(verdict="refuses", theirs=theirs, ours=ours, why=reason)
    return _scored(rooms, ask, policy, theirs, ours)


def rejection(room: Room, ask: Ask, policy: Policy) -> str:
    """The first filter that rejects one node and why; empty if all let it pass."""
    for filter_, check in prepare(ask, policy):
        if check.rejects(room):
            return f"{filter_.name}: {check.reason(room)}"
    return ""


def _scored(rooms: list[Room], ask: Ask, policy: Policy, theirs: str, ours: str) -> Compared:
    passed = run_filters(rooms, prepare(ask, policy)).passed
    scores, columns = weigh(passed, policy.pairs, ask=ask, options=policy.options)
    at = {room.node_id: number for number, room in enumerate(passed)}
    their, our = at[theirs], at[ours]
    if scores[their] == scores[our]:
        return Compared(verdict="equal", theirs=theirs, ours=ours, why=f"both score {scores[our]:.3f}")
    why = f"{scores[our]:.3f} against {scores[their]:.3f}: {'; '.join(_shares(columns, our, their))}"
    return Compared(verdict="differs", theirs=theirs, ours=ours, why=why)


def _shares(columns: list[Column], our: int, their: int) -> list[str]:
    """The weighers that say other things of the two, the most decisive first."""
    pairs = [(column.weight(our), column.weight(their)) for column in columns]
    apart = sorted(
        [pair for pair in pairs if pair[0].multiplied != pair[1].multiplied], key=lambda p: -abs(p[0].multiplied - p[1].multiplied)
    )
    shares = [f"{a.weigher} {a.multiplied - b.multiplied:+.3f} ({a.raw:.10g}, {b.raw:.10g})" for a, b in apart[:SHARES_MAX]]
    return shares + ([f"{len(apart) - SHARES_MAX} more"] if len(apart) > SHARES_MAX else [])
