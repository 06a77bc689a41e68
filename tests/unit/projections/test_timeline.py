"""What a timeline keeps of a log, for an instance, a node and a request."""

from __future__ import annotations

import pytest
from msgspec import convert
from msgspec.structs import replace

from projections.ledger import Ledger
from projections.subjects import Subject, concerns, subject_of
from projections.timeline import Entry, Timeline
from projections.wording import event_text
from schemas.claims import ClaimReleased, ClaimRenewed
from schemas.findings import LeakSuspected
from schemas.inventory import Hypervisor
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import Resources
from schemas.results import InstancesPlaced, Placement, PlacementFailed
from schemas.topics import FINDINGS, REQUESTS, RESULTS
from tests.ledger_history import START_MS, History, digest_of, item


def timeline(history: History, about: str) -> Timeline:
    """The timeline of a subject over a whole history."""
    ledger, found = Ledger(0, 1), Timeline(subject_of(about))
    for written in history.records:
        step = ledger.apply(*written)
        assert step is not None
        found.apply(ledger, step)
    return found


def lines(entries: list[Entry]) -> list[tuple[int, str, str, int, int]]:
    """Offset, event, node, memory added, memory used afterwards."""
    return [(entry.offset, entry.event, entry.node_id, entry.deltas[2], used(entry)) for entry in entries]


def used(entry: Entry) -> int:
    """Memory used after a record that is of a node's use."""
    assert entry.use is not None
    return entry.use[2]


@pytest.fixture
def moved() -> History:
    """`i` is placed on n1, seen, resized, moved to n2, and forgotten there; `j` is somebody else."""
    history = History()
    for node in ("n1", "n2"):
        history.audit({}, at_s=0, node=node, memory_mib=32)
    history.claim("r1/0/s-1.1", "i", 4, at_s=10, request_id="r1", ttl_s=600)
    history.claim("r2/0/s-1.2", "j", 2, at_s=11, request_id="r2", nodes=("n1",))
    history.event("started", "i", at_s=12, size=4)
    history.audit({"i": 4, "j": 2}, at_s=60, memory_mib=32)
    history.audit(at_s=120, unchanged=digest_of({"i": 4, "j": 2}))
    history.claim("r3/0/s-1.3", "i", 6, at_s=130, request_id="r3", resize=True)
    history.event("resized", "i", at_s=131, size=6)
    history.claim("r4/0/s-1.4", "i", 6, at_s=140, request_id="r4", nodes=("n2",), ttl_s=600)
    history.event("arrived", "i", at_s=141, size=6, node="n2")
    history.event("departed", "i", at_s=142, node="n1")
    history.release("r1/0/s-1.1", at_s=143, reason="migrated")
    history.release("r3/0/s-1.3", at_s=144, reason="migrated")
    history.audit({}, at_s=200, node="n2", memory_mib=32)
    return history


def test_an_instance_has_every_record_that_changed_its_use_or_its_claims_and_none_else(moved: History) -> None:
    entries = timeline(moved, "i").ordered()

    assert lines(entries) == [
        (2, "claim-requested", "n1", 4, 4),
        (4, "instance-observed", "n1", 0, 4),
        (7, "claim-requested", "n1", 2, 6),
        (8, "instance-observed", "n1", 0, 6),
        (9, "claim-requested", "n2", 6, 6),
        (10, "instance-observed", "n2", 0, 6),
        (11, "instance-observed", "n1", 0, 6),
        (12, "claim-released", "n1", 0, 6),
        (13, "claim-released", "n1", -6, 0),
        (14, "node-observed", "n2", 0, 6),
    ]
    assert entries[0].summary == "request r1 claims 4 MiB: r1/0/s-1.1 granted on n1"
    assert entries[-1].summary == "audit does not list it"
    assert entries[-1].position == "claims/0@14"


