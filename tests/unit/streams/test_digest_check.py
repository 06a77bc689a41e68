"""The digest check: two processes that differ fold again, the wrong one ends, and nobody else does (rule 12)."""

from __future__ import annotations

from pathlib import Path

import pytest

from projections.digests import FoldedAgain, read_digests
from projections.ledger import Ledger
from projections.reading import HistoryMissing, WrongDigest
from projections.snapshots import chunks_of, load_newest
from schemas.claims import ClaimItem, ClaimRequested, NodeObserved
from schemas.codec import encode, key_of
from schemas.inventory import Hypervisor
from schemas.resources import Resources
from schemas.topics import CLAIMS, DIGESTS, SNAPSHOTS
from streams.digest_check import SLICE_RECORDS, DigestCheck, digest_message, digest_name, discard
from streams.folder import Folder
from streams.ledger_topics import open_ledger
from streams.log.base import LogUnreachable, Message
from streams.log.memory import MemoryLog
from streams.metrics import Metrics

START_MS = 1_700_000_000_000
ALL = frozenset({0})


class World:
    """A log of one partition with a node and claims, folds of it, and processes that check each other's digests."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.seconds = 0.0
        self.log = MemoryLog(clock=lambda: self.now_ms)
        open_ledger(self.log, ledger_partitions=1, request_partitions=1)
        host = Hypervisor(vcpus=8, memory_mib=8192, disk_mib=100_000)
        self.append(
            NodeObserved(
                node_id="n1", producer="a", epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=1, digest="d", hypervisor=host, instances=()
            )
        )
        self.said: dict[str, list[str]] = {}
        self.metrics: dict[str, Metrics] = {}
        self.discarded: list[tuple[int, str | None]] = []

    def append(self, *events: object) -> None:
        self.log.append([Message(CLAIMS, key_of(event) or b"", encode(event), (), 0) for event in events])  # type: ignore[arg-type]

    def claim(self, count: int) -> None:
        begin = self.log.end(CLAIMS, 0)
        for number in range(begin, begin + count):
            size = Resources(vcpus=1, memory_mib=64)
            item = ClaimItem(claim_id=f"r{number}/0/s-1.1", instance_id=f"i{number}", nodes=("n1",), resources=size)
            self.append(ClaimRequested(request_id=f"r{number}", owner="s", basis=0, ttl_ms=600_000, items=(item,)))

    def folded(self, *, spoilt_at: int = -1) -> Ledger:
        """The fold; with `spoilt_at` one whose memory of the node changed there."""
        ledger = Ledger(0, 1)
        for record in self.log.read(CLAIMS, 0, self.log.start(CLAIMS, 0), 1_000_000):
            if record.offset == spoilt_at:
                ledger.nodes["n1"].used[0] += 1_000
            ledger.apply(record.offset, record.time_ms, record.key, record.value)
        return ledger

    def check(self, process: str) -> DigestCheck:
        said = self.said[process] = []
        metrics = self.metrics[process] = Metrics("1.2.3")

        def discard(partition: int, again: FoldedAgain) -> None:
            self.discarded.append((partition, again.digest))

        return DigestCheck(self.log, process, metrics, said.append, discard=discard, seconds=lambda: self.seconds)

    def publish(self, process: str, ledger: Ledger) -> None:
        self.log.append([digest_message(ledger, process, "1.2.3")])

    def turns(self, check: DigestCheck, count: int = 20) -> None:
        for _ in range(count):
            self.seconds += 1.0
            check.turn(ALL)

    def mismatches(self, process: str) -> float:
        return self.metrics[process].registry.get_sample_value("claimlog_digest_mismatches_total") or 0.0


@pytest.fixture
def world() -> World:
    return World()


def test_processes_that_agree_say_nothing(world: World) -> None:
    one, other = world.check("one"), world.check("other")
    world.turns(one, 1)
    world.claim(4)
    for process in ("one", "other"):
        world.publish(process, world.folded())

    world.turns(one)
    world.turns(other)

    assert (world.said, world.mismatches("one"), world.discarded) == ({"one": [], "other": []}, 0.0, [])


def test_the_one_whose_own_value_changes_was_wrong_and_the_other_goes_on(world: World) -> None:
    sound, spoilt = world.check("sound"), world.check("spoilt")
    world.turns(sound, 1)
    world.turns(spoilt, 1)
    world.claim(4)
    world.publish("sound", world.folded())
    world.publish("spoilt", world.folded(spoilt_at=4))

    world.turns(sound)
    with pytest.raises(WrongDigest) as wrong:
        world.turns(spoilt)

    truth = world.folded().digest.hex()
    differs, judged = world.said["sound"]
    assert f"the digest of spoilt (claimlog 1.2.3, rules 1) is {world.folded(spoilt_at=4).digest.hex()}" in differs
    assert f"that of this process {truth}; folding again from the first record" in differs
    assert judged == "claims/0@5: folded again, this process is right, spoilt (claimlog 1.2.3, rules 1) is wrong"
    assert "claims/0@5: this process, spoilt (claimlog 1.2.3, rules 1), was wrong" in str(wrong.value)
    assert (world.mismatches("sound"), world.mismatches("spoilt"), world.discarded) == (1.0, 1.0, [(0, truth)])


def test_one_that_is_known_to_be_wrong_is_counted_and_not_judged_again(world: World) -> None:
    sound = world.check("sound")
    world.turns(sound, 1)
    for _ in range(3):
        world.claim(1)
        world.publish("sound", world.folded())
        world.publish("spoilt", world.folded(spoilt_at=2))

    world.turns(sound)

    assert (len(world.said["sound"]), world.mismatches("sound")) == (2, 3.0)


def test_a_log_that_is_away_as_one_begins_to_fold_again_leaves_the_digest_to_the_next_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = world.check("sound")
    world.turns(sound, 1)
    world.claim(1)
    world.publish("sound", world.folded())
    world.publish("spoilt", world.folded(spoilt_at=2))
    with monkeypatch.context() as away:
        away.setattr("streams.digest_check.FoldedAgain", log_away)
        for _ in range(2):
            with pytest.raises(LogUnreachable):
                world.turns(sound, 1)

    world.turns(sound)

    assert "spoilt" in world.said["sound"][-1]
    assert (len(world.said["sound"]), world.mismatches("sound")) == (2, 1.0)


def log_away(*_: object) -> None:
    raise LogUnreachable("away")


def test_a_digest_left_from_a_log_that_stood_here_before_accuses_nobody(world: World) -> None:
    world.claim(4)
    world.publish("gone", world.folded(spoilt_at=3))
    (left,) = read_digests(world.log, 0)
    later = World()
    later.log.append([digest_message(world.folded(spoilt_at=3), "gone", "1.2.3")])
    later.now_ms += 3_600_000
    sound = later.check("sound")
    later.turns(sound, 1)
    later.claim(4)
    later.publish("sound", later.folded())

    later.turns(sound)

    assert (later.said["sound"], later.mismatches("sound")) == ([], 0.0)
    assert (left.is_about(START_MS), left.is_about(START_MS + 3_600_000)) == (True, False)


def test_what_an_earlier_start_of_the_process_said_is_not_its_own_word(world: World) -> None:
    world.claim(4)
    world.publish("one", world.folded(spoilt_at=3))
    one = world.check("one")
    world.turns(one, 1)
    world.publish("other", world.folded())

    world.turns(one)

    assert (world.said["one"], world.discarded) == ([], [])


def test_a_long_history_is_folded_again_a_slice_a_turn(world: World) -> None:
    sound = world.check("sound")
    world.turns(sound, 1)
    world.claim(SLICE_RECORDS)
    world.publish("sound", world.folded())
    world.publish("spoilt", world.folded(spoilt_at=2))
    world.seconds += 1.0
    sound.turn(ALL)

    slices = [sound.turn(ALL) for _ in range(2)]

    assert slices == [SLICE_RECORDS, 2]
    assert len(world.said["sound"]) == 2


def test_where_history_left_the_log_the_oldest_snapshot_is_the_beginning(world: World) -> None:
    world.claim(3)
    kept = world.folded()
    world.claim(1)
    newest = world.folded(spoilt_at=3)
    world.claim(2)
    truth = world.folded().digest.hex()
    for ledger in (kept, newest):
        world.log.append([Message(SNAPSHOTS, b"0", encode(chunk), (), 0) for chunk in chunks_of(ledger)])
    world.log.truncate(CLAIMS, 0, kept.next_offset)

    again = FoldedAgain(world.log, 0, 7)
    while again.fold(1):
        pass

    assert (again.digest, again.begun) == (truth, "the snapshot of offset 4")
    assert again.base is not None
    assert again.base[0].next_offset == 5


def test_without_a_beginning_nobody_is_judged_and_nobody_ends(world: World) -> None:
    sound = world.check("sound")
    world.turns(sound, 1)
    world.claim(4)
    world.publish("sound", world.folded())
    world.publish("spoilt", world.folded(spoilt_at=2))
    world.log.truncate(CLAIMS, 0, 3)

    world.turns(sound)

    assert len(world.said["sound"]) == 1
    assert "which is not to be found here" in world.said["sound"][0]
    with pytest.raises(HistoryMissing, match="replay --verify --archive"):
        FoldedAgain(world.log, 0, 5)


def test_a_scheduler_beside_a_stream_processor_has_a_name_of_its_own() -> None:
    assert digest_name("host-7") == "host-7/scheduler"
    assert len(digest_name("h" * 255)) == 255


def test_what_is_no_digest_says_nothing(world: World) -> None:
    world.claim(1)
    world.publish("one", world.folded())
    world.log.append([Message(DIGESTS, b"0/x", b"{}", (), 0), Message(DIGESTS, b"0/x", b"\xff", (), 0)])

    assert [published.digest.process for published in read_digests(world.log, 0)] == ["one"]


def test_what_it_said_of_a_partition_before_that_was_lost_is_not_its_own_word(world: World) -> None:
    one = world.check("one")
    world.turns(one, 1)
    world.claim(4)
    world.publish("one", world.folded(spoilt_at=3))
    world.turns(one)

    one.turn(frozenset())
    world.turns(one, 1)
    world.publish("other", world.folded())
    world.turns(one)

    assert (world.said["one"], world.discarded) == ([], [])


def test_digests_are_looked_for_once_a_second(world: World) -> None:
    sound = world.check("sound")
    world.turns(sound, 1)
    world.claim(4)
    world.publish("sound", world.folded())
    world.publish("spoilt", world.folded(spoilt_at=3))
    for _ in range(3):
        world.seconds += 0.3
        sound.turn(ALL)
    within = world.said["sound"][:]

    world.seconds += 0.1
    sound.turn(ALL)

    assert (within, len(world.said["sound"])) == ([], 1)


@pytest.mark.parametrize("offsets_kept", [2, 3])
def test_digests_are_kept_of_so_many_offsets(world: World, monkeypatch: pytest.MonkeyPatch, offsets_kept: int) -> None:
    monkeypatch.setattr("streams.digest_check.OFFSETS_KEPT", offsets_kept)
    sound = world.check("sound")
    world.turns(sound, 1)
    world.claim(1)
    behind = world.folded(spoilt_at=2)
    for _ in range(3):
        world.publish("sound", world.folded())
        world.claim(1)
    world.turns(sound)

    world.publish("spoilt", behind)
    world.turns(sound)

    assert len(world.said["sound"]) == (2 if offsets_kept == 3 else 0)


def test_of_two_that_are_wrong_one_is_judged_after_the_other(world: World) -> None:
    sound = world.check("sound")
    world.turns(sound, 1)
    for _ in range(2):
        world.claim(2)
        world.publish("sound", world.folded())
        for process in ("p7", "p8"):
            world.publish(process, world.folded(spoilt_at=2 if process == "p7" else 3))
        world.turns(sound)

    about = [[name for name in ("p7", "p8") if name in line] for line in world.said["sound"]]
    assert about == [["p7"], ["p7"], ["p8"], ["p8"]]


@pytest.mark.parametrize("from_the_first", [True, False])
def test_what_a_wrong_process_kept_is_thrown_away_and_its_next_start_begins_where_it_was_folded_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, from_the_first: bool
) -> None:
    monkeypatch.setattr("streams.folder.SNAPSHOT_EVERY", 1)

    def started() -> Folder:
        folder = Folder(world.log, tmp_path / "state", "p", Metrics("1.2.3"), print, clock=lambda: world.now_ms)
        while folder.turn(ALL):
            pass
        return folder

    world.claim(3)
    wrong = started()
    sound = wrong.folds[0].ledger.digest
    wrong.folds[0].ledger.nodes["n1"].used[0] += 1_000
    world.claim(2)
    wrong.turn(ALL)
    if not from_the_first:
        world.log.truncate(CLAIMS, 0, 5)
    again = FoldedAgain(world.log, 0, 6)
    again.fold(100)

    discard(world.log, wrong, 0, again)
    before, newest = wrong.folds[0].ledger.digest.hex(), load_newest(world.log, 0)
    wrong.close()
    right = started()
    after = right.folds[0].ledger.digest.hex()
    right.close()

    assert before != after == again.digest
    assert (None if newest is None else newest.digest) == (None if from_the_first else sound)


def test_a_wrong_process_that_has_given_the_table_up_throws_its_snapshots_away(world: World, tmp_path: Path) -> None:
    world.claim(3)
    folder = Folder(world.log, tmp_path / "state", "p", Metrics("1.2.3"), print, clock=lambda: world.now_ms)
    folder.turn(ALL)
    world.log.append([Message(SNAPSHOTS, b"0", encode(chunk), (), 0) for chunk in chunks_of(world.folded(spoilt_at=2))])
    again = FoldedAgain(world.log, 0, 4)
    folder.turn(frozenset())

    discard(world.log, folder, 0, again)

    assert load_newest(world.log, 0) is None
    folder.close()
