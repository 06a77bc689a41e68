"""`claimlog produce openstack`: an existing OpenStack cloud, followed read-only by Nova's notifications."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from producers.openstack import Reach
    from producers.openstack_hosts import ListedHost
    from streams.cli.produce.notifications import Feed, Source
    from streams.cli.produce.publishing import Persistent
    from streams.log.base import Log, Message

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
    from streams.cli.produce.notifications import Feed, configured_before, letters_before, swaps, told_before
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
        sources = [stack.enter_context(notifications(spec)) for spec in source]
        target = stack.enter_context(opened(log, create=True))
        open_ledger(target)
        if lost := lost_before(target, LIFECYCLE, CLAIMS):
            say(f"what was told before is not known, so notifications that come again are told again: {lost}")
        before = told_before(target)
        persistent = persistence()
        follower = OpenStack(
            before.epoch_of(start_ms),
            swap_mib=swap,
            told=before.told,
            configured=lambda: persistent(partial(configured_before, target)),
            now_us=lambda: clock.wall_ms() * 1000,
        )
        feed = Feed(follower, letters_before(target))

        def located(each: ListedHost) -> None:
            _append(target, feed.told(follower.located(each.host, each.node_id)), persistent)

        again = None if once else _nothing
        if file is not None:
            listed = Listed(target, file.hosts, clock, persistent, file.newer, located, interval_ms=int(interval * 1000))
            listed.tell()
            again = None if once else listed.tell
        try:
            with ended_by_sigterm():
                _follow(sources, feed, lambda messages: _append(target, messages, persistent), persistent, again)
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
        append(feed.settle())
        if again is None or all(source.is_over for source in sources):
            return
        waiting = [source for source in sources if not source.is_over]
        for source in waiting:
            persistent(partial(source.wait, WAIT_SECONDS / len(waiting)))


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
def notifications(spec: str) -> Iterator[Source]:
    """The notifications that `--from` names. Raises UsageProblem, LogUnreachable."""
    from streams.cli.produce.notifications import Lines

    if spec.startswith(ALL):
        source = _bus(spec)
    elif spec == "-":
        source = Lines("stdin", sys.stdin.buffer, wall_clock_ms())
    else:
        try:
            file = Path(spec).open("rb")  # noqa: SIM115 - the source closes it
        except OSError as problem:
            raise UsageProblem(f"--from {spec} cannot be read: {problem.strerror or problem}; expected {SOURCE_FORMS}") from None
        source = Lines(f"file:{spec}"[:249], file, wall_clock_ms(), is_document=spec.endswith(".json"))
    try:
        yield source
    finally:
        source.close()


def _bus(spec: str) -> Source:
    """A topic of a Kafka cluster. oslo.messaging writes one topic for each priority: `notifications` means all of `notifications.*`."""
    from streams.cli.produce.notifications import Bus

    address, mark, query = spec.partition("?")
    brokers, _, name = address.removeprefix(ALL).partition("/")
    prefix, dot, topic = name.partition(".")
    if not name:
        raise UsageProblem(f"--from {spec} names no topic; expected {SOURCE_FORMS}")
    log = open_log(f"{ALL}{brokers}/{prefix}{mark}{query}", os.environ, sys.stdin.buffer)
    topics = [each for each in log.topics() if not dot or each == topic] or [each for each in log.topics() if each.startswith(f"{topic}.")]
    if not topics and not dot:
        log.close()
        prefix = ""
        log = open_log(f"{ALL}{brokers}{mark}{query}", os.environ, sys.stdin.buffer)
        topics = [each for each in log.topics() if each == name]
    if not topics:
        log.close()
        raise UsageProblem(f"--from {spec}: there is no topic {name} (nor {name}.info) on that cluster; did Nova write to it yet?")
    return Bus(log, topics, lambda each: f"{prefix}.{each}" if prefix else each, say)


def _nothing() -> None:
    """There is no list to be told again."""
