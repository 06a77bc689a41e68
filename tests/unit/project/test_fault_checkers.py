"""Each checker of the fault tests catches a history that has its fault, and finds nothing in the same history without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import msgspec
import pytest

from projections.ledger_state import Step
from projections.rocks import RocksTable
from projections.rules import SKEW_MS
from schemas import topics
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, ClaimRequested, GroupMember, NodeObserved
from schemas.codec import encode, key_of
from schemas.inventory import Hypervisor
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import ObservedResources, Resources
from schemas.results import ClaimOutcome, InstancesPlaced, LedgerDigest, NodeResources, Placement, PlacementFailed
from streams.folder import Folder
from streams.ledger_topics import open_ledger
from streams.log.base import Message
from streams.log.memory import MemoryLog
from streams.metrics import Metrics
from tests.faults import checkers
from tests.faults.checkers import Acknowledged, Books, Folded, hash_of

START_MS = 1_700_000_000_000
SIZE = Resources(vcpus=2, memory_mib=1024)


class World:
    """A log with one partition of everything, a node of 4 vCPUs, and one request that was placed there."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = START_MS
        self.log = MemoryLog(clock=lambda: self.now_ms)
        self.state = folder
        open_ledger(self.log, ledger_partitions=1, request_partitions=1)
        self.kept: list[Acknowledged] = []
        host = Hypervisor(vcpus=4, memory_mib=8192, disk_mib=100_000)
        self.say(
            topics.CLAIMS,
            NodeObserved(
                node_id="n1", producer="a", epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=1, digest="d", hypervisor=host, instances=()
            ),
        )
        self.say(topics.REQUESTS, PlacementRequested(request_id="r1", flavor=Flavor(vcpus=2, memory_mib=1024)))
        self.say(topics.CLAIMS, claim("r1", "c1"))
        self.say(topics.RESULTS, placed("r1", "c1"))

    def say(self, topic: str, record: Any, key: bytes | None = None) -> None:
        message = Message(topic, key_of(record) or b"" if key is None else key, encode(record), (), 0)
        (offset,) = self.log.append([message])
        self.kept.append(Acknowledged(topic, 0, offset, hash_of(message.value)))

    def folder(self) -> Folder:
        return Folder(self.log, self.state, "p1", Metrics("test"), lambda _: None, clock=lambda: self.now_ms)

    def process(self) -> None:
        """The stream processor publishes what follows and keeps its table."""
        host = self.folder()
        while host.turn(frozenset({0})):
            pass
        host.close()

    def wrong(self) -> list[str]:
        """Everything that all checkers find."""
        return checkers.everything_wrong(self.log, self.state, self.kept)[1]


def claim(request_id: str, claim_id: str, *, vcpus: int = 2, group: GroupMember | None = None, instance_id: str = "") -> ClaimRequested:
    resources = msgspec.structs.replace(SIZE, vcpus=vcpus)
    instance = instance_id or PlacementRequested(request_id=request_id, flavor=Flavor()).instance(0)
    item = ClaimItem(claim_id=claim_id, instance_id=instance, nodes=("n1",), resources=resources, group=group)
    return ClaimRequested(request_id=request_id, owner="s", basis=0, ttl_ms=600_000, items=(item,))


def placed(request_id: str, claim_id: str, commit_by_ms: int = START_MS + 1) -> InstancesPlaced:
    instance_id = PlacementRequested(request_id=request_id, flavor=Flavor()).instance(0)
    placement = Placement(instance_id=instance_id, claim_id=claim_id, partition=0, node_id="n1", resources=SIZE)
    return InstancesPlaced(request_id=request_id, owner="s", taken_up_ms=START_MS, commit_by_ms=commit_by_ms, placements=(placement,))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state")


def test_a_sound_history_has_nothing_wrong(world: World) -> None:
    world.process()

    assert world.wrong() == []


def test_who_looks_again_and_again_sees_what_came_and_folds_on_from_there(world: World) -> None:
    class Counted:
        reads = 0

        def __getattr__(self, name: str) -> Any:
            self.reads += name == "read"
            return getattr(world.log, name)

    counted: Any = Counted()
    looked = checkers.seen(counted)
    first = checkers.folded(looked)
    reads = counted.reads
    assert checkers.folded(looked) is first
    assert list(checkers.records(looked, topics.CLAIMS)) == list(checkers.records(world.log, topics.CLAIMS))
    assert counted.reads == reads, "what was read is not read again"

    world.say(topics.REQUESTS, PlacementRequested(request_id="r2", flavor=Flavor(vcpus=2, memory_mib=1024)))
    world.say(topics.CLAIMS, claim("r2", "c2"))

    assert checkers.unanswered(looked, checkers.requests(looked)) == ["r2 has no counting result"]
    again, anew = checkers.folded(looked), checkers.folded(world.log)
    assert (again.digests, again.granted, again.outcomes) == (anew.digests, anew.granted, anew.outcomes)
    assert [record.offset for record in looked.read(topics.CLAIMS, 0, 1)] == [1, 2, 3]


