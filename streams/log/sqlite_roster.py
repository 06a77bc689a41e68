"""Where the embedded log keeps who shares a topic: two small tables, written only when something changes or a heartbeat is due."""

from __future__ import annotations

from streams.log.blocks import BlockDamaged
from streams.log.leases import Group, Heartbeat, turn, without
from streams.log.sqlite_file import SqliteFile


class SqliteRoster:
    """See `streams.log.leases.Roster`."""

    def __init__(self, file: SqliteFile, group: str, topic: str, partitions: int) -> None:
        self._file, self._share, self._partitions = file, (group, topic), partitions

    def turn(self, member: str, timeout_ms: int, now_ms: int, beat: Heartbeat | None) -> Group:
        """See the contract."""
        with self._file.guarded("lease"), self._file.reading():
            group = self._group()
        if turn(group, self._partitions, member, timeout_ms, now_ms, beat) == group:
            return group
        with self._file.writing("lease"):
            group = turn(self._group(), self._partitions, member, timeout_ms, now_ms, beat)
            self._store(group)
        return group

    def leave(self, member: str, beat: Heartbeat | None) -> None:
        """See the contract."""
        with self._file.writing("lease"):
            self._store(without(self._group(), member, beat))

    def _group(self) -> Group:
        members = self._file.rows("SELECT member, at_ms, timeout_ms FROM members WHERE team = ? AND topic = ?", self._share)
        holds = self._file.rows("SELECT partition, member FROM holds WHERE team = ? AND topic = ?", self._share)
        types = {tuple(map(type, row)) for row in (*members, *holds)}
        if not types <= {(str, int, int), (int, str)}:
            group, topic = self._share
            raise BlockDamaged(f"a row of who in {group!r} has which partition of {topic} has a wrong type of field")
        return Group({row[0]: Heartbeat(*row) for row in members}, dict(holds))

    def _store(self, group: Group) -> None:
        self._file.rows("DELETE FROM members WHERE team = ? AND topic = ?", self._share)
        self._file.rows("DELETE FROM holds WHERE team = ? AND topic = ?", self._share)
        self._file.run_many("INSERT INTO members VALUES (?, ?, ?, ?, ?)", [(*self._share, *beat) for beat in group.heartbeats.values()])
        self._file.run_many("INSERT INTO holds VALUES (?, ?, ?, ?)", [(*self._share, *hold) for hold in group.held.items()])