def test_an_instance_that_nobody_claimed_has_its_events_and_the_audits_that_show_it() -> None:
    history = History()
    history.event("started", "i", at_s=0, size=4)
    history.event("started", "other", at_s=1, size=2)
    history.audit({"i": 5}, at_s=60, memory_mib=32)

    assert lines(timeline(history, "i").ordered()) == [(0, "instance-observed", "n1", 4, 4), (2, "node-observed", "n1", 1, 5)]


def test_the_deltas_are_of_each_resource() -> None:
    history = History()
    history.audit({}, at_s=0, hypervisor=Hypervisor(vcpus=9, pcpus=9, memory_mib=9, disk_mib=9))
    for number in (1, 2):
        wanted = Resources(vcpus=number, pcpus=number + 1, memory_mib=number + 2, disk_mib=number + 3)
        history.claims(item(f"c{number}", "i", 0, resources=wanted), at_s=number)
    history.release("c2", at_s=3)
    history.release("c1", at_s=4)

    entries = timeline(history, "i").ordered()

    assert [entry.deltas for entry in entries] == [(1, 2, 3, 4), (1, 1, 1, 1), (-1, -1, -1, -1), (-1, -2, -3, -4)]
    assert [entry.use for entry in entries] == [(1, 2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 4), (0, 0, 0, 0)]


def test_claims_of_one_record_stand_with_their_own_instances_and_an_instance_has_its_own_alone(moved: History) -> None:
    moved.claims(item("big", "k", 40), item("small", "l", 1), at_s=210, request_id="r9")
    moved.claims(item("one", "k", 2), item("two", "l", 3), at_s=211, request_id="r9")

    refused, one, two = timeline(moved, "request/r9").ordered()
    of_l = timeline(moved, "l").ordered()

    assert (refused.instance_id, refused.node_id, refused.use) == ("k", "", None)
    assert [(each.instance_id, each.deltas[2], each.summary) for each in (one, two)] == [
        ("k", 2, "request r9 claims 2 MiB: one granted on n1"), ("l", 3, "request r9 claims 3 MiB: two granted on n1"),
    ]  # fmt: skip
    assert [entry.summary.split(":")[0] for entry in of_l] == ["request r9 claims 1 MiB", "request r9 claims 3 MiB"]


def test_the_deltas_of_a_node_add_up_to_its_use_and_quiet_audits_are_left_out(moved: History) -> None:
    entries = timeline(moved, "node/n1").ordered()

    assert [entry.offset for entry in entries] == [0, 2, 3, 4, 5, 7, 8, 11, 12, 13]
    assert sum(entry.deltas[2] for entry in entries) == used(entries[-1]) == moved.used("n1") == 2


def test_a_request_has_its_refusal_with_the_reason(moved: History) -> None:
    moved.claim("r9/0/s-1.9", "k", 99, at_s=210, request_id="r9")

    (entry,) = timeline(moved, "request/r9").ordered()

    assert entry.summary == "request r9 claims 99 MiB: r9/0/s-1.9 refused: n1: memory_mib: 99 needed of 30"


def test_a_claim_that_came_after_claims_were_looked_for_has_its_amounts(moved: History) -> None:
    moved.claim("r8/0/s-1.8", "k", 3, at_s=210, request_id="r8")

    found = timeline(moved, "request/r8")

    assert lines(found.ordered()) == [(15, "claim-requested", "n1", 3, 3)]


def test_a_record_that_was_ignored_says_why(moved: History) -> None:
    moved.event("started", "i", at_s=220, size=6, node="n2", epoch=0)

    last = timeline(moved, "instance/i").ordered()[-1]

    assert last.summary == "instance started with 6 MiB (ignored: not above the last event of libvirt)"
    assert used(last) == 6


def test_a_record_that_is_of_no_nodes_use_says_none_and_not_zero(moved: History) -> None:
    moved.claim("r9/0/s-1.9", "k", 99, at_s=210, request_id="r9")
    found = timeline(moved, "request/r9")
    found.tell(REQUESTS, 0, 0, START_MS + 205_000, PlacementRequested(request_id="r9", flavor=Flavor(memory_mib=99)))

    assert [(entry.event, entry.use) for entry in found.ordered()] == [("placement-requested", None), ("claim-requested", None)]


