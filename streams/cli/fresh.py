"""A state that is kept up to date while something is written by it, one thing after the other, beside everybody else."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from projections.ledger_state import Step
from schemas.topics import CLAIMS
from streams.cli.reading.apart import Tell
from streams.cli.reading.state import State
from streams.cli.reading.state_at import state_at
from streams.cli.writing import appended_to
from streams.log.base import Log, Message, Position
from streams.reconciler import SOURCES


class Fresh:
    """The state with all that was written and reported by now, as far as it matters.

    It goes on from record to record, unless hosts have reported what nobody has carried: that lies on the end of the ledger, in front of
    which the next record goes. Then it is loaded anew where anybody else has written or reported something, or what is asked about was
    written of since.
    """

    def __init__(self, log: Log, tell: Tell, *, views: bool = True) -> None:
        self._log, self._tell, self._views = log, tell, views
        self._ends = self._ends_now()
        self._state = state_at(log, tell=tell, views=views)
        self._ledger: State | None = None
        self._touched: set[str] = set()

    def now(self, *about: str) -> State:
        """The state as of now for what is asked `about`, nodes or instances; for all if nothing is named."""
        ends = self._ends_now()
        if ends != self._ends or (self._touched & set(about) if about else self._touched):
            self._ends = ends
            begun = None if self._state.laid else self._state
            self._state = state_at(self._log, tell=self._tell, views=self._views, begun=begun, stderr=StringIO())  # It is said once.
            self._touched.clear()
        return self._state

    def write(self, messages: Sequence[Message], *about: str) -> tuple[Position, Step]:
        """Append messages about these nodes or instances; returns as `appended_to`."""
        self._touched |= set(about) - {""}
        if self._state.laid and self._ledger is None:
            self._ledger = state_at(self._log, views=False, pending=False)
        position, step = appended_to(self._ledger or self._state, self._log, *messages)
        claims = self._ends[CLAIMS]
        if claims.get(position.partition) == position.offset + 1 - len(messages):
            claims[position.partition] = position.offset + 1  # Nobody else has written there.
        return position, step

    def _ends_now(self) -> dict[str, dict[int, int]]:
        there = self._log.topics()
        return {topic: dict(self._log.ends(topic)) for topic in (CLAIMS, *SOURCES) if topic in there}
