"""What a process has to say to a log: appended in order, and kept until the log has it.

A log that is far away (Kafka) takes records without being waited for, through its method `begin`: a loop reads and decides on while what it
said is on its way. The embedded log takes them at once and, through `append_early`, does not wait for its disk. On any other log `send` is
`append`. What was not acknowledged is kept and goes first the next time, byte for byte, so that every fold knows the copy. Only what
was said in a topic that may go is left out once it has gone: it could stand nowhere, and all behind it would wait for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from streams.log.base import Log, LogError, Message, Partition


class Appending(Protocol):
    """Records on their way to a log. `ends` says behind which offset of each partition the last of them stands, once they have landed."""

    messages: Sequence[Message]
    ends: Mapping[Partition, int]

    def landed(self, timeout_seconds: float = 0.0) -> bool:
        """Whether all are durable, now or after waiting at most so long.

        Raises what the log raises where they are given up; some may stand in the log all the same.
        """
        ...


class Outbox:
    """Messages for one log. `may_go` are topics that may be deleted under it. See the module."""

    def __init__(self, log: Log, may_go: Collection[str] = ()) -> None:
        self._log, self._may_go = log, may_go
        self._begin: Callable[[Sequence[Message]], Appending] | None = getattr(log, "begin", None)
        self._append: Callable[[Sequence[Message]], list[int]] = getattr(log, "append_early", log.append)
        self._waiting: list[Message] = []
        self._under_way: deque[Appending] = deque()
        self._ends: dict[Partition, int] = {}

    def add(self, messages: Iterable[Message]) -> None:
        """Messages that `send` will send, behind those that wait already."""
        self._waiting.extend(messages)

    def send(self) -> int:
        """Send what waits; returns how many messages that were. Raises what the log raises, also of what was sent before."""
        self._settle()
        self._leave_out()
        count = len(self._waiting)
        if count:
            if self._begin is None:
                self._append(self._waiting)
            else:
                self._under_way.append(self._begin(self._waiting))
            self._waiting = []
        return count

    @property
    def is_far(self) -> bool:
        """Whether the log is one that takes records without being waited for."""
        return self._begin is not None

    @property
    def is_open(self) -> bool:
        """Whether something that was sent may be under way still, or not read back yet."""
        return bool(self._under_way or self._ends)

    def awaits(self, positions: Mapping[Partition, int]) -> bool:
        """Whether something is under way still, or has landed in one of these partitions and was not read back: reading stands before it.

        What was appended and waited for is the log's own affair: its next reads hand it out.
        """
        self._ends = {place: end for place, end in self._ends.items() if positions.get(place, end) < end}
        return self.is_open

    def finish(self, timeout_seconds: float) -> bool:
        """Send what waits and wait for it; whether all has landed. Raises as `send` does."""
        self.send()
        until = time.monotonic() + timeout_seconds
        self._settle(lambda: max(until - time.monotonic(), 0.0))
        return not self._under_way

    def _leave_out(self) -> None:
        if any(message.topic in self._may_go for message in self._waiting):
            there = self._log.topics()
            self._waiting = [message for message in self._waiting if message.topic in there or message.topic not in self._may_go]

    def _settle(self, left: Callable[[], float] = lambda: 0.0) -> None:
        try:
            while self._under_way and self._under_way[0].landed(left()):
                for place, end in self._under_way.popleft().ends.items():
                    self._ends[place] = max(end, self._ends.get(place, 0))
        except LogError:
            # One that is given up takes those behind it along: nothing may stand in the log behind a gap.
            self._waiting = [message for batch in self._under_way for message in batch.messages] + self._waiting
            self._under_way.clear()
            raise
