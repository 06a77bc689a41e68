"""`claimlog produce`: facts from outside into the log, from libvirt, from a generated load, from the Azure trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from streams.cli.exits import Exit
from streams.cli.flags import LogFlag
from streams.cli.given.units_in import of_seconds, whole
from streams.cli.interrupts import ended_by_sigterm
from streams.cli.printed import units
from streams.cli.printed.printable import say
from streams.cli.printed.progress import Progress
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.open_log import opened
from streams.clock import SystemClock
from streams.ledger_topics import open_ledger

if TYPE_CHECKING:
    from producers.workload import Arrival, Departure
    from streams.cli.produce.driving import Driver
    from streams.cli.produce.publishing import Persistent

DATA_ENVIRONMENT = "CLAIMLOG_DATA"
DATA_DEFAULT = Path("..") / "shared" / "data"
SECONDS_MAX = 7 * 86_400
SPEED_MAX = 1e9
"""A year in 30 ms: nothing is gained beyond, and products of larger ones leave the integers."""
NODES_MAX = 1_000_000
INTERVAL_SECONDS = 10.0
WAIT_SECONDS = 0.5
"""Longest sleep: how late an interrupt is heard."""

INTERVAL_HELP = "Seconds, or 2m, from one audit of a host to its next; after three times `run --audit-interval` without one it is silent."
Seconds = Annotated[float, of_seconds(INTERVAL_HELP)]
Once = Annotated[bool, Parameter(negative=(), help="One audit of each host, then end.")]
Seed = Annotated[int, Parameter(converter=whole, help="The same seed gives the same stream.")]
Nodes = Annotated[int, Parameter(converter=whole, help="How many hosts are simulated; 0: requests only.")]
Limit = Annotated[int | None, Parameter(converter=whole, help="How many VMs at most.")]
Batch = Annotated[int, Parameter(converter=whole, help="Most instances of one request; VMs of a batch that share a flavor come together.")]
UntilAnswered = Annotated[bool, Parameter(negative=(), help="End when all is answered, not when the last guest has ended.")]
Speed = Annotated[float, Parameter(help="How many seconds of the workload go into one.")]
History = Annotated[
    int | None,
    Parameter(converter=whole, show_default=False, help="Write so many records of a fleet's past into a new embedded log, then end."),
]

app = App(name="produce", help="Bring facts from outside into the log: from libvirt, OpenStack's notifications, a generated load, a trace.")
app.command("streams.cli.produce.libvirt:libvirt", name="libvirt")
app.command("streams.cli.produce.openstack:openstack", name="openstack")


def check_above_0(flag: str, number: float, most: float) -> None:
    """Raises UsageProblem for what is not above 0, not a number, or above `most`."""
    if not 0 < number <= most:
        raise UsageProblem(f"{flag} {number:.10g}: expected more than 0 and at most {most:.10g}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a fleet is to be played, and when it is over. `instances` are all that are asked for, as far as that is known."""

    nodes: int
    seed: int
    speed: float
    interval_seconds: float
    once: bool
    until_answered: bool
    instances: int | None

    def check(self) -> None:
        """Raise UsageProblem for what cannot be played."""
        for flag, number in (("--nodes", self.nodes), ("--limit", self.instances)):
            if number is not None and number < 0:
                raise UsageProblem(f"{flag} {number}: expected 0 or more")
        if self.nodes > NODES_MAX:
            raise UsageProblem(f"--nodes {self.nodes}: expected at most {NODES_MAX}")
        if self.once and self.until_answered:
            raise UsageProblem("--once asks for nothing, so there is no answer to wait for: leave one of it and --until-answered out")
        check_above_0("--speed", self.speed, SPEED_MAX)
        check_above_0("--interval", self.interval_seconds, SECONDS_MAX)

    def fulfilled(self, driver: Driver) -> bool:
        """Whether there is nothing left to play."""
        if self.until_answered and self.instances is not None and driver.tally.instances >= self.instances:
            return not driver.waiting
        # Without hosts nobody would start a guest, so the requests are all there is.
        return driver.exhausted and (not self.nodes or not driver.waiting)


@app.command
def load(
    *,
    log: LogFlag = None,
    nodes: Nodes = 50,
    seed: Seed = 1,
    limit: Limit = 1000,
    speed: Speed = 60.0,
    interval: Seconds = INTERVAL_SECONDS,
    once: Once = False,
    until_answered: UntilAnswered = False,
    batch: Batch = 1,
    history: History = None,
) -> int:
    """A generated fleet and workload with the statistics of a public cloud: its hosts report, its guests start where results say.

    Each run plays the same hosts, with the guests that earlier ones left there; what it asks for begins anew, and what was answered before
    is not waited for. A guest of an earlier run ends when its time comes in this one.
    Requests begin once the hosts' first reports are in the ledger, or after half a minute if nothing carries them there.
    With --history a log of any size is made that has a past: claims, life cycles, audits, and a leak in some 60,000 records, for `leaks`
    and `replay`. Each has an id of its own, which digests begin with; all else is the same for the same seed.
    """
    from producers.workload import workload

    if history is not None:
        if (limit, speed, interval, once, until_answered, batch) != (1000, 60.0, INTERVAL_SECONDS, False, False, 1):
            raise UsageProblem("--history plays nothing: it goes with --log, --nodes and --seed alone")
        if not 0 <= nodes <= NODES_MAX:
            raise UsageProblem(f"--nodes {nodes}: expected 0 to {NODES_MAX}")
        from streams.cli.produce.history import history as write_history

        return write_history(log, nodes=nodes, seed=seed, records=history)
    asks = (limit, speed, batch) != (1000, 60.0, 1)
    _check_played(interval, nodes, once=once, asks="--limit, --speed and --batch" if asks else "")
    if batch < 1:
        raise UsageProblem(f"--batch {batch}: expected 1 instance or more")

    most = 1_000_000 if limit is None else limit

    def events() -> Iterator[Arrival | Departure]:
        return workload(seed, instances=most, count_max=batch, prefix="load")

    plan = Plan(nodes=nodes, seed=seed, speed=speed, interval_seconds=interval, once=once, until_answered=until_answered, instances=most)
    return _drive(log, events, plan)


