"""`claimlog produce openstack`: an existing OpenStack cloud, followed read-only by Nova's notifications."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple

from cyclopts import Parameter

from streams.cli.exits import Exit
from streams.cli.flags import LogFlag
from streams.cli.printed.printable import say
from streams.cli.printed.units import counted
from streams.cli.problems import UsageProblem
from streams.cli.produce.verb import SECONDS_MAX, Seconds, check_above_0, persistence
from streams.cli.reading.open_log import open_log, opened
from streams.clock import SystemClock, wall_clock_ms
from streams.ledger_topics import open_ledger
from streams.log.base import HIDES, Log

if TYPE_CHECKING:
    from producers.openstack import OpenStack, Reach
    from producers.openstack_hosts import ListedHost
    from schemas.lifecycle import LifecycleEvent
    from streams.cli.produce.listing import ListFile
    from streams.cli.produce.notifications import Feed
    from streams.cli.produce.publishing import Persistent
    from streams.cli.produce.sources import Source
    from streams.log.base import Message

SOURCE_FORMS = "FILE of JSON lines, FILE.json, - for stdin, or kafka://HOST:PORT/TOPIC (versioned_notifications: all its priorities)"
WAIT_SECONDS = 0.5
"""Longest sleep: how late an interrupt is heard."""
ALL = "kafka://"
NEWER_LIST = "--hypervisors does not list it: give it a newer list"
"""What to do about a node that neither the list nor any message names."""

FromFlag = Annotated[tuple[str, ...], Parameter(name="--from", negative=(), allow_leading_hyphen=True, help=f"{SOURCE_FORMS}; repeatable.")]
HypervisorsFlag = Annotated[
    Path | None, Parameter(help="Nova's list of hypervisors as JSON (os-hypervisors/detail): notifications do not say what a node has.")
]
SwapFlag = Annotated[
    tuple[str, ...], Parameter(name="--swap-mib", negative=(), help="FLAVOR=MIB: legacy notifications do not say swap; repeatable.")
]

INTERVAL_SECONDS = 60.0


def openstack(
    *,
    source: FromFlag,
    log: LogFlag = None,
    once: Annotated[bool, Parameter(negative=(), help="End when all that is there has been read.")] = False,
    hypervisors: HypervisorsFlag = None,
    interval: Seconds = INTERVAL_SECONDS,
    swap_mib: SwapFlag = (),
) -> int:
    """Nova's notifications, versioned and legacy: what each node's instances use, as Nova's resource tracker counts it.

    Nothing is written to the cloud or its bus. Every start reads all that the bus still has and says only what is new. Services and
    aggregates become status, zone and aggregates of nodes. What is no notification goes to the dead letters with its place. What
    --hypervisors lists is said every --interval, so that nodes do not fall silent while a bus is followed; a file that was written anew is
    read again.

    Exits 6 if the node of some host was never named, so that what instances use there could not be said.
    """
    from producers.openstack import OpenStack
    from schemas.topics import CLAIMS, LIFECYCLE
    from streams.cli.interrupts import ended_by_sigterm
    from streams.cli.produce.listing import Listed, ListFile
    from streams.cli.produce.notifications import Feed, Overtaken, Settings, letters_before, swaps, told_before
    from streams.cli.reading.records import lost_before

    check_above_0("--interval", interval, SECONDS_MAX)
    if hypervisors is None and interval != INTERVAL_SECONDS:
        raise UsageProblem(f"--interval {interval:g}: it says how often --hypervisors FILE is told; give that, or leave it out")
    if once and interval != INTERVAL_SECONDS:
        raise UsageProblem(f"--interval {interval:g}: with --once nothing is told a second time; leave one of them out")
    clock = SystemClock()
    file = None if hypervisors is None else ListFile(hypervisors)
    swap, start_ms = swaps(swap_mib), clock.wall_ms()
    with ExitStack() as stack:
        sources = [each for spec in source for each in stack.enter_context(notifications(spec, follows=not once))]
        target = stack.enter_context(opened(log, create=True))
        open_ledger(target)
        if lost := lost_before(target, LIFECYCLE, CLAIMS):
            say(f"what was told before is not known, so notifications that come again are told again: {lost}")
        ends, before = target.ends(LIFECYCLE), told_before(target)
        persistent = persistence()
        follower = OpenStack(
            before.epoch_of(start_ms),
            swap_mib=swap,
            told=before.told,
            configured=partial(persistent, Settings(target)),
            now_us=lambda: clock.wall_ms() * 1000,
        )
        feed = Feed(follower, letters_before(target))
        tasks = []
        if file is not None:
            hosts = partial(_located, file, follower, lambda events: _append(target, feed.told(events), persistent))
            tasks.append(Listed(target, file.hosts, clock, persistent, file.newer, hosts, interval_ms=int(interval * 1000)).tell)
        _all(tasks)  # A list is told also where nothing is read again.
        overtaken = Overtaken(target, follower, ends, lambda: clock.boot_ms() / 1000)
        tasks.append(partial(persistent, overtaken.check))
        again = None if once else partial(_all, tasks)
        try:
            with ended_by_sigterm():
                _follow(sources, feed, lambda messages: _append(target, messages, persistent), persistent, again)
                persistent(overtaken.look)
        finally:
            for sentence in _told(feed, listed=file is not None):
                say(sentence)
    return Exit.INCOMPLETE if follower.reach().hosts else Exit.DONE


def _follow(
    sources: list[Source],
    feed: Feed,
    append: Callable[[list[Message]], None],
    persistent: Persistent,
    again: Callable[[], None] | None,
) -> None:
    """Read until all sources are over; without `again` until none has anything now. A bus that is away is waited for.

    `again` is called after each reading, and not while one hangs: nodes of which it speaks fall silent then.
    """
    while True:
        records = [record for source in sources for record in persistent(source.read)]
        append(feed.take(records))
        if again is not None:
            again()
        if records:
            continue
        if all(source.rests for source in sources):
            append(feed.settle())
        if again is None or all(source.is_over for source in sources):
            return
        waiting = [source for source in sources if source.name and not source.is_over] or sources
        for source in waiting:
            persistent(partial(source.wait, WAIT_SECONDS / len(waiting)))


def _all(tasks: Iterable[Callable[[], None]]) -> None:
    for task in tasks:
        task()


def _located(file: ListFile, follower: OpenStack, tell: Callable[[list[LifecycleEvent]], None], each: ListedHost) -> None:
    """What the list says of one host's node and service, as it was when it was written."""
    from producers.openstack_fleet import ListedService

    tell(follower.located(each.host, each.node_id, file.written_us))
    follower.services.listed(each.host, ListedService(each.is_disabled, each.is_enabled, each.reason, file.written_us))