def test_a_record_that_is_gone_or_another_than_acknowledged_is_lost(world: World) -> None:
    beyond = Acknowledged(topics.CLAIMS, 0, 99, hash_of(b"x"))
    other = Acknowledged(topics.CLAIMS, 0, 1, hash_of(b"x"))

    assert checkers.lost(world.log, world.kept) == []
    assert checkers.lost(world.log, [beyond]) == ["claims/0@99 was acknowledged and is not there"]
    assert checkers.lost(world.log, [other]) == ["claims/0@1 was acknowledged and is another record"]


def test_a_request_without_result_is_unanswered(world: World) -> None:
    world.say(topics.REQUESTS, PlacementRequested(request_id="r2", flavor=Flavor(vcpus=1)))

    assert checkers.unanswered(world.log, ["r1"]) == []
    assert checkers.unanswered(world.log, checkers.requests(world.log)) == ["r2 has no counting result"]


def test_results_of_which_none_counts_are_no_answer(world: World) -> None:
    world.now_ms += SKEW_MS
    world.say(topics.RESULTS, placed("r2", "c2", commit_by_ms=START_MS))

    assert checkers.unanswered(world.log, []) == ["r2 has results and none of them counts"]
    assert checkers.unanswered(world.log, ["r2"]) == ["r2 has no counting result", "r2 has results and none of them counts"]


def test_the_first_result_in_time_counts_and_no_other(world: World) -> None:
    world.say(topics.RESULTS, PlacementFailed(request_id="r1", owner="t", taken_up_ms=START_MS, reason="gave-up"))

    counts, none_counts = checkers.counting(world.log)

    assert isinstance(counts["r1"], InstancesPlaced)
    assert none_counts == set()


def test_a_result_that_names_what_was_never_granted_is_unfounded(world: World) -> None:
    world.say(topics.REQUESTS, PlacementRequested(request_id="r2", flavor=Flavor(vcpus=2), count=2))
    world.say(topics.RESULTS, placed("r2", "c9"))

    found = checkers.unfounded(world.log, checkers.folded(world.log))

    assert found == ["r2 names c9 on n1, which was not granted there", "r2 asked for 2 instances, its result places 1"]


def test_a_claim_that_the_counting_result_does_not_name_must_not_be_held(world: World) -> None:
    world.say(topics.CLAIMS, claim("r1", "c2", vcpus=1))
    world.say(topics.CLAIMS, claim("not-answered-yet", "c3", vcpus=1))

    found = checkers.unnamed(world.log, checkers.folded(world.log))

    assert found == ["c2 is held on n1, and the result of r1 does not name it"]


def test_a_place_that_an_instance_leaves_and_keeps_is_named_as_well(world: World) -> None:
    world.say(topics.CLAIMS, claim("r2", "c2", vcpus=1))
    kept = placed("r2", "c2").placements
    world.say(topics.RESULTS, msgspec.structs.replace(placed("r2", "c3"), kept=kept))

    assert checkers.unnamed(world.log, checkers.folded(world.log)) == []


def granted(event: ClaimRequested, offset: int) -> Step:
    """A step as a ledger that grants without looking would make it."""
    item = event.items[0]
    outcome = ClaimOutcome(outcome="granted", claim_id=item.claim_id, instance_id=item.instance_id, node_id="n1", offset=offset)
    return Step(offset, START_MS, event=event, outcomes=[outcome])


def test_a_grant_beyond_the_limit_of_its_node_is_found_at_its_offset(world: World) -> None:
    fold, books = checkers.folded(world.log), Books()
    first, over = granted(claim("a", "a", vcpus=4), 7), granted(claim("b", "b", vcpus=1), 8)

    assert books.overgrants(fold.ledgers[0], first) == []
    assert books.overgrants(fold.ledgers[0], over) == ["claims@8: granted on n1 with vcpus 5 used of 4 at 1000/1000"]


def test_room_that_was_given_back_may_be_granted_again(world: World) -> None:
    fold, books = checkers.folded(world.log), Books()
    books.overgrants(fold.ledgers[0], granted(claim("a", "a", vcpus=4), 7))
    back = ClaimOutcome(outcome="released", claim_id="a", node_id="n1", offset=8)
    books.overgrants(fold.ledgers[0], Step(8, START_MS, outcomes=[back]))

    assert books.overgrants(fold.ledgers[0], granted(claim("b", "b", vcpus=4), 9)) == []


