"""The embedded log's topics: what is in its file, looked up once and remembered, because a topic never changes and never goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streams.log.base import LogDamaged, TopicMismatch, TopicSpec
from streams.log.blocks import seed_of
from streams.log.partitioner import no_partition, other_count, unknown_topic
from streams.log.sqlite_file import SqliteFile, row_mark
from streams.log.sqlite_names import RESTORE
from streams.log.sqlite_shelf import Place


class Catalog:
    """Topics and partitions of one file."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._specs: dict[str, TopicSpec] = {}
        self._counts: dict[str, int] = {}
        self._places: dict[tuple[str, int], Place] = {}

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """See the contract."""
        try:
            with self._file.writing("create topics"):
                self._load()
                for spec in topics:
                    count = self._counts.get(spec.name, spec.partitions)
                    if count != spec.partitions:
                        raise TopicMismatch(other_count(spec, count))
                for spec in topics:
                    if spec.name not in self._specs:
                        self._create(spec)
                        self._load()
        except BaseException:
            # What was loaded inside of the transaction may not have come to stay.
            self._specs, self._counts, self._places = {}, {}, {}
            raise

    def counts(self, *, fresh: bool = True) -> Mapping[str, int]:
        """Number of partitions of each topic; `fresh` looks for new ones first."""
        if fresh:
            with self._file.guarded("topics"):
                self._load()
        return self._counts

    def spec(self, topic: str) -> TopicSpec:
        """The topic of that name, or TopicMismatch."""
        if topic not in self._specs and topic not in self.counts():
            raise TopicMismatch(unknown_topic(topic, self._counts))
        return self._specs[topic]

    def place(self, topic: str, number: int) -> Place:
        """The partition, or TopicMismatch."""
        place = self._places.get((topic, number))
        if place is None:
            spec = self.spec(topic)
            if not 0 <= number < spec.partitions:
                raise TopicMismatch(no_partition(topic, number, spec.partitions))
            place = self._places[topic, number]
        return place

    def _create(self, spec: TopicSpec) -> None:
        # A topic's id is that of its first partition, so that ids stay small and need no second table.
        ((first,),) = self._file.rows("SELECT ifnull(max(id), 0) + 1 FROM partitions")
        row = (int(first), spec.name, spec.partitions, int(spec.compacted))
        self._file.rows("INSERT INTO topics VALUES (?, ?, ?, ?, ?)", (*row, row_mark(*row)))
        rows = [(id_, 0, 0, 0, row_mark(id_, 0, 0, 0)) for id_ in range(first, first + spec.partitions)]
        self._file.run_many("INSERT INTO partitions VALUES (?, ?, ?, ?, ?)", rows)

    def _load(self) -> None:
        with self._file.reading():  # else topics that another process makes between the two would pass for damage
            rows = self._file.rows("SELECT id, name, partitions, compacted, mark FROM topics")
            ((known,),) = self._file.rows("SELECT count(*) FROM partitions")
        for id_, name, partitions, compacted, mark in rows:
            if mark != row_mark(id_, name, partitions, compacted):
                raise LogDamaged(f"{self._file.path}: the row of topic {name!r} is damaged; {RESTORE}")
        if known != sum(row[2] for row in rows):  # else a topic whose row was lost would be made again, empty
            raise LogDamaged(f"{self._file.path}: {known} partitions, but not the topics for them; {RESTORE}")
        for id_, name, partitions, compacted, _ in rows:
            if name not in self._specs:
                self._specs[name] = TopicSpec(name, partitions, bool(compacted))
                self._counts[name] = partitions
                self._places |= {(name, number): Place(name, number, id_ + number, seed_of(name, number)) for number in range(partitions)}
