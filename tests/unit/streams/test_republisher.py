"""The republisher: the last row of a node in `node-resources` is the fold's again, whatever a zombie left there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from schemas import topics
from schemas.claims import ClaimItem, ClaimRequested, NodeObserved
from schemas.codec import decode_keyed, encode, key_of
from schemas.inventory import Hypervisor
from schemas.resources import Resources
from schemas.results import NodeResources
from streams import folder as folder_module
from streams.folder import Folder
from streams.ledger_topics import open_ledger
from streams.log.base import Message
from streams.log.memory import MemoryLog
from streams.metrics import Metrics
from streams.republisher import Republisher

ALL = frozenset({0})


class World:
    """A ledger of one partition with one node, its folder and its republisher."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = 1_700_000_000_000
        self.log = MemoryLog(clock=lambda: self.now_ms)
        open_ledger(self.log, ledger_partitions=1, request_partitions=1)
        self.metrics = Metrics("test")
        self.folder = Folder(self.log, folder, "p1", self.metrics, lambda _: None, clock=lambda: self.now_ms)
        self.republisher = Republisher(self.log, self.folder)
        hypervisor = Hypervisor(vcpus=8, memory_mib=8192, disk_mib=100_000)
        audit = NodeObserved(
            node_id="n1",
            producer="a",
            epoch=1,
            counter=1,
            taken_at_ms=self.now_ms,
            mono_ms=0,
            digest="d",
            hypervisor=hypervisor,
            instances=(),
        )
        self.append(topics.CLAIMS, audit)

    def append(self, topic: str, *events: NodeObserved | ClaimRequested | NodeResources) -> None:
        self.log.append([Message(topic, key_of(event) or b"", encode(event), (), 0) for event in events])

    def claim(self, number: int) -> None:
        item = ClaimItem(claim_id=f"r{number}/0/1.1", instance_id=f"i{number}", nodes=("n1",), resources=Resources(vcpus=1))
        self.append(topics.CLAIMS, ClaimRequested(request_id=f"r{number}", owner="s", basis=0, ttl_ms=600_000, items=(item,)))

    def settle(self) -> None:
        """Turns until nothing is left to do."""
        for _ in range(20):
            if not self.folder.turn(ALL) + self.republisher.turn(ALL):
                return
        raise AssertionError("the republisher goes on for ever")

    def rows(self) -> list[NodeResources]:
        found = [decode_keyed(r.topic, r.key, r.value) for r in self.log.read(topics.NODE_RESOURCES, 0, 0)]
        return [row for row in found if isinstance(row, NodeResources)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "state")
    yield world
    world.folder.close()


def test_rows_that_are_the_folds_are_left_alone(world: World) -> None:
    world.settle()
    world.claim(1)
    world.settle()

    claimed = [row.vcpus.claimed for row in world.rows()]

    assert claimed == [0, 1]
    assert world.metrics.republished._value.get() == 0


def test_an_older_row_that_a_zombie_published_is_followed_by_the_owners(world: World) -> None:
    world.settle()
    older = world.rows()[-1]
    world.claim(1)
    world.settle()
    world.append(topics.NODE_RESOURCES, older)

    world.settle()

    assert [row.vcpus.claimed for row in world.rows()] == [0, 1, 0, 1]
    assert world.metrics.republished._value.get() == 1


def test_a_new_owner_mends_an_older_row_whose_newer_one_compaction_dropped(world: World) -> None:
    world.settle()
    older = world.rows()[-1]
    world.claim(1)
    world.settle()
    world.append(topics.NODE_RESOURCES, older)
    world.log.compact(topics.NODE_RESOURCES, 0)
    world.republisher = Republisher(world.log, world.folder)

    world.settle()

    assert [row.vcpus.claimed for row in world.rows()] == [0, 1]


def test_a_new_owner_publishes_the_row_of_a_node_that_has_none(world: World) -> None:
    world.settle()
    world.log.truncate(topics.NODE_RESOURCES, 0, world.log.end(topics.NODE_RESOURCES, 0))
    world.republisher = Republisher(world.log, world.folder)

    world.settle()

    found = world.log.read(topics.NODE_RESOURCES, 0, world.log.start(topics.NODE_RESOURCES, 0))
    assert [record.key for record in found] == [b"n1"]


def test_a_new_owner_publishes_nothing_that_stands_behind_a_short_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read may end before the end: at so many bytes, or where a broker has sent no more yet."""
    for number in range(3):
        world.claim(number)
        world.settle()
    end, read = world.log.end(topics.NODE_RESOURCES, 0), world.log.read
    monkeypatch.setattr(world.log, "read", lambda topic, partition, offset, *_: read(topic, partition, offset, 1))
    world.republisher = Republisher(world.log, world.folder)

    world.settle()

    assert world.log.end(topics.NODE_RESOURCES, 0) == end > 2


@pytest.mark.parametrize("offset", [3, 100])
def test_who_is_behind_the_owner_publishes_nothing(world: World, offset: int) -> None:
    world.settle()
    ahead = replace(world.rows()[-1], offset=offset)
    world.append(topics.NODE_RESOURCES, ahead)
    world.claim(1)

    world.settle()

    assert [row.offset for row in world.rows()] == [1, offset, 2]


@pytest.mark.parametrize("value", [b"", b"null", b'{"a":' * 20_000, b'{"node_id":"\xff","offset":1}', b'{"node_id":"n1"}'])
def test_what_is_no_row_under_a_nodes_key_is_followed_by_the_owners_row(world: World, value: bytes) -> None:
    world.settle()
    world.log.append([Message(topics.NODE_RESOURCES, key, value, (), 0) for key in (b"n1", b"no-such-node", b"\xff")])

    world.settle()

    last = world.log.read(topics.NODE_RESOURCES, 0, 0)[-1]
    row = decode_keyed(last.topic, last.key, last.value)
    assert (last.key, row) == (b"n1", world.rows()[0])
    assert world.metrics.republished._value.get() == 1


def test_a_new_owner_follows_a_row_that_only_looks_like_one(world: World) -> None:
    world.settle()
    world.log.append([Message(topics.NODE_RESOURCES, b"n1", b'{"node_id":"n1","offset":1,"type":"node-resources"}', (), 0)])
    world.republisher = Republisher(world.log, world.folder)

    world.settle()

    assert len(world.rows()) == 2
    assert world.metrics.republished._value.get() == 1


def test_nothing_is_published_anew_while_the_fold_still_catches_up(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, records in (("BATCH_RECORDS", 2), ("BACKLOG_RECORDS", 2)):
        monkeypatch.setattr(folder_module, name, records)
    for number in range(9):
        world.claim(number)
    world.folder.close()
    world.folder = Folder(world.log, tmp_path / "another worker's", "p2", world.metrics, lambda _: None, clock=lambda: world.now_ms)
    world.republisher = Republisher(world.log, world.folder)

    rows = []
    while world.folder.turn(ALL) + world.republisher.turn(ALL):
        rows.append([row.vcpus.claimed for row in world.rows()])

    assert rows[:3] == [[], [], []]
    assert rows[-1] == [8]
    assert world.metrics.republished._value.get() == 0
