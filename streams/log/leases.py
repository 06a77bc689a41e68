"""How the members of a group divide a topic's partitions: a pure rule that every log of one machine uses (Kafka has its own).

Fair: no two live members differ by more than one partition. Sticky: nobody loses a partition that fairness lets it keep.
A name is one process's at a time: who comes under it takes it over, so that a restart need not wait, and who had it notices and ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from streams.clock import ClockMs
from streams.log.base import Lease, LogError, NameTaken

# A member writes its heartbeat this many times in a time-out (two may be late), and looks for changes by others this many times.
RENEWALS_PER_TIMEOUT = 4
LOOKS_PER_TIMEOUT = 20
RENEWAL_MS_MAX, LOOK_MS_MAX = 2_500, 1_000
"""However long its time-out, a member gives a sign as often as this, and looks: others may wait for one."""


class Heartbeat(NamedTuple):
    """When a member was last heard from, and for how long that counts; milliseconds of the log's clock."""

    member: str
    at_ms: int
    timeout_ms: int

    def is_alive(self, now_ms: int) -> bool:
        """Whether it still counts. A heartbeat far in the future is from before the clock was set back and counts as dead."""
        return abs(now_ms - self.at_ms) < self.timeout_ms


def divide(partitions: int, members: Sequence[str], held: Mapping[int, str]) -> dict[int, str]:
    """Who owns each partition: `held` as far as its holders are in `members` and keep a fair share, the rest to those with the fewest."""
    live = sorted(set(members))
    if not live:
        return {}
    owned: dict[str, list[int]] = {member: [] for member in live}
    for number in range(partitions):
        if held.get(number) in owned:
            owned[held[number]].append(number)
    floor, extra = divmod(partitions, len(live))
    # The larger shares go to those that hold most now, so that as few partitions as possible move.
    by_holding = sorted(live, key=lambda member: (-len(owned[member]), member))
    share = {member: floor + (rank < extra) for rank, member in enumerate(by_holding)}
    kept = {number: member for member in live for number in owned[member][: share[member]]}
    room = [member for member in by_holding for _ in range(share[member] - len(owned[member]))]
    free = [number for number in range(partitions) if number not in kept]
    return kept | dict(zip(free, room, strict=True))


class Group(NamedTuple):
    """All that the members of one group and topic share: who was heard from when, and who holds which partition."""

    heartbeats: Mapping[str, Heartbeat]
    held: Mapping[int, str]


def turn(group: Group, partitions: int, member: str, timeout_ms: int, now_ms: int, beat: Heartbeat | None) -> Group:
    """The group after `member` was heard from at `now_ms`: equal to `group` if its heartbeat is not due and nothing has to move.

    `beat` is the member's own heartbeat of before, None at its first turn. Raises NameTaken if the one that is there is another's.
    """
    heartbeats = {name: beat for name, beat in group.heartbeats.items() if beat.is_alive(now_ms)}
    mine = heartbeats.get(member)
    if mine is not None and beat is not None and mine != beat:
        raise NameTaken(f"another process called {member!r} has started and takes this one's place; give each a --name of its own")
    if mine is None or beat is None or not 0 <= now_ms - mine.at_ms < min(timeout_ms // RENEWALS_PER_TIMEOUT, RENEWAL_MS_MAX):
        heartbeats[member] = Heartbeat(member, now_ms, timeout_ms)
    return Group(heartbeats, divide(partitions, list(heartbeats), group.held))


def without(group: Group, member: str, beat: Heartbeat | None) -> Group:
    """The group after `member` left: what it held is free, unless another has its name by now, whose heartbeat is not `beat`."""
    if group.heartbeats.get(member) != beat:
        return group
    heartbeats = {name: beat for name, beat in group.heartbeats.items() if name != member}
    return Group(heartbeats, {number: name for number, name in group.held.items() if name != member})


class Roster(Protocol):
    """Where a log keeps one group's state."""

    def turn(self, member: str, timeout_ms: int, now_ms: int, beat: Heartbeat | None) -> Group:
        """Store `turn` of the group, writing only if it changes something, and return it."""
        ...

    def leave(self, member: str, beat: Heartbeat | None) -> None:
        """Store `without` of the group."""
        ...


class RosterLease:
    """See `streams.log.base.Lease`: one member's share, looked up at most `LOOKS_PER_TIMEOUT` times in a time-out."""

    def __init__(self, roster: Roster, member: str, timeout_ms: int, clock: ClockMs) -> None:
        self._roster, self._member, self._timeout_ms, self._clock = roster, member, timeout_ms, clock
        self._looked_ms: int | None = None
        self._beat: Heartbeat | None = None
        self._released = False
        self._mine: frozenset[int] = frozenset()
        self._others: list[Heartbeat] = []
        """The last heartbeats of whoever else has partitions."""

    def partitions(self) -> frozenset[int]:
        """See the contract. After `release` it is empty for good."""
        now_ms = self._clock()
        look_ms = min(self._timeout_ms // LOOKS_PER_TIMEOUT, LOOK_MS_MAX)
        if self._released or (self._looked_ms is not None and 0 <= now_ms - self._looked_ms < look_ms):
            return self._mine
        # Whether a write that failed landed is not known: after it the name is taken anew.
        beat, self._beat = self._beat, None
        try:
            group = self._roster.turn(self._member, self._timeout_ms, now_ms, beat)
        except NameTaken:
            self._released, self._mine = True, frozenset()
            raise
        self._looked_ms, self._beat = now_ms, group.heartbeats[self._member]
        self._mine = frozenset(number for number, member in group.held.items() if member == self._member)
        self._others = [group.heartbeats[member] for member in {*group.held.values()} - {self._member}]
        return self._mine

    def waits_for(self) -> str:
        """See the contract: it is known at once."""
        return ""

    def is_rest_at_work(self, seconds: float) -> bool:
        """See the contract."""
        since_ms = self._clock() - int(seconds * 1000)
        return all(beat.at_ms >= since_ms for beat in self._others)

    def release(self) -> None:
        """See the contract."""
        if not self._released:
            self._released, self._mine = True, frozenset()
            self._roster.leave(self._member, self._beat)


class Signs:
    """Signs of life in the midst of a turn. What goes wrong with one is told at the end: what the turn decided must not be lost."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._problem: LogError | None = None

    def give(self) -> None:
        """Renew the lease if that is due; after one that failed no more are given until `check`."""
        if self._problem is None:
            try:
                self._lease.partitions()
            except LogError as problem:
                self._problem = problem

    def check(self) -> None:
        """Raises what the last sign met, once."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
