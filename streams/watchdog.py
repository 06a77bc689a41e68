"""The watchdog of a worker: sees from outside whether its engines get on, says how far a recovery is, and ends a process that hangs.

A process that stands still is worse than one that ends: it keeps its partitions, and nobody else takes them over.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from schemas.topics import CLAIMS, STREAM_PARTITIONS
from streams.log.base import Log, LogError, LogOutdated, LogUnreachable, Partition
from streams.measured import Measured
from streams.metrics import Health
from streams.patience import UNREACHABLE_SECONDS_MAX
from streams.runner import Engine, progress, stands
from streams.tables import RECOVERY_SECONDS, Loading

LOOK_SECONDS: Final = 1.0
GROUP: Final = "stream-processor"
"""The group of the workers, which shares out `stream-partitions`."""
JOIN_SECONDS: Final = 120.0
"""How long the group may leave a worker without an answer: the longest rebalance, twice."""
RECOVERY_SAYS_SECONDS: Final = 5.0
LAST_LOOK_SECONDS: Final = 6.0
"""How long an end waits for the look that is under way: as long as a log takes that finds no broker, and a little more."""
STOPPED_SECONDS: Final = 10.0
"""So much longer than asked for nobody sleeps who runs: the process was stopped meanwhile, or its machine was."""


@runtime_checkable
class Loads(Protocol):
    """An engine with tables. What it says here it knows by heart: another thread asks, while it has its first turn."""

    @property
    def loading(self) -> Loading | None:
        """The table that is being loaded just now."""
        ...

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        """Where the folds stand whose tables are loaded."""
        ...


class Share:
    """The lease of an assignment: the partitions never change, and each turn of the engines leaves here where they stand."""

    def __init__(self, partitions: frozenset[int]) -> None:
        self.owned = partitions
        self.engines: Sequence[Engine] = ()
        self.positions: Mapping[Partition, int] = {}
        """Replaced, never changed: another thread reads it. Empty until the first turn is over."""
        self._turns = False

    def partitions(self) -> frozenset[int]:
        """See `Lease`."""
        if not self._turns:
            self._turns = True
            return self.owned
        self.positions = stands(self.engines, self.owned)
        return self.owned

    def loads(self) -> tuple[Loading | None, Mapping[Partition, int]]:
        """The table that is being loaded, and where the others' folds stand; for another thread, in the middle of a turn too."""
        for engine in self.engines:
            inner = engine.engine if isinstance(engine, Measured) else engine
            if isinstance(inner, Loads):
                return inner.loading, inner.waits(self.owned)
        return None, {}

    def waits_for(self) -> str:
        """See `Lease`: nothing, as it was given out."""
        return ""

    def is_rest_at_work(self, _seconds: float) -> bool:
        """See `Lease`: whoever is missed, all is given out anew."""
        return True

    def release(self) -> None:
        """Nothing is held: who has the partitions is Faust's word."""