def _append(log: Log, messages: list[Message], persistent: Persistent) -> None:
    if messages:
        persistent(lambda: log.append(messages))


def _told(feed: Feed, *, listed: bool) -> list[str]:
    tally = feed.tally
    written = f"{counted(tally.events, 'life-cycle event')}, {counted(tally.configured, 'node setting')}"
    lines = [f"{counted(tally.notifications, 'notification')}: {written}, {counted(tally.dead_letters, 'dead letter')}"]
    return lines + reach_lines(feed.follower.reach(), NEWER_LIST if listed else "pass --hypervisors")


def reach_lines(reach: Reach, lacking: str) -> list[str]:
    """What could not be told of the cloud, and why; `lacking` is what to do about a node that no message named."""
    lines = []
    if reach.too_late:
        lines.append(f"{counted(reach.too_late, 'message')} came too late to be put in order with others of the same instance: not counted")
    if reach.hosts:
        lines.append(
            f"the node of {', '.join(reach.hosts)} is not known: no message named it, so what {reach.instances} instances use there is "
            f"not counted; {lacking}"
        )
    if reach.unnamed_services:
        lines.append(
            f"services on {', '.join(reach.unnamed_services)}: no message named their node, so status and aggregates are not told; "
            f"{lacking}"
        )
    return lines


@contextmanager
def notifications(spec: str, *, follows: bool = False) -> Iterator[list[Source]]:
    """The notifications that `--from` names; with `follows` those of a pipe as they come. Raises UsageProblem, LogUnreachable."""
    sources = _buses(spec) if spec.startswith(ALL) else [_lines(spec, follows=follows)]
    try:
        yield sources
    finally:
        for source in sources:
            source.close()


def _lines(spec: str, *, follows: bool) -> Source:
    from streams.cli.produce.sources import Lines, Piped

    try:
        file = sys.stdin.buffer if spec == "-" else Path(spec).open("rb")  # noqa: SIM115 - the source closes it
    except OSError as problem:
        raise UsageProblem(f"--from {spec} cannot be read: {problem.strerror or problem}; expected {SOURCE_FORMS}") from None
    name = "stdin" if spec == "-" else f"file:{spec}"[:249]
    if follows and _is_pipe(file) and not spec.endswith(".json"):
        return Piped(name, file, SystemClock())
    return Lines(name, file, wall_clock_ms(), is_document=spec.endswith(".json"))


def _is_pipe(file: BinaryIO) -> bool:
    """Whether somebody may write to it later."""
    try:
        return not S_ISREG(os.fstat(file.fileno()).st_mode)
    except OSError:  # A stream that has no file.
        return False


class _Beneath(NamedTuple):
    """Topics under a prefix of a cluster's, or under none: one with its priorities, or without a `topic` all of them."""

    spec: str
    prefix: str
    topic: str

    def opened(self) -> Log:
        return open_log(self.spec, os.environ, sys.stdin.buffer)

    def chosen(self, there: Iterable[str]) -> list[str]:
        return [each for each in sorted(there) if not self.topic or each == self.topic or each.startswith(f"{self.topic}.")]

    def named(self, topic: str) -> str:
        return f"{self.prefix}.{topic}" if self.prefix else topic


def _buses(spec: str) -> list[Source]:
    """A topic of a Kafka cluster. oslo.messaging writes one topic for each priority: `notifications` means all of `notifications.*`.

    A topic of the very name may be there as well, of a mirror that puts them together, or come when the other has no news any more.
    """
    from streams.cli.produce.sources import Bus

    address, mark, query = spec.partition("?")
    brokers, _, name = address.removeprefix(ALL).partition("/")
    prefix, dot, topic = name.partition(".")
    if not name:
        raise UsageProblem(f"--from {spec} names no topic; expected {SOURCE_FORMS}")
    places = [_Beneath(f"{ALL}{brokers}/{prefix}{mark}{query}", prefix, topic)]
    if not dot:
        places.append(_Beneath(f"{ALL}{brokers}{mark}{query}", "", name))
    with ExitStack() as stack:
        buses: list[Source] = [Bus(place.opened, place.chosen, place.named, say) for place in places]
        for bus in buses:
            stack.callback(bus.close)
        if not any(bus.name for bus in buses):
            lacks = f"there is no topic {name} (nor {name}.info) on that cluster; did Nova write to it yet? {HIDES}"
            raise UsageProblem(f"--from {spec}: {lacks}")
        stack.pop_all()
        return buses
