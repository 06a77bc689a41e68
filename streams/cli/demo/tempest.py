"""A published case as a history anyone can run: tests ran on one hypervisor round the clock until new instances found "no valid host".

The hypervisor says it has 23,353 MB of memory, 4,271 GB of disk and -43 vCPUs left; the tracker of the cloud says -46,683 MB, -7,332 GB
and -90. Is it a leak, whose, and since when? Here the same figures come out of a day of events: what the tests left behind are instances
whose deletion nobody told the tracker, and every one of them is named with its events. All figures are folds of the log that it makes.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from shlex import quote
from typing import Any, NamedTuple

from msgspec import Struct

from producers.source import AuditSource, EventSource, said
from projections.cut import Cut
from projections.observed import Tracked
from schemas.audits import InstanceReport
from schemas.claims import NodeObserved
from schemas.codec import decode
from schemas.inventory import Hypervisor, OperatorFields, ResourceRule
from schemas.lifecycle import InstanceArrived, InstanceDeleted, LifecycleEvent
from schemas.resources import ObservedResources
from schemas.results import NodeResources
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE
from schemas.units import GIB
from streams.cli.demo.story import program
from streams.cli.exits import Exit
from streams.cli.main import run
from streams.cli.printed import units
from streams.cli.printed.output import Column, Report, Style, write
from streams.cli.printed.printable import say
from streams.cli.produce.publishing import message
from streams.cli.reading.state import State
from streams.cli.reading.state_at import state_at
from streams.engines import Carrier
from streams.ledger_topics import open_ledger
from streams.log.sqlite import SqliteLog
from streams.operator import Stamp, configure

NODE = "tempest-compute"
RUNS = 48
"""Runs of the test suite, one every half an hour."""
RUN_MS = 30 * 60_000
AUDIT_EVERY_MS = 5 * 60_000


class Size(NamedTuple):
    """vCPUs, memory in MiB, disk in GiB."""

    vcpus: int
    memory_mib: int
    disk_gib: int


STAYING = (Size(1, 1536, 20),) * 67
"""The guests that are really there: the hypervisor's own side of the published figures."""
HOST = Size(24, 512 + 67 * 1536 + 23_353, 67 * 20 + 4_271)
"""The host that they leave 23,353 MiB, 4,271 GiB and -43 vCPUs of; 512 MiB are reserved."""
LEAKED = (Size(4, 6144, 1024),) * 11 + (Size(1, 1024, 160),) * 2 + (Size(1, 404, 19),)
"""The guests that the tests deleted and the tracker still counts: 70,036 MiB, 11,603 GiB and 47 vCPUs."""
PUBLISHED = {"memory_mib": (23_353, -46_683), "disk_mib": (4_271 * GIB, -7_332 * GIB), "vcpus": (-43, -90)}
"""By resource: free as the hypervisor has it, and as the tracker has it."""
LEFT = frozenset({"resource", "instance_id", "tracked_since", "last_listed"})
"""Columns of words."""
TITLES = {"memory_mib": "memory MiB", "disk_mib": "disk MiB", "vcpus": "vCPUs"}


class Guest(Struct, frozen=True):
    """One instance of the day: `ends_ms` None for one that stays, `is_told` whether anybody says that it was deleted."""

    instance_id: str
    size: Size
    begins_ms: int
    ends_ms: int | None = None
    is_told: bool = True

    @property
    def report(self) -> InstanceReport:
        """The guest as a hypervisor and a cloud report it."""
        size = self.size
        resources = ObservedResources(vcpus=size.vcpus, memory_mib=size.memory_mib, disk_mib=size.disk_gib * GIB)
        return InstanceReport(instance_id=self.instance_id, resources=resources)


def guests(draw: Random, start_ms: int) -> list[Guest]:
    """All instances of the day, by when they begin: those that stay, those of each run, and those that the runs leave behind."""
    found = [Guest(f"web-{number:02}", size, start_ms + 1000 * number) for number, size in enumerate(STAYING)]
    leaking = dict(zip(sorted(draw.sample(range(4, RUNS - 2), len(LEAKED))), LEAKED, strict=True))
    for number in range(RUNS):
        at_ms = start_ms + 120_000 + number * RUN_MS
        for each in range(3):
            begins_ms = at_ms + draw.randrange(60_000, 300_000)
            found.append(Guest(f"tempest-{number:02}-{each}", Size(1, 64, 1), begins_ms, begins_ms + draw.randrange(60_000, 600_000)))
        if number in leaking:
            begins_ms = at_ms + draw.randrange(60_000, 300_000)
            ends_ms = begins_ms + draw.randrange(400_000, 900_000)
            found.append(Guest(f"tempest-{number:02}-resize", leaking[number], begins_ms, ends_ms, is_told=False))
    return sorted(found, key=lambda guest: (guest.begins_ms, guest.instance_id))