@pytest.mark.parametrize("about", ["instance/i", "request/r1"])
def test_a_word_about_a_claim_that_is_held_no_more_is_of_no_instances_use(about: str, moved: History) -> None:
    moved.event("arrived", "i", at_s=215, size=3, node="n1")
    moved.renew("r1/0/s-1.1", at_s=220, node="n1")

    last = timeline(moved, about).ordered()[-1]

    assert (last.event, last.node_id, last.use) == ("claim-renewed", "n1", None)
    assert used(timeline(moved, "node/n1").ordered()[-1]) == 5


def test_requests_results_and_findings_stand_between_the_claims_cause_first(moved: History) -> None:
    found = timeline(moved, "i")
    request = PlacementRequested(request_id="r1", flavor=Flavor(memory_mib=4), instance_ids=("i",))
    placement = Placement(instance_id="i", claim_id="r1/0/s-1.1", partition=0, node_id="n1", resources=Resources(memory_mib=4))
    commit_by_ms = START_MS + 10_000
    placed = InstancesPlaced(request_id="r1", owner="s", taken_up_ms=START_MS, commit_by_ms=commit_by_ms, placements=(placement,))
    place = {"node_id": "n1", "partition": 0, "offset": 10, "time_ms": 0, "since_ms": 0, "suspected_ms": 0, "type": "leak-suspected"}
    finding = convert({"finding_id": "f", "kind": "double-claim", "instance_id": "i", "note": "here", **place}, LeakSuspected)
    other = PlacementFailed(request_id="r77", owner="s", taken_up_ms=START_MS, reason="no-valid-node")

    found.tell(RESULTS, 0, 0, START_MS + 10_000, placed)
    found.tell(REQUESTS, 0, 0, START_MS + 10_000, request)
    found.tell(FINDINGS, 0, 0, START_MS + 141_000, finding)
    found.tell(RESULTS, 0, 1, START_MS + 150_000, other)

    events = [entry.event for entry in found.ordered()]
    assert events[:3] == ["placement-requested", "claim-requested", "instances-placed"]
    assert "leak-suspected" in events
    assert "placement-failed" not in events
    assert found.requests == {"r1", "r3", "r4"}
    assert [entry.summary for entry in found.ordered() if entry.topic != "claims"] == [
        "1 x 4 MiB wanted", "placed on n1", "double-claim i: here",
    ]  # fmt: skip


def test_results_that_do_not_count_say_so(moved: History) -> None:
    found = timeline(moved, "request/r1")
    placement = Placement(instance_id="i", claim_id="r1/0/s-1.1", partition=0, node_id="n1", resources=Resources(memory_mib=4))
    placed = InstancesPlaced(request_id="r1", owner="s", taken_up_ms=1, commit_by_ms=START_MS, placements=(placement,))
    failed = PlacementFailed(request_id="r1", owner="t", taken_up_ms=1, reason="cancelled")

    for offset, (after_ms, result) in enumerate([(1, placed), (0, placed), (1, failed), (1, failed)]):
        found.tell(RESULTS, 0, offset, START_MS + after_ms, result)

    late = "placed on n1 (does not count: appended after its commit_by_ms)"
    said = {entry.offset: entry.summary for entry in found.ordered() if entry.topic == RESULTS}
    # The second has a time below the one before it: a record's time is the largest so far in its partition.
    assert said == {
        0: late, 1: late, 2: "not placed: cancelled", 3: "not placed: cancelled (does not count: placement-results/0@2 does)",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("i-77", Subject("instance", "i-77")),
        ("instance/node/x", Subject("instance", "node/x")),
        ("node/n1", Subject("node", "n1")),
        ("request/a/b", Subject("request", "a/b")),
    ],
)
def test_a_subject_is_named_by_its_kind_and_an_instance_by_its_id_alone(text: str, subject: Subject) -> None:
    assert subject_of(text) == subject


