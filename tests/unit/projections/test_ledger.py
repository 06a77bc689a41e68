"""The fold of the claims ledger: rules 1 to 3 and 8 to 13. Observations (rules 4 to 7) are in test_evidence, feasibility in test_fit."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections import claiming, ledger_state
from projections import ledger as ledger_module
from projections.ledger import Ledger
from projections.ledger_state import DIGEST_START
from projections.reading import OffsetGap, UnknownRules, WrongLedger
from projections.rules import REMEMBERED_RECORDS
from schemas.claims import (
    ClaimRequested,
    GroupHomeClosed,
    GroupHomeProposed,
    GroupMember,
    NodeConfigured,
    PartitionOpened,
    ReleaseReason,
    RulesChanged,
)
from schemas.codec import decode, encode, key_of
from schemas.inventory import ResourceRule
from schemas.partitioner import partition_of
from schemas.resources import Resources
from schemas.topics import CLAIMS
from schemas.units import AMOUNT_MAX
from tests.ledger_history import START_MS, History, fates, item, shortfalls, state

OPENED = PartitionOpened(ledger_id="L", partition=0, partitions=1)


def fleet(*nodes: str) -> History:
    """Nodes of 8 MiB each; `n1` if none is named."""
    history = History()
    for node in nodes or ("n1",):
        history.audit(at_s=0, node=node, producer=f"audits of {node}")
    return history


# Rule 1 and 2: a verdict is what stands before it


def test_a_claim_is_granted_on_the_first_of_its_nodes_where_it_fits() -> None:
    history = fleet("n1", "n2", "n3")
    history.claim("first", "vm1", 8, at_s=1)

    step = history.claim("second", "vm2", 4, nodes=("n1", "n2", "n3"), at_s=2)

    assert [(outcome.outcome, outcome.node_id) for outcome in step.outcomes] == [("granted", "n2")]
    assert step.node_ids == ("n2",)


def test_a_refusal_names_every_shortfall_of_every_node_tried_in_order() -> None:
    history = fleet("n1", "n2")
    history.configure("n2", status="disabled")

    step = history.claim("c", "vm", 9, nodes=("n1", "n2", "unheard-of"), at_s=1)

    (outcome,) = step.outcomes
    assert (outcome.outcome, outcome.tried) == ("refused", ("n1", "n2", "unheard-of"))
    assert [[str(lack) for lack in lacks] for lacks in outcome.shortfalls] == [
        ["memory_mib: 9 needed of 8"],
        ["status: disabled", "memory_mib: 9 needed of 8"],
        ["node: no audit of it is known"],
    ]


def test_a_claim_is_refused_only_if_it_does_not_fit_now_never_because_the_node_changed_since_its_basis() -> None:
    history = fleet()
    for second in range(1, 6):
        history.claim(f"c{second}", f"vm{second}", 1, at_s=second)

    step = history.claim("late", "vm", 3, basis=0, at_s=9)

    assert fates(step) == [("granted", "late")]


def test_all_items_of_a_record_are_granted_or_none() -> None:
    history = fleet("n1", "n2")

    step = history.claims(item("a", "vm1", 5), item("b", "vm2", 4, nodes=("n1",)), at_s=1)

    assert fates(step) == [("refused", "a"), ("refused", "b")]
    assert shortfalls(step) == ["request: fits, but 1 of 2 instances of the request do not", "memory_mib: 4 needed of 3"]
    assert (history.held(), history.used()) == ([], 0)


def test_the_items_of_a_record_count_each_other_and_take_alternates() -> None:
    history = fleet("n1", "n2")

    step = history.claims(*(item(f"c{n}", f"vm{n}", 5, nodes=("n1", "n2")) for n in range(2)), at_s=1)

    assert [outcome.node_id for outcome in step.outcomes] == ["n1", "n2"]


def test_what_would_have_fitted_is_refused_with_the_record_on_the_first_of_its_nodes() -> None:
    history = fleet("n1", "n2")

    step = history.claims(item("c1", "vm1", 1, nodes=("n2", "n1")), item("c2", "vm2", 9), at_s=1)

    assert [outcome.tried for outcome in step.outcomes] == [("n2",), ("n1",)]
    assert shortfalls(step)[0] == "request: fits, but 1 of 2 instances of the request do not"


def test_a_forced_claim_goes_over_and_says_by_how_much() -> None:
    history = fleet()

    step = history.claim("c", "vm", 10, forced=True, at_s=1)

    assert fates(step) == [("granted", "c")]
    assert [str(lack) for lack in step.outcomes[0].overrun] == ["memory_mib: 10 needed of 8"]
    assert history.node().free("memory_mib") == -2


def test_lowering_a_ratio_takes_nothing_back_but_grants_nothing_new() -> None:
    history = fleet()
    history.claim("c1", "vm1", 6, at_s=1)

    history.configure(memory_mib=ResourceRule(ratio_milli=500))
    step = history.claim("c2", "vm2", 1, at_s=2)

    assert history.held() == ["c1"]
    assert shortfalls(step) == ["memory_mib: 1 needed of -2"]


def test_a_node_enabled_again_takes_claims_again_and_its_reason_is_gone() -> None:
    history = fleet()
    history.configure(status="disabled", reason="fan")
    history.configure(status="enabled")

    step = history.claim("c", "vm", 1, at_s=1)

    assert fates(step) == [("granted", "c")]
    assert history.node().status_reason == ""


# Rule 8: ids


def test_a_copy_of_a_request_is_ignored_while_its_claim_is_held_and_after_it_closed() -> None:
    history = fleet()
    request = history.claim("c", "vm", 5, at_s=1)

    while_held = history.again(request)
    history.release("c")
    after = history.again(request)

    assert while_held.ignored == after.ignored == "a copy: c was seen before"
    assert (history.held(), history.used()) == ([], 0)


def test_a_copy_of_a_refused_request_stays_refused_though_it_would_fit_now() -> None:
    history = fleet()
    history.claim("full", "vm1", 8, at_s=1)
    refused = history.claim("c", "vm2", 5, at_s=2)
    history.release("full")

    copy = history.again(refused)

    assert copy.ignored
    assert history.held() == []


def test_a_copy_of_a_request_held_on_its_alternate_is_ignored_though_its_first_node_has_room_now() -> None:
    history = fleet("n1", "n2")
    history.claim("other", "vm1", 8, at_s=1)
    request = history.claim("c", "vm2", 5, nodes=("n1", "n2"), at_s=2)
    history.release("other")

    copy = history.again(request)

    assert copy.ignored
    assert (history.used("n1"), history.used("n2")) == (0, 5)


def test_a_copy_of_the_operators_word_does_not_take_back_a_newer_one() -> None:
    history = fleet()
    enabled = history.configure(status="enabled")
    history.configure(status="disabled")

    copy = history.again(enabled)

    assert copy.ignored
    assert history.node().status == "disabled"


def test_ids_are_remembered_for_so_many_records_after_closing_and_a_copy_that_comes_later_is_refused_as_stale() -> None:
    history = fleet()
    request = history.claim("c", "vm", 5, at_s=1)
    release = history.release("c")
    history.claim("held", "vm2", 1, at_s=1)
    held_request = history.steps[-1]
    while len(history.records) <= release.offset + REMEMBERED_RECORDS:
        history.append(b"n1", b"{}")
    known = "c" in history.ledger.remembered

    copy, copy_of_held = history.again(request), history.again(held_request)

    assert known
    assert fates(copy) == [("refused", "c")]
    assert shortfalls(copy) == [f"basis: expected to be folded up to one of the {REMEMBERED_RECORDS} records before, got 0"]
    assert copy_of_held.ignored
    assert history.held() == ["held"]


def test_a_basis_is_stale_from_one_more_record_than_ids_are_remembered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "REMEMBERED_RECORDS", 4)
    history = fleet()
    while len(history.records) < 10:
        history.append(b"n1", b"{}")

    old = history.claim("old", "vm1", 1, basis=6, at_s=1)
    too_old = history.claim("too old", "vm2", 1, basis=6, at_s=1)

    assert (fates(old), fates(too_old)) == ([("granted", "old")], [("refused", "too old")])


@given(st.lists(st.sampled_from(["", "a", "b", "c", "d", "e"]), max_size=60))
def test_an_id_is_known_for_just_so_many_records_after_it_was_met(names: list[str]) -> None:
    with pytest.MonkeyPatch.context() as few:
        for module in (claiming, ledger_module, ledger_state):
            few.setattr(module, "REMEMBERED_RECORDS", 5)
        history, met = fleet(), dict[str, int]()
        for name in names:
            known = {each for each, offset in met.items() if offset >= len(history.records) - 5}
            if not name:
                history.append(b"n1", b"{}")
                continue

            step = history.configure(record_id=name)

            assert bool(step.ignored) == (name in known)
            if name not in known:
                met[name] = step.offset


def test_a_claim_cannot_name_a_basis_that_does_not_exist_yet() -> None:
    history = fleet()

    itself = history.claim("c1", "vm", 1, basis=1, at_s=1)
    far_ahead = history.claim("c2", "vm", 1, basis=AMOUNT_MAX, at_s=1)

    assert (fates(itself), fates(far_ahead)) == ([("refused", "c1")], [("refused", "c2")])


def test_a_record_that_names_one_claim_id_twice_changes_nothing() -> None:
    history = fleet("n1", "n2")

    step = history.claims(item("c", "vm1", 1), item("c", "vm2", 1, nodes=("n2",)), at_s=1)

    assert step.ignored == "two items of one record have the same claim id"
    assert history.held() == []


# Rule 9: release and renewal


def test_a_release_gives_back_what_the_claim_used() -> None:
    history = fleet()
    history.claim("c", "vm", 5, at_s=1)

    step = history.release("c")

    assert fates(step) == [("released", "c")]
    assert (history.used(), history.node().io_claims, history.node().instance_count()) == (0, 0, 0)


def test_a_release_that_comes_first_refuses_its_claim() -> None:
    history = fleet()

    early = history.release("c")
    request = history.claim("c", "vm", 5, at_s=1)

    assert fates(early) == [("not-held", "c")]
    assert shortfalls(request) == ["released: released before it was requested"]


def test_a_release_of_what_is_not_held_names_its_node_if_there_is_one_for_what_it_says_of_findings() -> None:
    history = fleet()

    known, unknown = history.release("c"), history.release("c", node="n2")

    assert (known.node_ids, unknown.node_ids) == (("n1",), ())


def test_a_release_that_comes_first_refuses_the_whole_record_and_only_that_one() -> None:
    history = fleet()
    history.release("b")

    together = history.claims(item("a", "vm1", 1), item("b", "vm2", 1), at_s=1)
    another = history.claim("a2", "vm1", 1, at_s=2)

    assert fates(together) == [("refused", "a"), ("refused", "b")]
    assert fates(another) == [("granted", "a2")]


def test_a_second_release_finds_nothing_held() -> None:
    history = fleet()
    history.claim("c", "vm", 5, at_s=1)
    history.release("c")

    step = history.release("c")

    assert fates(step) == [("not-held", "c")]


@pytest.mark.parametrize("reason", ["loser", "failed", "operator", "deleted", "migrated"])
def test_every_reason_but_cancelled_releases_a_claim_in_use(reason: ReleaseReason) -> None:
    history = fleet()
    history.claim("c", "vm", 5, at_s=1)
    history.event("started", "vm", size=5, at_s=2)

    step = history.release("c", reason=reason)

    assert fates(step) == [("released", "c")]
    assert history.used() == 5, "the guest is still shown"


def test_a_cancellation_of_a_claim_in_use_only_says_so() -> None:
    confirmed, renewed, unused = fleet(), fleet(), fleet()
    for history in (confirmed, renewed, unused):
        history.claim("c", "vm", 5, at_s=1)
    confirmed.event("started", "vm", size=5, at_s=2)
    renewed.renew("c", at_s=2)

    steps = [history.release("c", reason="cancelled") for history in (confirmed, renewed, unused)]

    assert [fates(step) for step in steps] == [[("in-use", "c")], [("in-use", "c")], [("released", "c")]]
    assert [history.held() for history in (confirmed, renewed, unused)] == [["c"], ["c"], []]


def test_a_renewal_moves_the_deadline_to_its_append_time_plus_its_ttl_and_never_back() -> None:
    history = fleet()
    history.claim("c", "vm", 5, ttl_s=100, at_s=10)

    history.renew("c", ttl_s=30, at_s=20)
    not_back = history.ledger.claims["c"].deadline_ms
    step = history.renew("c", ttl_s=90, at_s=40)

    assert (not_back, history.ledger.claims["c"].deadline_ms) == (START_MS + 110_000, START_MS + 130_000)
    assert fates(step) == [("renewed", "c")]


def test_a_renewal_of_a_claim_not_held_here_changes_nothing() -> None:
    history = fleet("n1", "n2")
    history.claim("c", "vm", 5, at_s=1)

    unknown, elsewhere = history.renew("never", at_s=2), history.renew("c", node="n2", at_s=2)
    history.release("c")
    closed = history.renew("c", at_s=3)

    assert [fates(step) for step in (unknown, elsewhere, closed)] == [[("not-held", "never")], [("not-held", "c")], [("not-held", "c")]]
    assert history.held() == []


def test_a_guest_started_after_its_claim_closed_counts_as_observed() -> None:
    history = fleet()
    history.claim("c", "vm", 5, at_s=1)
    history.release("c")

    step = history.event("started", "vm", size=5, at_s=2)

    assert fates(step) == []
    assert (history.held(), history.used()) == ([], 5)


def test_a_copy_of_a_release_does_not_act_on_anything_later() -> None:
    history = fleet()
    early = history.release("c")
    history.claim("c", "vm", 5, at_s=1)

    copy = history.again(early)

    assert copy.ignored
    assert copy.outcomes == []


# Rule 10: group homes


def home(epoch: int, node: str = "n1", record_id: str = "") -> GroupHomeProposed:
    return GroupHomeProposed(group_id="g", record_id=record_id or f"propose {node} {epoch}", epoch=epoch, node_id=node)


def closing(epoch: int, *, unconditional: bool = False) -> GroupHomeClosed:
    return GroupHomeClosed(node_id="n1", record_id=f"close {epoch} {unconditional}", group_id="g", epoch=epoch, unconditional=unconditional)


def test_the_first_proposal_of_the_next_epoch_becomes_the_home() -> None:
    history = History()

    first, second, skipping, next_one = (history.say(proposal) for proposal in (home(1), home(1, "n2"), home(3, "n3"), home(2, "n2")))

    assert (first.ignored, next_one.ignored) == ("", "")
    assert (second.ignored, skipping.ignored) == ("epoch 1 does not follow 1", "epoch 3 does not follow 1")
    there = history.ledger.homes("g")
    assert there is not None
    assert (there.epoch, there.node_id) == (2, "n2")


def test_a_home_closes_only_when_no_member_is_held_or_shown_unless_the_operator_insists() -> None:
    history = fleet()
    member = GroupMember(group_id="g", policy="affinity", epoch=1)
    history.claim("c", "vm", 1, group=member, at_s=1)

    refused = history.say(closing(1))
    insisted = history.say(closing(1, unconditional=True))

    assert refused.ignored == "1 members of the group are still there"
    assert insisted.ignored == ""
    assert history.node().homes_closed == {"g": 1}


def test_a_copy_of_a_closing_that_was_not_accepted_closes_nothing_once_the_members_have_left() -> None:
    history = fleet()
    history.claim("c", "vm", 1, group=GroupMember(group_id="g", policy="affinity", epoch=1), at_s=1)
    refused = history.say(closing(1))
    history.release("c")

    copy = history.again(refused)

    assert copy.ignored
    assert history.node().homes_closed == {}


def test_no_home_has_an_epoch_below_one_so_there_is_none_to_close() -> None:
    history = fleet()

    step = history.say(closing(0))

    assert step.ignored == "epoch 0 is closed already"
    assert history.node().homes_closed == {}


def test_a_closed_home_takes_no_member_of_its_epoch_but_one_of_a_later() -> None:
    history = fleet()
    history.say(closing(1))

    late = history.claim("c1", "vm1", 1, group=GroupMember(group_id="g", policy="affinity", epoch=1), at_s=1)
    later = history.claim("c2", "vm2", 1, group=GroupMember(group_id="g", policy="affinity", epoch=2), at_s=2)

    assert shortfalls(late) == ["group: epoch 1 of the group's home is closed here (up to 1)"]
    assert fates(later) == [("granted", "c2")]


# Rule 11: what counts as a record


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        (b"n1", b"", "unreadable"),
        (b"n1", b"\xff\xfe", "unreadable"),
        (b"n1", b"null", "unreadable"),
        (b"n1", b'{"type":"from-the-future"}', "unknown-type"),
        (b"n1", b'{"type":"node-silent"}', "invalid"),
        (b"n1", encode(NodeConfigured(node_id="n1", record_id="r"))[:-1] + b',"more":1}', "invalid"),
        (b"other", encode(NodeConfigured(node_id="n1", record_id="r")), "wrong-key"),
        (b"\xff", encode(NodeConfigured(node_id="n1", record_id="r")), "wrong-key"),
        (b"n1", encode(OPENED), "misplaced"),
        (b"n1", b'{"type":"from-the-future","pad":"' + b"x" * (256 * 1024) + b'"}', "too-large"),
        (b"n1", b"[" * 200_000, "unreadable"),
        (b"n1", b'{"type":"rules-changed","record_id":"r","rules_version":-1}', "invalid"),
        (b"n1", b'{"type":"rules-changed","record_id":"r","rules_version":1180591620717411303424}', "invalid"),
        (b"n1", b'{"type":"rules-changed","record_id":"r","rules_version":2.5}', "invalid"),
    ],
)
def test_what_is_no_record_is_skipped_with_its_reason(key: bytes, value: bytes, kind: str) -> None:
    history = fleet()
    before = state(history.ledger)

    step = history.append(key, value)

    assert step.dead is not None
    assert (step.dead.kind, bool(step.dead.reason), step.event, step.outcomes) == (kind, True, None, [])
    assert {**state(history.ledger), "next": 0} == {**before, "next": 0}


def test_a_record_of_any_type_counts_under_its_own_key_only() -> None:
    lines = (Path(__file__).parents[2] / "golden" / "records.jsonl").read_text().splitlines()
    values = [line["value"].encode() for line in map(json.loads, lines) if line["topic"] == CLAIMS]
    keyed = [(key_of(decode(CLAIMS, value)), value) for value in values]

    under = [(key, [fleet("n1", "n2", "n3").append(other, value).dead for other in (key, b"n2", b"n3")]) for key, value in keyed if key]

    assert len(under) == len(keyed) - 2, "all types but partition-opened and rules-changed have a key"
    for key, dead in under:
        expected = [None if other == key else "wrong-key" for other in (key, b"n2", b"n3")]
        assert [reason and reason.kind for reason in dead] == expected


def test_a_record_of_claims_counts_under_the_key_of_its_first_item_only() -> None:
    history = fleet("n1", "n2")
    record = ClaimRequested(request_id="r", owner="s", basis=1, ttl_ms=1, items=(item("a", "vm1", 1), item("b", "vm2", 1, nodes=("n2",))))

    of_the_last, of_the_first = history.append(b"n2", encode(record)), history.append(b"n1", encode(record))

    assert of_the_last.dead is not None
    assert of_the_last.dead.kind == "wrong-key"
    assert fates(of_the_first) == [("granted", "a"), ("granted", "b")]


def test_the_digest_of_nested_garbage_does_not_depend_on_how_deep_the_reader_stands() -> None:
    values = [b'{"type":"from-the-future","x":' + b"[" * depth + b"]" * depth + b"}" for depth in range(800, 1000, 10)]

    def digest(calls: int) -> bytes:
        if calls:
            return digest(calls - 1)
        ledger = Ledger(0, 1)
        for offset, value in enumerate(values):
            ledger.apply(offset, START_MS, b"n1", value)
        return ledger.digest

    assert digest(0) == digest(60)


def test_a_record_of_a_node_of_another_partition_is_dead_and_so_is_a_claim_with_one_such_alternate() -> None:
    mine, theirs = (next(f"n{i}" for i in range(100) if partition_of(f"n{i}".encode(), 2) == wanted) for wanted in (0, 1))
    history = History(partition=0, partitions=2)
    history.audit(at_s=0, node=mine)

    audit = history.audit(at_s=1, node=theirs)
    claim = history.claim("c", "vm", 1, nodes=(mine, theirs), at_s=2)
    group = history.say(GroupHomeProposed(group_id=theirs, record_id="r", epoch=1, node_id=mine))

    for step in (audit, claim, group):
        assert step.dead is not None
        assert step.dead.kind == "wrong-partition"
    assert list(history.ledger.nodes) == [mine]


def test_rules_that_are_unknown_stop_the_reader_each_time_it_tries_and_tell_what_to_upgrade() -> None:
    history = fleet()
    value = encode(RulesChanged(record_id="r", rules_version=2))

    for _ in range(2):
        with pytest.raises(UnknownRules, match=r"rules version 2, this claimlog knows \[1\]; upgrade claimlog"):
            history.ledger.apply(1, START_MS, b"any", value)

    assert history.ledger.next_offset == 1


def test_rules_that_do_not_follow_the_present_ones_change_nothing() -> None:
    history = fleet()

    again, too_far = (history.say(RulesChanged(record_id=f"r{version}", rules_version=version)) for version in (1, 3))

    assert (again.ignored, too_far.ignored) == ("rules 1 do not follow 1", "rules 3 do not follow 1")


def test_a_partition_opened_under_unknown_rules_stops_the_reader() -> None:
    with pytest.raises(UnknownRules):
        History().say(PartitionOpened(ledger_id="L", partition=0, partitions=1, rules_version=2))


# Rule 12 and 13: digests and readers


def test_record_0_names_the_ledger() -> None:
    history = History()

    history.say(OPENED)

    assert history.ledger.ledger_id == "L"


def test_a_partition_read_as_another_one_stops_the_reader() -> None:
    with pytest.raises(WrongLedger, match="opened as partition 1 of 4, read as 0 of 1"):
        History().say(PartitionOpened(ledger_id="L", partition=1, partitions=4))


def test_a_reader_skips_what_it_has_folded_and_refuses_a_gap() -> None:
    history = fleet()
    history.claim("c", "vm", 1, at_s=1)
    before = state(history.ledger)

    folded = history.ledger.apply(*history.records[0])
    with pytest.raises(OffsetGap, match="claims/0: record 2 is missing"):
        history.ledger.apply(3, START_MS, b"n1", b"{}")

    assert folded is None
    assert state(history.ledger) == before


def test_the_digest_changes_with_every_record_whatever_it_did() -> None:
    history = fleet()
    digests = [DIGEST_START, history.ledger.digest]

    history.claim("c", "vm", 1, at_s=1)
    digests.append(history.ledger.digest)
    for _ in range(2):
        history.append(b"n1", b"?")
        digests.append(history.ledger.digest)

    assert len(set(digests)) == 5


def test_the_digest_tells_apart_readers_that_disagree_on_one_outcome() -> None:
    one, other = fleet(), fleet()
    value = encode(
        ClaimRequested(request_id="r", owner="o", basis=0, ttl_ms=1000, items=(item("c", "vm", 0, resources=Resources(memory_mib=8)),))
    )
    wrong = deepcopy(other.ledger)
    wrong.nodes["n1"].used[2] += 1

    for ledger in (one.ledger, wrong):
        ledger.apply(1, START_MS, b"n1", value)

    assert one.ledger.digest != wrong.digest


def test_a_ledger_that_hashes_no_more_folds_on_without_a_digest() -> None:
    history = fleet()
    history.ledger.hash_no_more()

    step = history.claim("c", "vm", 1, at_s=1)

    assert fates(step) == [("granted", "c")]
    assert history.ledger.digest == b""


def test_append_times_never_run_back() -> None:
    history = fleet()
    history.claim("c1", "vm1", 1, at_s=50)

    history.claim("c2", "vm2", 1, at_s=20)

    assert history.ledger.claims["c2"].since_ms == START_MS + 50_000


# NodeSilent


def test_silence_names_the_last_audit_and_ends_with_the_next() -> None:
    history = History()
    history.audit(at_s=0, epoch=1, counter=1)
    history.silent(at_s=100, epoch=1, counter=1)
    silent_since = history.node().silent_since_ms

    history.audit(at_s=110, epoch=1, counter=2)
    late = history.silent(at_s=120, epoch=1, counter=1)

    assert silent_since == START_MS + 100_000
    assert late.ignored == "a newer audit is applied"
    assert history.node().silent_since_ms is None


def test_silence_of_a_producer_is_none_once_another_has_taken_over() -> None:
    history = History()
    history.audit(at_s=0, producer="old", epoch=1, counter=7)
    history.audit(at_s=50, producer="new", epoch=2, counter=1)

    step = history.silent(at_s=100, producer="old", epoch=1, counter=7)

    assert step.ignored == "a newer audit is applied"
    assert history.node().silent_since_ms is None