def test_claims_of_one_instance_overlap_and_do_not_add_up(world: World) -> None:
    fold, books = checkers.folded(world.log), Books()
    books.overgrants(fold.ledgers[0], granted(claim("a", "a", vcpus=4, instance_id="i"), 7))

    assert books.overgrants(fold.ledgers[0], granted(claim("b", "b", vcpus=4, instance_id="i"), 8)) == []


def shown(vcpus: int, memory_mib: int, counter: int, after_ms: int = 0) -> NodeObserved:
    """The node with the instance `i` of this size on it, or with nothing."""
    size = ObservedResources(vcpus=vcpus, memory_mib=memory_mib)
    host, there = Hypervisor(vcpus=4, memory_mib=8192, disk_mib=100_000), (InstanceReport(instance_id="i", resources=size),)
    return NodeObserved(
        node_id="n1",
        producer="a",
        epoch=1,
        counter=counter,
        taken_at_ms=START_MS + after_ms,
        mono_ms=counter + after_ms,
        digest=str(counter),
        hypervisor=host,
        instances=there if vcpus else (),
    )


def test_a_confirmed_resize_leaves_room_that_others_are_rightly_granted(world: World) -> None:
    world.say(topics.CLAIMS, claim("a", "a", vcpus=2, instance_id="i"))
    world.say(topics.CLAIMS, shown(2, 1024, 2))
    smaller = claim("b", "b", vcpus=1, instance_id="i")
    world.say(topics.CLAIMS, msgspec.structs.replace(smaller, items=(msgspec.structs.replace(smaller.items[0], resize=True),)))
    world.say(topics.CLAIMS, shown(1, 1024, 3))
    world.say(topics.CLAIMS, shown(0, 0, 4))
    world.say(topics.CLAIMS, claim("c", "c", vcpus=1))

    fold = checkers.folded(world.log)

    assert fold.overgrants == []
    assert fold.kinds() == {"granted": 4, "confirmed": 2}


def test_a_guest_that_kept_its_place_and_stayed_smaller_leaves_room_that_others_are_rightly_granted(world: World) -> None:
    late_ms = 700_000
    world.say(topics.CLAIMS, shown(2, 1024, 2))
    keeps = claim("k", "k", vcpus=2, instance_id="i")
    world.say(topics.CLAIMS, msgspec.structs.replace(keeps, items=(msgspec.structs.replace(keeps.items[0], keep=True),)))
    world.now_ms += late_ms
    world.say(topics.CLAIMS, shown(1, 1024, 3, late_ms))
    world.now_ms += 1
    world.say(topics.CLAIMS, shown(0, 0, 4, late_ms + 1))
    world.say(topics.CLAIMS, claim("c", "c", vcpus=1))

    fold = checkers.folded(world.log)

    assert fold.overgrants == []
    assert fold.kinds() == {"granted": 3, "confirmed": 1}


def test_too_many_members_of_a_group_on_a_node_are_found(world: World) -> None:
    fold, books = checkers.folded(world.log), Books()
    group = GroupMember(group_id="g", policy="anti-affinity", max_per_node=1)
    books.overgrants(fold.ledgers[0], granted(claim("a", "a", vcpus=1, group=group), 7))

    found = books.overgrants(fold.ledgers[0], granted(claim("b", "b", vcpus=1, group=group), 8))

    assert found == ["claims@8: 2 members of g on n1, 1 allowed"]


def test_the_books_agree_with_the_ledger_on_a_whole_history(world: World) -> None:
    world.say(topics.CLAIMS, claim("r2", "c2", vcpus=3))
    world.say(topics.CLAIMS, claim("r3", "c3", vcpus=2))

    fold = checkers.folded(world.log)

    assert fold.overgrants == []
    assert dict(fold.kinds()) == {"granted": 2, "refused": 1}


def tampered(world: World, change: Callable[[RocksTable], None]) -> list[str]:
    """What the checker finds in a table after a change to its rows."""
    world.process()
    fold = checkers.folded(world.log)
    with RocksTable.open(world.state / "claims-0") as table:
        assert checkers.table_wrong(table, fold, 0) == []
        change(table)
        return checkers.table_wrong(table, fold, 0)


def test_a_table_that_lost_a_node_is_not_the_fold(world: World) -> None:
    found = tampered(world, lambda table: table.write({}, [b"nn1"], next_offset=table.next_offset))

    assert found == ["the table of claims/0 differs from the fold, in the nodes ['n1']"]


def test_a_table_that_lost_what_it_keeps_beside_the_ledger_is_not_the_fold(world: World) -> None:
    found = tampered(world, lambda table: table.write({}, [b"xnn1"], next_offset=table.next_offset))

    assert found == ["the table of claims/0 has no view of n1"]


