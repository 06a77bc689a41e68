"""A state that is kept up to date while something is written by it, one thing after the other, beside everybody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO

from projections.ledger_state import Step
from projections.reading import between
from schemas.topics import CLAIMS
from streams.cli.flags import Show
from streams.cli.printed.output import Report
from streams.cli.printed.printable import say
from streams.cli.reading.apart import Tell
from streams.cli.reading.state import READ_RECORDS, State
from streams.cli.reading.state_at import state_at
from streams.cli.writing import appended_to
from streams.log.base import Log, Message, Partition, Position
from streams.log.reading import places
from streams.reconciler import SOURCES


@contextmanager
def telling_what_stands(show: Show, written: Callable[[], Report]) -> Iterator[None]:
    """If what is done in here fails, show what was written by then, if anything was, before that is told."""
    try:
        yield
    except BaseException:
        if (report := written()).items:
            say("it ended before all was looked at; until then:")
            show.write(report)
        raise


class Fresh:
    """The state with all that was written and reported by now, as far as it matters.

    It goes on from record to record, unless hosts have reported what nobody has carried: that lies on the end of the ledger, in front of
    which the next record goes. Then it is loaded anew, but only where what was written or reported since names what is asked about: hosts
    report all the time.
    """

    def __init__(self, log: Log, tell: Tell, *, views: bool = True) -> None:
        self._log, self._tell, self._views = log, tell, views
        self._ends = self._ends_now()
        self._state = state_at(log, tell=tell, views=views)
        self._ledger: State | None = None
        self._news: list[bytes] = []
        """What was written and reported since the state was loaded."""

    @property
    def loaded(self) -> State:
        """The state as it was last loaded."""
        return self._state

    def now(self, *about: str) -> State:
        """The state as of now for what is asked `about`, nodes or instances; for all if nothing is named."""
        for place, end in self._ends_now().items():
            for record in between(self._log, *place, max(self._ends.get(place, 0), self._log.start(*place)), end, READ_RECORDS):
                self._news += (record.key, record.value)
            self._ends[place] = end
        names = [name.encode() for name in about if name]
        if any(name in text for text in self._news for name in names) if names else self._news:
            begun = None if self._state.laid else self._state
            self._state = state_at(self._log, tell=self._tell, views=self._views, begun=begun, stderr=StringIO())  # It is said once.
            self._news.clear()
        return self._state

    def write(self, messages: Sequence[Message]) -> tuple[Position, Step]:
        """Append messages; returns as `appended_to`."""
        if self._state.laid and self._ledger is None:
            self._ledger = state_at(self._log, views=False, pending=False)
        return appended_to(self._ledger or self._state, self._log, *messages)

    def _ends_now(self) -> dict[Partition, int]:
        return {place: self._log.end(*place) for place in places(self._log, CLAIMS, *SOURCES)}
