"""A ledger in a table: only what records changed since the last write is written, each row once, together with the next offset.

Keys: `n` and a node id, its row with what is shown and held there; `t` and a node id, the times of its audits; `g` and a group id, the
group's home; `i` and an offset, the ids that the batch from that offset on made known; `x` and any key, what the host keeps beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from projections import state
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.rules import REMEMBERED_RECORDS
from projections.snapshots import Tell
from projections.state import Identity, StateError
from projections.table import Table, TableError
from schemas.claims import GroupHomeProposed

Extra = Mapping[bytes, bytes | None]
"""What the host keeps beside the ledger (open findings, views of nodes …): rows under its own keys, None to delete one."""

_HEADER, _NOTE = "ledger", "note/"
_NODE, _TIMES, _GROUP, _IDS, _EXTRA = b"n", b"t", b"g", b"i", b"x"


def begun(meta: Callable[[str], bytes | None]) -> Ledger | None:
    """Of what stands under the names of a table the ledger's own figures, without rows; None if nothing is stored. Raises StateError."""
    header = meta(_HEADER)
    return None if header is None else state.begun(header)


class LedgerTable:
    """Keeps one partition's ledger in `table`, which is its alone."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._ids: deque[tuple[bytes, int]] = deque()
        """The rows of ids: key and last offset of each, oldest first."""
        self._begin()

    def _begin(self) -> None:
        """Nothing is to be written."""
        self._facts: set[str] = set()
        self._times: set[str] = set()
        self._groups: set[str] = set()
        self._pending: tuple[int, int] | None = None
        """The first offset of what is to be written, and the one after the last."""

    @property
    def next_offset(self) -> int:
        """The first offset that is not in the table."""
        return self._table.next_offset

    def touch(self, steps: Sequence[Step]) -> None:
        """Note what `steps`, which have just been folded, changed: the next `write` stores it, each row once for all of them."""
        if not steps:
            return
        first, after = steps[0].offset, steps[-1].offset + 1
        self._pending = (first if self._pending is None else self._pending[0], after)
        facts, times = self._facts, self._times
        for step in steps:
            event, node_ids = step.event, step.node_ids
            times.update(node_ids)
            if not step.times_only:
                facts.update(node_ids)
            # A copy ignored may still have spelled out the times of its node.
            node_id = getattr(event, "node_id", None)
            if node_id is not None and node_id not in node_ids:
                times.add(node_id)
                facts.add(node_id)
            if type(event) is GroupHomeProposed:
                self._groups.add(event.group_id)

    def write(self, ledger: Ledger, steps: Sequence[Step] = (), extra: Extra | None = None) -> None:
        """Store what `steps` and those touched before them changed; `ledger` has folded them all, and nothing after them.

        Raises TableError if the table does not stand right before the first of them (then `store` the whole ledger instead).
        """
        self.touch(steps)
        if self._pending is None:
            return
        first, after = self._pending
        if (self._table.next_offset, ledger.next_offset) != (first, after):
            stands = f"the table stands at offset {self._table.next_offset}, the ledger at {ledger.next_offset}"
            raise TableError(f"{stands}, the steps are {first} to {after - 1}; store the whole ledger")
        nodes = ledger.nodes
        puts = {_NODE + node.key: state.facts_of(node) for node_id in self._facts if (node := nodes.get(node_id)) is not None}
        puts |= {_TIMES + node.key: state.times_of(node) for node_id in self._times if (node := nodes.get(node_id)) is not None}
        for group_id in self._groups & ledger.groups.keys():
            puts[_GROUP + group_id.encode()] = state.home_of(ledger.groups[group_id])
        deletes = self._expired(ledger)
        self._put_ids(puts, state.ids_of(ledger, first), first)
        self._put(puts, deletes, ledger, extra)
        self._begin()

    def store(self, ledger: Ledger, extra: Extra | None = None) -> None:
        """Store the whole ledger in place of what is there."""
        self._table.clear()
        self._ids.clear()
        self._begin()
        puts: dict[bytes, bytes] = {}
        for node in ledger.nodes.values():
            puts[_NODE + node.key] = state.facts_of(node)
            puts[_TIMES + node.key] = state.times_of(node)
        for group_id, home in ledger.groups.items():
            puts[_GROUP + group_id.encode()] = state.home_of(home)
        self._put_ids(puts, state.ids_of(ledger, 0), 0)
        self._put(puts, (), ledger, extra)

    def load(self, tell: Tell | None = None) -> Ledger | None:
        """The ledger as the last batch left it; None if nothing is stored.

        What cannot be used (another version of state or rules) is cleared and `tell` hears why: the log has it all. Whether it belongs to
        the log at hand is for `projections.snapshots.misfit` to say. Raises TableDamaged.
        """
        header = self._table.meta(_HEADER)
        if header is None:
            return None
        try:
            ledger = state.begun(header)
            times = dict(self._rows(_TIMES))
            for key, facts in self._rows(_NODE):
                state.add_node(ledger, facts, times.get(key, b""))
            for key, home in self._rows(_GROUP):
                state.add_home(ledger, key.decode(), home)
            self._load_ids(ledger)
        except StateError as problem:
            if tell is not None:
                tell(f"the table's ledger is not used: {problem}")
            self.clear()
            return None
        return ledger

    def extras(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The host's own rows whose keys begin with `prefix`, in order."""
        for key, row in self._rows(_EXTRA + prefix):
            yield prefix + key, row

    def noted(self, name: str) -> bytes | None:
        """What was noted last under this name since everything was forgotten or stored anew; None if nothing was."""
        return self._table.meta(_NOTE + name)

    def note(self, name: str, value: bytes) -> None:
        """Keep what the host has to remember, whatever else changed."""
        self._table.write({}, next_offset=self._table.next_offset, meta={_NOTE + name: value})

    def clear(self) -> None:
        """Forget everything."""
        self._table.clear()
        self._ids.clear()
        self._begin()

    def _rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        skip = len(prefix)
        for key, row in self._table.items(prefix):
            yield key[skip:], row

    def _put(self, puts: dict[bytes, bytes], deletes: Iterable[bytes], ledger: Ledger, extra: Extra | None) -> None:
        gone = list(deletes)
        for key, row in (extra or {}).items():
            if row is None:
                gone.append(_EXTRA + key)
            else:
                puts[_EXTRA + key] = row
        self._table.write(puts, gone, next_offset=ledger.next_offset, meta={_HEADER: state.header_of(ledger)})

    def _put_ids(self, puts: dict[bytes, bytes], ids: Sequence[Identity], first: int) -> None:
        if ids:
            key = _IDS + first.to_bytes(8, "big")
            puts[key] = state.ids_bytes(ids)
            self._ids.append((key, ids[-1].offset))

    def _expired(self, ledger: Ledger) -> list[bytes]:
        """The keys of rows all of whose ids the ledger has forgotten."""
        oldest = ledger.expiry[0][0] if ledger.expiry else ledger.next_offset
        keys = []
        while self._ids and self._ids[0][1] < oldest:
            keys.append(self._ids.popleft()[0])
        return keys

    def _load_ids(self, ledger: Ledger) -> None:
        """Ids of the oldest row that the fold has forgotten since are left out, as the fold itself has it."""
        self._ids.clear()
        oldest = ledger.next_offset - 1 - REMEMBERED_RECORDS
        for key, row in self._rows(_IDS):
            ids = state.read_ids(row)
            self._ids.append((_IDS + key, ids[-1].offset))
            state.add_ids(ledger, (identity for identity in ids if identity.offset >= oldest))