class Standstill:
    """Judges whether engines get on. Times are seconds of one monotonic clock."""

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._since: dict[Partition, tuple[int, float]] = {}

    def judge(self, now: float, positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> str | None:
        """What stands still although there is more to read, if anything has for too long."""
        for place, offset in positions.items():
            before = self._since.get(place)
            if before is None or before[0] != offset or ends.get(place, 0) <= offset:
                self._since[place] = (offset, now)
        for place in self._since.keys() - positions.keys():
            del self._since[place]
        for place, (offset, since) in sorted(self._since.items()):
            if now - since > self._stall_seconds:
                return f"{place} has stood at {offset} for {now - since:.0f} s, though the log goes to {ends[place]}"
        return None


def recovery(positions: Mapping[Partition, int], ends: Mapping[Partition, int], owned: Iterable[int]) -> str:
    """How far the fold is, per partition: what it has, what it needs, what remains."""
    return "; ".join([progress(Partition(CLAIMS, number), positions, ends) for number in sorted(owned)])


class Watchdog:
    """Looks at a worker once a second, from a thread and a log of its own.

    `share` gives the present assignment's share, None without one; `joining_since` when the group was last asked for one, None once it
    answered. `give_up` is called with the reason, and must end the process; `out_of_reach` the same, where that is the log.
    `recovery_seconds` is how long each table may be loaded; then `overdue` marks that of its partition, for the next start to make anew,
    and returns its name.
    So long, and no less than `stall_seconds`, the first turn may get on with nothing. `in_touch` says whether the group's client knows who
    keeps the group, and is still a member: one that knows brokers only that are gone never finds out. `refused` says why the group will
    never have this worker, or no longer, empty while nothing is known against it. `seconds` only runs, and is the clock of the tables.
    """

    def __init__(
        self,
        share: Callable[[], Share | None],
        joining_since: Callable[[], float | None],
        open_log: Callable[[], Log],
        health: Health,
        tell: Callable[[str], None],
        give_up: Callable[[str], None],
        *,
        stall_seconds: float,
        recovery_seconds: float = RECOVERY_SECONDS,
        overdue: Callable[[int], Sequence[str]] = lambda _: (),
        in_touch: Callable[[], bool] = lambda: True,
        refused: Callable[[], str] = lambda: "",
        out_of_reach: Callable[[str], None] | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._recovery_seconds, self._overdue = recovery_seconds, overdue
        self._share, self._joining_since, self._open_log, self._health = share, joining_since, open_log, health
        self._tell, self._give_up, self._stall_seconds = tell, give_up, stall_seconds
        self._out_of_reach, self._failing_since = out_of_reach or give_up, math.inf
        self._borne = ""
        """What the log said last: once is enough, also where it says so each second."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._in_touch, self._refused, self._apart_since = in_touch, refused, math.inf
        self._watched: Share | None = None
        self._troubles = health.troubles
        self._began = self._said = self._moved = 0.0
        self._folded: Mapping[Partition, int] = {}
        self._standstill = Standstill(stall_seconds)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def join(self) -> None:
        """Wait until its log is closed, as told to stop: a client of brokers at work while Python ends may take the process down."""
        self._thread.join(LAST_LOOK_SECONDS)

    def _run(self) -> None:
        try:
            opened = self._opened()
            if opened is None:
                return
            with opened as log:
                while not self._waited():
                    try:
                        self._look(log)
                        self._failing_since, self._borne = math.inf, ""
                    except LogError as problem:
                        self._bear(problem)
        except Exception as problem:
            self._give_up(f"nobody watches over the engines: {problem!r}")

    def _waited(self) -> bool:
        """Whether it is to look no more, after the time between two looks. Engines do not stand still in a process that was stopped."""
        before = self._seconds()
        stopped = self._stopped.wait(LOOK_SECONDS)
        if (slept := self._seconds() - before) > LOOK_SECONDS + STOPPED_SECONDS:
            self._tell(f"this process was stopped for {slept:.0f} s, or its machine was; others may have its partitions by now")
            self._give_time()
        return stopped

    def _opened(self) -> Log | None:
        """A log of its own, as soon as one can be had: brokers that are away just then are the engines' affair. None when told to stop."""
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                return self._open_log()
            except LogUnreachable as problem:
                self._tell(f"watchdog: {problem}")
        return None

    def _bear(self, problem: LogError) -> None:
        """Engines meet the same, and say when it is the end. A worker in reserve has none, and nobody else would tell its supervisor.

        Who has to be started again to be let in does not wait for its engines, whose connections may hold a while longer.
        """
        if isinstance(problem, LogOutdated):
            self._out_of_reach(str(problem))
            return
        if str(problem) != self._borne:
            self._tell(f"watchdog: {problem}")
        self._borne = str(problem)
        self._give_time()
        now = self._seconds()
        if self._share() is not None:
            self._failing_since = math.inf
            return
        self._failing_since, self._health.waits = min(self._failing_since, now), True
        if now - self._failing_since > UNREACHABLE_SECONDS_MAX:
            give_up = self._out_of_reach if isinstance(problem, LogUnreachable) else self._give_up
            give_up(f"{problem} (for {now - self._failing_since:.0f} s now, and this worker has no partitions)")

    def _judge_touch(self, log: Log) -> None:
        """The group has a broker that answers; a client of it that does not find that one for so long never will.

        Raises LogUnreachable where nobody keeps the group: then nobody gives this worker's partitions to others, and whoever starts waits.
        """
        if self._in_touch():
            self._apart_since = math.inf
            return
        log.committed(GROUP, STREAM_PARTITIONS)
        now = self._seconds()  # An answer that took its time came from a broker that was not there before.
        self._apart_since = min(self._apart_since, now)
        if now - self._apart_since > JOIN_SECONDS:
            apart = f"the group was out of reach for {now - self._apart_since:.0f} s, though the log answers"
            self._give_up(f"{apart}; others may have this worker's partitions: start it again")

    def _in_reserve(self, log: Log) -> None:
        """That is well while there is something to share out: of a topic that went Faust hears nothing more."""
        if STREAM_PARTITIONS not in log.topics():
            hidden = "or this user may not read it, as brokers hide such topics (docs/kafka.md)"
            self._give_up(f"topic {STREAM_PARTITIONS} is missing, {hidden}: nothing can be shared out; see `claimlog topics check`")
            return
        log.ends(STREAM_PARTITIONS)
        self._judge_touch(log)
        self._health.waits = False

    def _give_time(self) -> None:
        """Engines have all their time from now on. While the log is out of reach they cannot get on, and once it is back not at once."""
        self._began = self._moved = self._seconds()
        self._standstill, self._apart_since = Standstill(self._stall_seconds), math.inf

    def _late(self, now: float, loading: Loading | None, share: Share, folded: Mapping[Partition, int]) -> str | None:
        """What took too long: one table, or the first turn, of which nobody sees more than that tables are loaded and records folded."""
        if loading is not None or folded != self._folded:
            self._moved, self._folded = now, folded
        if loading is not None and (took := now - max(loading.since_seconds, self._began)) > self._recovery_seconds:
            tables = ", ".join(self._overdue(loading.partition))
            made_anew = f"; {tables} will be made anew from the newest snapshot or the log" if tables else ""
            return f"{loading.name} is not loaded after {took:.0f} s; start this worker again{made_anew}"
        if not share.positions and now - self._moved > max(self._recovery_seconds, self._stall_seconds):
            return f"the engines have not got on in their first turn for {now - self._moved:.0f} s; start this worker again"
        return None

    def _look(self, log: Log) -> None:
        now, share, joining_since = self._seconds(), self._share(), self._joining_since()
        if why := self._refused():
            self._give_up(why)
        if joining_since is not None and now - joining_since > JOIN_SECONDS:
            silent = f"the group gave no answer for {now - joining_since:.0f} s"
            causes = "see the broker's log, its group.max.size, and whether another program is in it"
            self._give_up(f"{silent}: {causes}; start this worker again")
        if share is not self._watched or self._health.troubles != self._troubles:
            # Each trouble gives time once: an engine that hangs after one meets no other.
            self._watched, self._troubles = share, self._health.troubles
            self._give_time()
        if share is None or not share.positions:
            # No loop turns in reserve, nor while the group is asked or tables are loaded; how long that may take is judged here alone.
            self._health.turned()
        if share is None:
            if joining_since is None:
                self._in_reserve(log)
            return
        positions = share.positions
        topics = sorted({place.topic for place in positions} | {CLAIMS})
        ends = {Partition(topic, number): end for topic in topics for number, end in log.ends(topic).items()}
        loading, folded = share.loads()
        late = self._late(now, loading, share, folded)
        if late is not None:
            self._give_up(late)
        if loading is not None:
            # Whoever loads a table cannot get on meanwhile; how long that may take is judged above.
            self._standstill = Standstill(self._stall_seconds)
            self._health.turned()
        stands = self._standstill.judge(now, positions, ends)
        if stands is not None:
            self._give_up(f"an engine stands still: {stands}; start this worker again")
        self._judge_touch(log)
        self._health.doing = recovery(positions or folded, ends, share.owned)
        if not self._health.ready and now - max(self._said, self._began) > RECOVERY_SAYS_SECONDS:
            self._said = now
            self._tell(f"recovering: {self._health.doing}")
