"""Who reports what, for `claimlog doctor`: a node has one producer of audits, and of two at once one speaks into the wind.

The fold takes the newest epoch and ignores the others (rule 4), so the guests of one of two machines that report under one name are not
counted, and nothing else says so: each of them alone is in order. Nor does anything else say so of a machine that is two nodes, nor of a
node that is silent from each audit to its next, since its producer pauses longer than the stream processor waits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec
from msgspec import UNSET, Struct

from schemas.claims import NodeConfigured, NodeObserved, NodeSilent
from schemas.codec import decode
from schemas.few import few
from schemas.results import NodeResources
from schemas.topics import AUDITS, CLAIMS, NODE_RESOURCES
from streams.cli.doctor.checks import Check
from streams.cli.printed import units
from streams.cli.reading.state import State
from streams.log.base import Log
from streams.log.reading import backwards, places, topic_records

TAIL_RECORDS = 2_000
"""Of each partition the newest are looked at: with two processes on one node they take turns all the time."""
ALONE_AUDITS = 10
"""Of two processes at once, of which one begins anew all the time, neither tells so many in a row."""
FALLS_MIN = 2
"""A spool that is carried on late, or again, puts older records behind newer ones once; who does so again is another process."""
JUST_TAKEN_MS = 60_000
"""What a spool carried on late was taken long before it came; an audit of a host that hangs takes half a minute at most."""
SILENCES_MIN = 2
"""A producer that hung once is silent once; one whose interval is too long is so between its audits, or at least before half of them."""
NEWEST_AUDITS = 10
"""So many of each node are looked at: what was right for weeks says nothing of the interval that it has now."""


class _Stamp(Struct):
    producer: str
    epoch: int
    taken_at_ms: int


class _Reported(Struct):
    """The audits of one producer of a node: their highest epoch, the last one's, whether that came late, and how often epochs fell.

    `alone` are those since the last one of an epoch below the highest.
    """

    highest: int = 0
    last: int = 0
    is_late: bool = False
    falls: int = 0
    alone: int = 0


def producers(log: Log) -> Iterator[Check]:
    """Nodes that two processes report at once, or that one reports in vain since another did; nothing where there are none.

    Whoever reports one that is withdrawn is not heard anyway.
    """
    found: defaultdict[tuple[bytes, str], _Reported] = defaultdict(_Reported)
    for record in topic_records(log, AUDITS, TAIL_RECORDS):
        try:
            stamp = msgspec.json.decode(record.value, type=_Stamp)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # a dead letter
        node = found[record.key, stamp.producer]
        node.falls += stamp.epoch < node.last
        node.alone = node.alone + 1 if stamp.epoch >= node.highest else 0
        if node.alone >= ALONE_AUDITS:
            node.falls = 0  # Whoever began last is alone by now; what there was before it is over.
        node.highest, node.last = max(node.highest, stamp.epoch), stamp.epoch
        node.is_late = abs(record.time_ms - stamp.taken_at_ms) > JUST_TAKEN_MS
    doubled = _names(key for (key, _), node in found.items() if node.falls >= FALLS_MIN)
    ignored = _names(key for (key, _), node in found.items() if node.falls < FALLS_MIN and node.last < node.highest and not node.is_late)
    gone = _withdrawn(log, {*doubled, *ignored}) if doubled or ignored else set()
    if doubled := [each for each in doubled if each not in gone]:
        says = f"two processes at once report {few(doubled)}: only the one that began last counts"
        yield Check("warn", "producers", says, "stop one; if they are two machines of one name, give each its own (produce libvirt --node)")
    if ignored := [each for each in ignored if each not in gone]:
        says = f"what is reported of {few(ignored)} counts for nothing: another process that began later reported it since"
        yield Check("warn", "producers", says, "start the one that goes on anew")


def _withdrawn(log: Log, nodes: set[str]) -> set[str]:
    """Those of these nodes that are withdrawn: by their rows, or by what was said since."""
    found: dict[str, bool] = {}
    for record in topic_records(log, CLAIMS, TAIL_RECORDS):
        said = decode(CLAIMS, record.value)
        if isinstance(said, NodeConfigured) and said.status is not UNSET:
            found[said.node_id] = said.status == "withdrawn"
    left = nodes - found.keys()
    rows = chain.from_iterable(backwards(log, place, log.start(*place), log.end(*place)) for place in places(log, NODE_RESOURCES))
    for record in rows if left else ():
        row = decode(NODE_RESOURCES, record.value) if record.key.decode(errors="replace") in left else None
        if isinstance(row, NodeResources):
            found[row.node_id] = row.status == "withdrawn"
            left.discard(row.node_id)
            if not left:
                break
    return {node_id for node_id, is_gone in found.items() if is_gone}


def _names(keys: Iterable[bytes]) -> list[str]:
    return sorted({key.decode(errors="replace") for key in keys})


def intervals(log: Log) -> Iterator[Check]:
    """Nodes that were called silent before the very next audit of theirs was even taken; nothing where there are none."""
    silent: dict[str, tuple[str, int, int, int]] = {}
    silences: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=NEWEST_AUDITS))
    """Whether there was one before each audit."""
    for record in topic_records(log, CLAIMS, TAIL_RECORDS):
        said = decode(CLAIMS, record.value)
        if isinstance(said, NodeSilent):
            silent.setdefault(said.node_id, (said.producer, said.epoch, said.counter + 1, record.time_ms))
        elif isinstance(said, NodeObserved):
            *awaited, told_ms = silent.pop(said.node_id, ("", 0, 0, 0))
            is_next = [said.producer, said.epoch, said.counter] == awaited
            silences[said.node_id].append(is_next and said.taken_at_ms > told_ms)
        elif isinstance(said, NodeConfigured) and said.status == "withdrawn":
            silences.pop(said.node_id, None)
    if often := sorted(node_id for node_id, each in silences.items() if sum(each) >= max(SILENCES_MIN, len(each) / 2)):
        says = f"{units.counted(len(often), 'node')} silent from one audit to the next ({few(often)}), though the producer goes on"
        fix = (
            "report more often than three times `claimlog run --audit-interval` (produce libvirt --interval), or raise that on every "
            "processor: a silent node takes nothing new"
        )
        yield Check("warn", "intervals", says, fix)


def machines(state: State) -> Iterator[Check]:
    """Machines that are reported as several nodes; nothing where there are none."""
    by_uuid: dict[str, list[str]] = {}
    for node_id, node in sorted(item for ledger in state.ledgers.values() for item in ledger.nodes.items()):
        if node.status != "withdrawn" and node.hypervisor is not None and node.hypervisor.host_uuid:
            by_uuid.setdefault(node.hypervisor.host_uuid, []).append(node_id)
    if doubled := [few(node_ids) for node_ids in by_uuid.values() if len(node_ids) > 1]:
        says = f"{units.counted(len(doubled), 'machine')} reported as several nodes each, by host_uuid ({few(doubled, separator='; ')})"
        fix = (
            "report each under one name and `claimlog node withdraw` the others: its room is granted once for each name; "
            "if they are several machines whose firmware says the same, set host_uuid in libvirtd.conf there"
        )
        yield Check("warn", "machines", says, fix)