def test_a_subject_without_a_name_is_refused_and_a_release_names_its_request() -> None:
    released = ClaimReleased(node_id="n1", record_id="x", claim_id="a/b/0/s-1.1", reason="loser")

    with pytest.raises(ValueError, match="expected node/NODE"):
        subject_of("node/")
    assert concerns(released, Subject("request", "a/b"))
    assert not concerns(released, Subject("request", "a"))


def test_a_request_names_whom_it_avoids_and_its_result_what_is_kept() -> None:
    avoiding = PlacementRequested(request_id="r", flavor=Flavor(vcpus=1), ignored_nodes=("n7",), retry_nodes=("n8",))
    kept = Placement(instance_id="i", node_id="n1", partition=0, claim_id="k", resources=Resources(vcpus=1))
    gone_to = replace(kept, node_id="n2", claim_id="c")
    moved = InstancesPlaced(request_id="r", owner="s", taken_up_ms=0, commit_by_ms=1, decisions=(), placements=(gone_to,), kept=(kept,))

    assert all(concerns(avoiding, Subject("node", name)) for name in ("n7", "n8"))
    assert all(concerns(moved, Subject("node", name)) for name in ("n1", "n2"))
    assert not concerns(moved, Subject("node", "n3"))


@pytest.mark.parametrize(
    ("ttl_ms", "said"), [(600_000, "600 s"), (500, "0.5 s"), (100_000_500, "100000.5 s"), (1_296_000_000, "1296000 s")]
)
def test_a_renewal_says_exactly_for_how_long(ttl_ms: int, said: str) -> None:
    assert event_text(ClaimRenewed(node_id="n1", record_id="x", claim_id="c", ttl_ms=ttl_ms)) == f"claim renewed for {said}"


def test_a_request_that_is_asked_again_counts_for_nothing_whatever_it_wants_and_says_so(moved: History) -> None:
    found = timeline(moved, "request/r9")
    for offset, (partition, memory_mib) in enumerate([(1, 5), (0, 4), (0, 4), (0, 9)]):
        request = PlacementRequested(request_id="r9", flavor=Flavor(memory_mib=memory_mib))
        found.tell(REQUESTS, partition, offset, START_MS + offset, request)

    again = " (asked again with an id that placement-requests/0@1 has: counts for nothing)"
    # The one in a partition where the request does not belong is read by nobody, so the next one is the first.
    assert [entry.summary for entry in found.ordered()] == [
        "1 x 5 MiB wanted",
        "1 x 4 MiB wanted",
        f"1 x 4 MiB wanted{again}",
        f"1 x 9 MiB wanted{again}",
    ]


@pytest.mark.parametrize("about", ["i", "node/n1"])
def test_a_deletion_says_which_claim_it_came_too_soon_for(about: str) -> None:
    history = History()
    history.audit({}, at_s=0)
    history.claim("c", "i", 4, at_s=10)
    history.event("deleted", "i", at_s=12)
    history.event("deleted", "i", at_s=16)

    soon, late = [entry.summary for entry in timeline(history, about).ordered()][-2:]

    assert soon == "instance deleted (closes nothing of c: not more than 5 s after it was granted, renewed or shown)"
    assert late == "instance deleted: c deleted"


def test_a_finding_that_is_said_again_by_who_started_from_an_older_state_stands_there_once(moved: History) -> None:
    found = timeline(moved, "i")
    place = {"node_id": "n1", "partition": 0, "time_ms": 0, "since_ms": 0, "suspected_ms": 0, "type": "leak-suspected"}
    finding = {"finding_id": "f", "kind": "orphan-claim", "instance_id": "i", **place}
    for at, offset in enumerate((10, 12, 10, 12, 14)):
        found.tell(FINDINGS, 0, at, START_MS + 141_000 + at, convert({**finding, "offset": offset}, LeakSuspected))

    assert [entry.offset for entry in found.ordered() if entry.topic == FINDINGS] == [0, 1, 4]