def written(log: SqliteLog, clock: list[int], seed: int) -> None:
    """Write the day into an empty log; `clock` holds the log's time, which the day moves on. What happens is carried as it comes."""
    start_ms = clock[0]
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    carrier = Carrier(log)
    full = ResourceRule(ratio_milli=1000)
    rules = OperatorFields(vcpus=full, memory_mib=ResourceRule(reserved=512, ratio_milli=1000), disk_mib=full)
    log.append([configure(NODE, Stamp("the rules of this host", start_ms), fields=rules)])
    everyone = guests(Random(seed), start_ms)
    audits, cloud = AuditSource(NODE, "libvirt", start_ms), EventSource(NODE, "nova", start_ms)
    host = Hypervisor(vcpus=HOST.vcpus, memory_mib=HOST.memory_mib, disk_mib=HOST.disk_gib * GIB)
    for at_ms, event in sorted(_day(everyone, start_ms), key=lambda entry: (entry[0], entry[1] is not None)):
        clock[0] = at_ms
        if event is None:
            there = [guest.report for guest in everyone if guest.begins_ms <= at_ms and (guest.ends_ms is None or at_ms < guest.ends_ms)]
            log.append([message(said(AUDITS, audits.audited(host, there, taken_at_ms=at_ms, mono_ms=at_ms - start_ms)))])
        else:
            kind, guest = event
            log.append([message(said(LIFECYCLE, cloud.event(kind, guest.report, event_time_ms=at_ms)))])
        carrier.turn(frozenset({0}))
    carrier.close()