def test_a_table_that_is_empty_or_stands_elsewhere_is_not_the_fold(world: World) -> None:
    assert tampered(world, lambda table: table.clear()) == ["the table of claims/0 is empty"]
    world.say(topics.CLAIMS, claim("r2", "c2", vcpus=1))
    (found,) = checkers.tables_wrong(world.state, checkers.folded(world.log))
    assert found.startswith("the table of claims/0 is empty")
    world.process()
    world.say(topics.CLAIMS, claim("r3", "c3", vcpus=1))

    (found,) = checkers.tables_wrong(world.state, checkers.folded(world.log))

    assert found.startswith("the table of claims/0 stands at 4 with ")


def test_of_several_workers_one_holds_the_end_and_what_the_others_left_is_the_fold_up_to_there(world: World, tmp_path: Path) -> None:
    world.process()
    left = tmp_path / "left"
    copytree(world.state, left)
    world.say(topics.CLAIMS, claim("r2", "c2", vcpus=1))
    (nobody,) = checkers.workers_tables_wrong(world.log, [world.state, left], checkers.folded(world.log))
    assert nobody == "no table stands at the end of claims/0, 4: {'state': 3, 'left': 3}"
    world.process()
    fold = checkers.folded(world.log)
    assert checkers.workers_tables_wrong(world.log, [world.state, left], fold) == []

    with RocksTable.open(left / "claims-0") as table:
        table.write({}, [b"nn1"], next_offset=table.next_offset)

    assert checkers.workers_tables_wrong(world.log, [world.state, left], fold) == [
        "left before the end: the table of claims/0 differs from the fold, in the nodes ['n1']"
    ]


def changed_row(world: World, **changes: Any) -> NodeResources:
    """The published row of the node, with something else in it."""
    world.process()
    (row,) = [row for _, row in checkers.readable(world.log, topics.NODE_RESOURCES, NodeResources)]
    assert checkers.rows_wrong(world.log, checkers.folded(world.log)) == []
    replaced: NodeResources = msgspec.structs.replace(row, **changes)
    return replaced


def test_a_row_that_is_not_the_fold_is_found(world: World) -> None:
    world.say(topics.NODE_RESOURCES, changed_row(world, claims=7))

    assert checkers.rows_wrong(world.log, checkers.folded(world.log)) == ["the row of n1 at 2 differs from the fold in claims"]


def test_a_row_of_no_node_and_a_node_without_row_are_found(world: World) -> None:
    fold = checkers.folded(world.log)
    missing = checkers.rows_wrong(world.log, fold)
    world.say(topics.NODE_RESOURCES, changed_row(world, node_id="n2"))

    assert missing == ["n1 has no row"]
    assert checkers.rows_wrong(world.log, fold) == ["there is a row of n2, which the fold does not know"]


def test_a_row_left_behind_is_found_though_it_was_right_once(world: World) -> None:
    world.process()
    world.say(topics.CLAIMS, claim("r2", "c2", vcpus=1))

    (found,) = checkers.rows_wrong(world.log, checkers.folded(world.log))

    assert found.startswith("the row of n1 at 2 differs from the fold in ")


def test_a_verdict_never_published_and_one_that_is_not_so_are_found(world: World) -> None:
    fold: Folded = checkers.folded(world.log)
    (never,) = checkers.verdicts_wrong(world.log, fold)
    world.process()
    sound = checkers.verdicts_wrong(world.log, fold)
    world.say(topics.VERDICTS, ClaimOutcome(outcome="granted", claim_id="c9", node_id="n1", offset=9))
    (not_so,) = checkers.verdicts_wrong(world.log, fold)

    assert never.startswith("never published: ")
    assert sound == []
    assert not_so.startswith("published and not so: ")


def test_a_digest_that_is_not_the_folds_is_found(world: World) -> None:
    world.process()
    ledger_id = checkers.folded(world.log).ledgers[0].ledger_id
    world.say(topics.DIGESTS, LedgerDigest(ledger_id=ledger_id, partition=0, process="p2", offset=1, digest="00" * 16, rules_version=1))

    found = checkers.digests_wrong(world.log, checkers.folded(world.log))

    assert found == ["claims/0@1: process p2 has another digest than the fold"]


def test_dead_letters_are_exactly_what_is_dead_with_its_kind(world: World) -> None:
    world.log.append([Message(topics.CLAIMS, b"n1", b"{", (), 0)])
    before = checkers.letters_wrong(world.log, {("claims", 0, 3): "unreadable"})
    world.process()

    assert before == ["('claims', 0, 3) is unreadable; the dead letters say nothing"]
    assert checkers.letters_wrong(world.log, {("claims", 0, 3): "unreadable"}) == []
    assert checkers.letters_wrong(world.log, {("claims", 0, 3): "invalid"}) == [
        "('claims', 0, 3) is invalid; the dead letters say ['unreadable']"
    ]
    assert checkers.letters_wrong(world.log, {}) == ["('claims', 0, 3) is in the dead letters as ['unreadable'] and is sound"]
