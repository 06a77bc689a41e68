"""How long a process waits for a log that is full or out of reach, and what it says meanwhile: one rule for all of them."""

from __future__ import annotations

from collections.abc import Callable

from streams.log.base import LogFull, LogUnreachable

PAUSE_SECONDS = 0.5
"""Pause before a log that is full or out of reach is tried again: making room or starting a broker takes longer than this."""
UNREACHABLE_SECONDS_MAX = 300.0
"""How long a log may be out of reach before the process ends: what a rolling restart of a cluster takes. Then something else may be wrong
with this process or its machine, and whoever supervises it should know."""

Trouble = LogFull | LogUnreachable


class Patience:
    """What trouble there is, since when. `tell` hears each kind once, and when it is over; `clock` gives seconds and only runs."""

    def __init__(self, tell: Callable[[str], None], clock: Callable[[], float]) -> None:
        self.trouble: Trouble | None = None
        self._tell, self._clock = tell, clock
        self._since = 0.0

    def met(self, trouble: Trouble) -> None:
        """The log was tried in vain. Raises what has lasted too long; somebody has to make room, so that is waited for without end."""
        now = self._clock()
        if type(self.trouble) is not type(trouble):
            self._since = now
            waits = "waiting for room" if isinstance(trouble, LogFull) else f"trying again for {UNREACHABLE_SECONDS_MAX:.0f} s"
            self._tell(f"{waits}: {trouble}")
        self.trouble = trouble
        if isinstance(trouble, LogUnreachable) and now - self._since > UNREACHABLE_SECONDS_MAX:
            raise trouble

    def over(self) -> None:
        """The log took what there was."""
        if self.trouble is not None:
            self._tell(again(self.trouble))
            self.trouble = None


def again(trouble: Trouble) -> str:
    """That a trouble is over."""
    return "there is room again" if isinstance(trouble, LogFull) else "the log answers again"