def _day(everyone: Sequence[Guest], start_ms: int) -> Iterator[tuple[int, tuple[type[LifecycleEvent], Guest] | None]]:
    """What is said when: that a guest came, that one was deleted where somebody says it, and (None) the audits."""
    for guest in everyone:
        yield guest.begins_ms, (InstanceArrived, guest)
        if guest.ends_ms is not None and guest.is_told:
            yield guest.ends_ms, (InstanceDeleted, guest)
    for number in range((RUNS + 1) * RUN_MS // AUDIT_EVERY_MS):
        yield start_ms + number * AUDIT_EVERY_MS, None


class Left(NamedTuple):
    """An instance that makes part of the difference: what the tracker counts for it, since which event, and when audits last had it."""

    instance_id: str
    tracked: Tracked
    position: str
    last_listed: str


def left_behind(log: SqliteLog, state: State) -> list[Left]:
    """Every instance that the tracked view counts and the last complete audit does not list, by when its event came."""
    tracked = state.observed[0].view(NODE).tracked or {}
    listed = _listings(log, state)
    newest = max(offset for offset, _ in listed)
    found = []
    for instance_id, each in tracked.items():
        last = max((offset for offset, there in listed if instance_id in there), default=-1)
        if last != newest:
            found.append(Left(instance_id, each, f"claims/0@{each.offset}", f"claims/0@{last}" if last >= 0 else "never"))
    return sorted(found, key=lambda left: left.tracked.offset)


def _listings(log: SqliteLog, state: State) -> list[tuple[int, frozenset[str]]]:
    """Every audit that lists instances, and which."""
    found = []
    for record in log.read(CLAIMS, 0, 0, state.ends[0]):
        event = decode(CLAIMS, record.value)
        if isinstance(event, NodeObserved) and event.instances is not None:
            found.append((record.offset, frozenset(report.instance_id for report in event.instances)))
    return found


def play(path: Path, seed: int, start_ms: int) -> int:
    """Make the log of the day and show what it says; 1 if the figures are not the published ones, or do not add up."""
    clock = [start_ms]
    with SqliteLog.open(path, create=True, clock=lambda: clock[0]) as log:
        written(log, clock, seed)
    with SqliteLog.open(path) as log:
        state = state_at(log)
        row, left = state.row(NODE), left_behind(log, state)
    records = sum(state.ends.values())
    print(f"\n1. One day of a test suite, run {RUNS} times on one host: {records:,} records of the ledger. What is free there?\n")
    _table(_views(row), state.cut, "resource", "limit", "hypervisor", "tracker", "gap")
    print("\n2. Which instances make the gap: the tracker counts them since the event named, the audit named listed them last\n")
    items = [_item(each) for each in left]
    sums = {resource: sum(item[resource] for item in items) for resource in PUBLISHED}
    total = {"instance_id": f"{len(items)} instances", "tracked_since": "", "last_listed": "", **sums}
    _table([*items, total], state.cut, "instance_id", "tracked_since", "last_listed", *PUBLISHED)
    print("\n   missing: an InstanceDeleted of each, which nobody has published\n")
    wrong = [*_wrong(row, sums), *_unlike(state, left, sums)]
    for line in wrong:
        say(f"demo: {line}")
    spec = f"sqlite:{path}"
    if not left:
        return Exit.ERROR
    print("3. The same as findings, with the totals; the guests that run are none, since the cloud vouches for them:\n")
    print("$ claimlog leaks --kind stale-instance")
    told = run(["leaks", "--kind", "stale-instance", "--log", spec])
    print(f"\n4. The life of the first of them, of which the last event is missing:\n\n$ claimlog timeline {left[0].instance_id}")
    code = run(["timeline", left[0].instance_id, "--log", spec])
    print("\nTry these on the log that this left:")
    for words in ("nodes -o wide", "leaks --explain", f"diff {NODE} --at {units.moment(start_ms)} --why"):
        print(f"  {quote(program())} {words} --log {quote(spec)}")
    if wrong or code or told != Exit.FINDINGS:
        return Exit.ERROR
    print("\nThe figures are the published ones, and the instances add up to the gap in every column.")
    return Exit.DONE


def _views(row: NodeResources) -> list[dict[str, Any]]:
    """Per resource what is free as the hypervisor's audits have it, and as the life cycle has it; both are the limit without its view."""
    found = []
    for resource, title in TITLES.items():
        of = getattr(row, resource)
        found.append(
            {
                "resource": title,
                "limit": of.limit,
                "hypervisor": (of.limit or 0) - (of.reported or 0),
                "tracker": (of.limit or 0) - (of.tracked or 0),
                "gap": of.gap,
            }
        )
    return found


def _item(left: Left) -> dict[str, Any]:
    vcpus, _, memory_mib, disk_mib = (amount or 0 for amount in left.tracked.amounts)
    amounts = {"memory_mib": memory_mib, "disk_mib": disk_mib, "vcpus": vcpus}
    return {"instance_id": left.instance_id, "tracked_since": left.position, "last_listed": left.last_listed, **amounts}


def _wrong(row: NodeResources, sums: dict[str, int]) -> Iterator[str]:
    """Where the log does not say what was published, or the instances do not add up to the gap."""
    for view in _views(row):
        resource = next(name for name, title in TITLES.items() if title == view["resource"])
        free = (view["hypervisor"], view["tracker"])
        if free != PUBLISHED[resource]:
            yield f"{resource}: {free} are free, published were {PUBLISHED[resource]}"
        if sums[resource] != view["gap"]:
            yield f"{resource}: the instances add up to {sums[resource]}, the gap is {view['gap']}"


def _unlike(state: State, left: Sequence[Left], sums: dict[str, int]) -> Iterator[str]:
    """Where the leak audit's findings are not these instances, or what they count is not these sums."""
    found = [finding for finding in state.findings() if finding.kind == "stale-instance"]
    others = {finding.kind for finding in state.findings()} - {"stale-instance", "negative-free"}
    if others or {finding.instance_id for finding in found} != {each.instance_id for each in left}:
        yield f"the leak audit names {len(found)} stale instances and {', '.join(sorted(others)) or 'nothing else'}"
    for resource, total in sums.items():
        counted = sum(getattr(finding.counted, resource) for finding in found)
        if counted != total:
            yield f"{resource}: the findings count {counted}, the gap is {total}"


def _table(items: Sequence[dict[str, Any]], cut: Cut, *names: str) -> None:
    columns = [Column(name=name, title=TITLES.get(name, name.replace("_", " ")), shown=_shown, right=name not in LEFT) for name in names]
    write(Report(columns=columns, items=items, cut=cut), Style(), sys.stdout, io.StringIO())


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
