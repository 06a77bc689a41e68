"""Who reports what, for `claimlog doctor`: a node has one producer of audits, and of two at once one speaks into the wind.

The fold takes the newest epoch and ignores the others (rule 4), so the guests of one of two machines that report under one name are not
counted, and nothing else says so: each of them alone is in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from schemas.topics import AUDITS
from streams.cli.doctor.checks import Check
from streams.log.base import Log
from streams.log.reading import topic_records

TAIL_RECORDS = 2_000
"""Of each partition the newest are looked at: with two processes on one node they take turns all the time."""
FALLS_MIN = 2
"""A spool that is carried on late, or again, puts older records behind newer ones once; who does so again is another process."""


class _Stamp(Struct):
    producer: str
    epoch: int


def producers(log: Log) -> Iterator[Check]:
    """Nodes that two processes report at once; nothing where there are none."""
    last: dict[tuple[bytes, str], int] = {}
    falls: dict[tuple[bytes, str], int] = {}
    for record in topic_records(log, AUDITS, TAIL_RECORDS):
        try:
            stamp = msgspec.json.decode(record.value, type=_Stamp)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # a dead letter
        who = (record.key, stamp.producer)
        if stamp.epoch < last.get(who, stamp.epoch):
            falls[who] = falls.get(who, 0) + 1
        last[who] = stamp.epoch
    doubled = sorted({key.decode(errors="replace") for (key, _), times in falls.items() if times >= FALLS_MIN})
    if doubled:
        named = ", ".join(doubled[:3]) + (" …" if len(doubled) > 3 else "")
        says = f"two processes at once report {named}: only the one that began last counts"
        yield Check("warn", "producers", says, "stop one; if they are two machines of one name, give each its own (produce libvirt --node)")