@app.command
def trace(
    *,
    data: Annotated[Path | None, Parameter(help=f"Folder of the Azure extract; default: {DATA_ENVIRONMENT}, else {DATA_DEFAULT}.")] = None,
    log: LogFlag = None,
    nodes: Nodes = 500,
    seed: Seed = 1,
    limit: Limit = 10_000,
    speed: Speed = 60.0,
    interval: Seconds = INTERVAL_SECONDS,
    once: Once = False,
    until_answered: UntilAnswered = False,
) -> int:
    """Real arrivals and lifetimes: the Azure extract, on a generated fleet."""
    from producers.traces import TraceUnreadable
    from producers.traces import check as check_trace
    from producers.traces import trace as read_trace

    asks = (limit, speed) != (10_000, 60.0)
    _check_played(interval, nodes, once=once, asks="--limit and --speed" if asks else "")
    folder = data_folder(data, os.environ)
    plan = Plan(nodes=nodes, seed=seed, speed=speed, interval_seconds=interval, once=once, until_answered=until_answered, instances=limit)
    try:
        plan.check()
        if data is not None or not once:
            # The extract may have fewer than are asked for, and when they are all answered is to be known.
            plan = replace(plan, instances=check_trace(folder, instances=limit))
        return _drive(log, lambda: read_trace(folder, seed=seed, instances=limit), plan)
    except TraceUnreadable as problem:
        raise UsageProblem(str(problem)) from None


def _check_played(interval_seconds: float, nodes: int, *, once: bool, asks: str) -> None:
    """Raises UsageProblem for flags about what is not played: `asks` names those that say what is asked for, if any was given."""
    if once and asks:
        raise UsageProblem(f"--once asks for nothing: leave {asks} out, which say what is asked for")
    if interval_seconds != INTERVAL_SECONDS and (once or not nodes):
        why = "--once takes one audit of each host" if once else "--nodes 0 simulates no host"
        raise UsageProblem(f"--interval {interval_seconds:g}: {why}; leave it out")


def persistence() -> Persistent:
    """Producers outlast a broker that is away: what happened meanwhile is said when it is back."""
    from streams.cli.produce.publishing import Persistent

    return Persistent(say, time.monotonic, time.sleep)


def data_folder(given: Path | None, environ: Mapping[str, str]) -> Path:
    """Where the trace is: as given, else as the environment says, else beside the checkout."""
    return given or Path(environ.get(DATA_ENVIRONMENT) or DATA_DEFAULT)


def _drive(log: str | None, events: Callable[[], Iterator[Arrival | Departure]], plan: Plan) -> int:
    """Open the log, make the fleet, and play until the plan is fulfilled; what came of it is said on stderr."""
    from producers.load import PRODUCER, SimulatedFleet
    from producers.source import epoch_after
    from schemas.topics import AUDITS, LIFECYCLE, RESULTS
    from streams.cli.produce.driving import Driver
    from streams.cli.produce.publishing import last_epochs, wait_until_carried
    from streams.cli.reading.records import lost_before

    plan.check()
    clock = SystemClock()
    with opened(log, create=True) as target:
        open_ledger(target)
        fleet = SimulatedFleet(plan.nodes, seed=plan.seed)
        # One epoch for all, above every one in the log: with a clock that went back nobody would take what these hosts say.
        used = [epoch for topic in (AUDITS, LIFECYCLE) for epoch in last_epochs(target, PRODUCER, topic, fleet.nodes).values()]
        epoch = epoch_after(max((each for each in used if each is not None), default=None), clock.wall_ms())
        for node_id in fleet.nodes:
            fleet.restart_producers(node_id, epoch)
        coming = iter(()) if plan.once else events()
        if lost := lost_before(target, *((LIFECYCLE, RESULTS) if plan.nodes else (RESULTS,))):
            raise AnswerIncomplete(f"what earlier runs left on these nodes, and what was answered, is not known: {lost}")
        driver = Driver(target, fleet, coming, clock, speed=plan.speed, audit_every_ms=int(plan.interval_seconds * 1000))
        progress, persistent = Progress("instances", plan.instances), persistence()
        try:
            with ended_by_sigterm():
                if plan.nodes and not plan.once:
                    persistent(driver.report)
                    if plan.instances != 0:
                        wait_until_carried(target, persistent, say, time.monotonic)
                    driver.begin()
                persistent(driver.step)
                while not plan.fulfilled(driver):
                    persistent(lambda: driver.wait(WAIT_SECONDS))
                    before = driver.tally.instances
                    persistent(driver.step)
                    progress.add(driver.tally.instances - before)
        finally:
            progress.close()
            say(str(driver.tally))
            if driver.unsent:
                say(f"not acknowledged: {units.counted(driver.unsent, 'message')}, the last of these; the log may lack what they say")
    return Exit.DONE
