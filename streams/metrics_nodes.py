"""The series of nodes as text, kept from one scrape to the next: to look at a node costs far less than to write its lines.

A row is never changed, only replaced, so a node whose row is the same object has the same lines. Of one that was replaced, as by an audit
that found nothing new, only what differs is written anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.utils import floatToGoString

from schemas.results import NodeResources, ResourceRow
from schemas.units import MIB

VIEWS = ("limit", "reported", "tracked", "claimed", "used", "free", "gap")
NODES_A_BLOCK: Final = 256
"""How many nodes are looked at together: where none of them changed, that is one comparison."""
SLICE_SECONDS: Final = 0.001
REST_SECONDS: Final = 0.001
"""After so much work there is so long a rest. Else a thread that places instances would wait for the interpreter's switch, 5 ms, each time
that it comes back from the log."""
SLICE_SECONDS_MAX: Final = 0.004
"""Work where others took longer: those compute, and what they wait at all matters, not how often."""

_number: Callable[[float], str] = floatToGoString
# Amounts of nodes are much alike, and the library takes 1 µs to write one.
_amount = lru_cache(4096)(_number)


class Breath:
    """Lets other threads have the interpreter while something takes long."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep) -> None:
        self._clock, self._sleep = clock, sleep
        self._began, self._slice_seconds = clock(), SLICE_SECONDS

    def __call__(self) -> None:
        """Rest, if it is time; then go on for as long as that took."""
        now = self._clock()
        if now - self._began > self._slice_seconds:
            self._sleep(REST_SECONDS)
            self._began = self._clock()
            self._slice_seconds = min(max(self._began - now, SLICE_SECONDS), SLICE_SECONDS_MAX)


class Family(NamedTuple):
    """A family of series of nodes: `part` is what of a row its lines are made of, beside the name of the node, and `write` makes them."""

    name: str
    title: str
    labels: tuple[str, ...]
    part: Callable[[NodeResources], Any]
    write: Callable[[str, Any], str]

    def text(self, row: NodeResources) -> bytes:
        """The lines of one node; none of one that was taken out for good, else its series would stay for ever."""
        if row.status == "withdrawn":
            return b""
        return self.write(f'{self.name}{{node="{_escaped(row.node_id)}"', self.part(row)).encode()

    def alike(self, one: NodeResources, other: NodeResources) -> bool:
        """Whether both have the same lines."""
        same_node = one.node_id == other.node_id and (one.status == "withdrawn") == (other.status == "withdrawn")
        return same_node and bool(self.part(one) == self.part(other))


class NodeFamily(GaugeMetricFamily):
    """A family without samples: its `lines` are written already, those of each node."""

    def __init__(self, family: Family, lines: Iterable[bytes]) -> None:
        super().__init__(family.name, family.title, labels=family.labels)
        self.lines = tuple(lines)


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _amounts(unit: int) -> Callable[[str, ResourceRow], str]:
    """Writes a resource by view, in base units; a view that nothing reports has no sample."""
    views = [(view, f',view="{view}"}} ') for view in VIEWS]

    def write(begin: str, amounts: ResourceRow) -> str:
        seen = [(named, getattr(amounts, view)) for view, named in views]
        return "".join([f"{begin}{named}{_amount(amount * unit)}\n" for named, amount in seen if amount is not None])

    return write


_counts: Final = _amounts(1)


def _dedicated(begin: str, amounts: ResourceRow) -> str:
    """Of dedicated CPUs, which most nodes have none of."""
    return _counts(begin, amounts) if any(getattr(amounts, view) for view in VIEWS) else ""


def _moment(begin: str, time_ms: int | None) -> str:
    return "" if time_ms is None else f"{begin}}} {_number(time_ms / 1000)}\n"


_BY_VIEW = ("node", "view")
FAMILIES: Final = (
    Family("claimlog_node_vcpus", "vCPUs of a node, by view", _BY_VIEW, attrgetter("vcpus"), _counts),
    Family("claimlog_node_pcpus", "Dedicated CPUs of a node, by view", _BY_VIEW, attrgetter("pcpus"), _dedicated),
    Family("claimlog_node_memory_bytes", "Memory of a node, by view", _BY_VIEW, attrgetter("memory_mib"), _amounts(MIB)),
    Family("claimlog_node_disk_bytes", "Disk of a node, by view", _BY_VIEW, attrgetter("disk_mib"), _amounts(MIB)),
    Family("claimlog_node_audit_timestamp_seconds", "When the last audit was taken", ("node",), attrgetter("audit_taken_at_ms"), _moment),
)


class _Block(NamedTuple):
    """Some nodes' rows, and the lines that each family has of them."""

    rows: list[NodeResources]
    lines: list[list[bytes]]


class NodeTexts:
    """The lines of every node as of the last time that somebody asked."""

    def __init__(self, nodes_a_block: int = NODES_A_BLOCK) -> None:
        self._nodes_a_block = nodes_a_block
        self._blocks: list[_Block] = []
        self._renewing = threading.Lock()

    def families(self, rows: Sequence[NodeResources], breathe: Callable[[], None]) -> list[NodeFamily]:
        """Every family with the lines of these rows, in their order. `breathe` is called often meanwhile."""
        size = self._nodes_a_block
        with self._renewing:
            kept = chain(self._blocks, repeat(_Block([], [[] for _ in FAMILIES])))
            self._blocks = blocks = [_renewed(next(kept), list(rows[at : at + size]), breathe) for at in range(0, len(rows), size)]
        return [NodeFamily(family, chain.from_iterable(block.lines[at] for block in blocks)) for at, family in enumerate(FAMILIES)]


def _renewed(block: _Block, rows: list[NodeResources], breathe: Callable[[], None]) -> _Block:
    """The block with these rows; whatever is as it was is the same object."""
    breathe()
    if block.rows == rows:  # Of two lists that hold the same objects this looks at nothing else.
        return block
    renewed = _Block(rows, [])
    for family, lines in zip(FAMILIES, block.lines, strict=True):
        texts = []
        for number, row in enumerate(rows):
            before = block.rows[number] if number < len(block.rows) else None
            if before is row or (before is not None and family.alike(before, row)):
                texts.append(lines[number])
            else:
                texts.append(family.text(row))
                breathe()
        renewed.lines.append(texts)
    return renewed
