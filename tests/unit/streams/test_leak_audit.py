"""The leak audit in its host: doubles across partitions, silence, messages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest

import pytest

from projections.doubles import DoubleClaims
from projections.ledger import Ledger
from projections.observed import Observed
from projections.rules import GRACE_MS
from schemas.claims import FindingIgnored, GroupHomeClosed, GroupHomeProposed, GroupMember, NodeSilent
from schemas.codec import decode_keyed
from schemas.findings import FindingRecord, LeakConfirmed, LeakResolved, LeakSuspected
from schemas.partitioner import partition_of
from schemas.resources import Resources
from schemas.topics import CLAIMS, FINDINGS
from streams.leak_audit import LeakAudit, finding_messages
from tests.ledger_history import START_MS, History, Written

HERE = next(f"node-{n}" for n in range(100) if partition_of(f"node-{n}".encode(), 2) == 0)
THERE = next(f"node-{n}" for n in range(100) if partition_of(f"node-{n}".encode(), 2) == 1)


def moved_without_a_word(ttl_s: int = 600) -> tuple[History, History]:
    """`i` was claimed and seen on HERE, then claimed and seen on THERE; HERE's claim stays."""
    here, there = History(0, 2), History(1, 2)
    for history, node in ((here, HERE), (there, THERE)):
        history.audit({}, at_s=0, node=node)
    here.claim("old", "i", 4, at_s=1, nodes=(HERE,), ttl_s=ttl_s)
    here.event("started", "i", at_s=2, size=4, node=HERE)
    there.claim("new", "i", 4, at_s=100, nodes=(THERE,), ttl_s=ttl_s)
    there.event("arrived", "i", at_s=102, size=4, node=THERE)
    return here, there


def doubles(order: Sequence[tuple[int, Written]]) -> tuple[DoubleClaims, list[FindingRecord]]:
    """Both partitions folded together in the given order."""
    ledgers = {number: Ledger(number, 2) for number in range(2)}
    audit = DoubleClaims(ledgers)
    records: list[FindingRecord] = []
    for number, written in order:
        step = ledgers[number].apply(*written)
        assert step is not None
        records += audit.apply(number, step)
    assert DoubleClaims(ledgers, audit.open)._homes == audit._homes
    return audit, records


def in_turns(here: History, there: History) -> list[tuple[int, Written]]:
    both = zip_longest(here.records, there.records)
    return [(number, written) for number, written in chain.from_iterable(enumerate(pair) for pair in both) if written is not None]


def by_time(here: History, there: History) -> list[tuple[int, Written]]:
    placed = [(0, written) for written in here.records] + [(1, written) for written in there.records]
    return sorted(placed, key=lambda place: (place[1].time_ms, place[0]))


def one_by_one(here: History, there: History) -> list[tuple[int, Written]]:
    return [(0, written) for written in here.records] + [(1, written) for written in there.records]


def test_an_instance_held_on_two_nodes_is_a_double_claim_whichever_partition_is_read_first() -> None:
    here, there = moved_without_a_word()
    for at_s in (130, 190):
        here.audit({}, at_s=at_s, node=HERE)
        there.audit({"i": 4}, at_s=at_s, node=THERE)

    found = [doubles(order(here, there))[1] for order in (in_turns, by_time, one_by_one)]

    assert found[0] == found[1] == found[2]
    assert [type(record) for record in found[0]] == [LeakSuspected, LeakConfirmed]
    confirmed = found[0][-1]
    assert (confirmed.kind, confirmed.node_id, confirmed.claim_id) == ("double-claim", HERE, "old")
    assert confirmed.held == Resources(memory_mib=4)
    assert confirmed.since_ms == START_MS + 102_000
    assert [(cause.partition, cause.offset, cause.event) for cause in confirmed.causes] == [
        (0, 1, "claim-requested"), (0, 2, "instance-observed"), (1, 1, "claim-requested"), (1, 2, "instance-observed"),
    ]  # fmt: skip
    assert confirmed.fix == "claimlog claims release old --reason migrated"


def test_the_operators_word_on_a_double_counts_whichever_partition_is_read_first() -> None:
    here, there = moved_without_a_word()
    for at_s in (130, 190):
        here.audit({}, at_s=at_s, node=HERE)
        there.audit({"i": 4}, at_s=at_s, node=THERE)
    here.say(FindingIgnored(node_id=HERE, record_id="w", finding_id="double-claim/i", reason="known"), at_s=200)
    ignored = [doubles(order(here, there))[0].open_findings()[0].ignored for order in (by_time, one_by_one)]

    here.say(FindingIgnored(node_id=HERE, record_id="u", finding_id="double-claim/i", reason=""), at_s=210)
    undone = [doubles(order(here, there))[0].open_findings()[0].ignored for order in (by_time, one_by_one)]

    assert (ignored, undone) == (["known", "known"], ["", ""])


def test_the_word_on_a_double_counts_on_after_a_resize_and_for_who_takes_over_before_the_double_is_seen() -> None:
    here, there = moved_without_a_word()
    here.audit({"i": 4}, at_s=130, node=HERE)
    here.say(FindingIgnored(node_id=HERE, record_id="w", finding_id="double-claim/i", reason="known"), at_s=200)
    there.claim("larger", "i", 8, resize=True, at_s=210, nodes=(THERE,))
    there.event("resized", "i", at_s=211, size=8, node=THERE)
    here.audit({"i": 4}, at_s=230, node=HERE)
    ledgers = {number: Ledger(number, 2) for number in range(2)}
    first = DoubleClaims(ledgers)
    for written in here.records:
        step = ledgers[0].apply(*written)
        assert step is not None
        first.apply(0, step)
    second = DoubleClaims(ledgers, first.open, first.words)
    for written in there.records:
        step = ledgers[1].apply(*written)
        assert step is not None
        second.apply(1, step)

    assert [(found.since_ms - START_MS, found.ignored) for found in second.open_findings()] == [(102_000, "known")]
    assert [doubles(order(here, there))[0].open_findings()[0].ignored for order in (by_time, one_by_one)] == ["known", "known"]


def test_an_open_double_that_somebody_kept_is_none_that_arose_after_it_had_ended_elsewhere() -> None:
    here, there = moved_without_a_word()
    for at_s in (130, 190):
        here.audit({"i": 4}, at_s=at_s, node=HERE)
    here.say(FindingIgnored(node_id=HERE, record_id="w", finding_id="double-claim/i", reason="known"), at_s=195)
    of_before = doubles(by_time(here, there))[0]
    here.release("old", at_s=200, reason="migrated", node=HERE)
    here.claim("once more", "i", 4, at_s=300, nodes=(HERE,))
    here.event("arrived", "i", at_s=302, size=4, node=HERE)
    there.audit({"i": 4}, at_s=310, node=THERE)
    ledgers = {number: Ledger(number, 2) for number in range(2)}
    for number, written in by_time(here, there):
        ledgers[number].apply(*written)

    audit = DoubleClaims(ledgers, of_before.open, of_before.words)
    audit.read_to_the_ends(START_MS + 310_000)

    assert [(found.since_ms - START_MS, found.ignored) for found in of_before.open_findings()] == [(102_000, "known")]
    assert [(found.since_ms - START_MS, found.ignored) for found in audit.open_findings()] == [(302_000, "")]


def test_the_word_on_an_ended_double_is_none_on_a_later_one_whichever_partition_is_read_first() -> None:
    """The partition of the later one is read before that in which the word stands."""
    here, there = moved_without_a_word()
    there.say(FindingIgnored(node_id=THERE, record_id="w", finding_id="double-claim/i", reason="known"), at_s=160)
    here.release("old", at_s=190, reason="migrated", node=HERE)
    here.claim("once more", "i", 4, at_s=300, nodes=(HERE,))
    here.event("arrived", "i", at_s=302, size=4, node=HERE)
    there.audit({"i": 4}, at_s=310, node=THERE)
    other_first = [*((1, written) for written in there.records), *((0, written) for written in here.records)]

    found = [doubles(order)[0] for order in (by_time(here, there), one_by_one(here, there), other_first)]
    for each in found:
        each.read_to_the_ends(START_MS + 310_000)

    told = [(each.since_ms - START_MS, each.ignored) for audit in found for each in audit.open_findings()]
    assert told == [(302_000, "")] * 3


def test_a_third_side_that_comes_and_goes_leaves_a_double_as_it_was() -> None:
    history = History()
    for number, node in enumerate(("a", "b", "c")):
        history.audit({}, at_s=number, node=node)
    for at_s, node in ((10, "a"), (20, "b")):
        history.claim(f"on {node}", "i", 4, at_s=at_s, nodes=(node,))
        history.event("started", "i", at_s=at_s + 1, size=4, node=node)
    for at_s in (100, 160):
        for node in ("a", "b"):
            history.audit({"i": 4}, at_s=at_s, node=node)
    history.say(FindingIgnored(node_id="a", record_id="w", finding_id="double-claim/i", reason="known"), at_s=170)
    history.claim("on c", "i", 4, at_s=180, nodes=("c",))
    history.event("arrived", "i", at_s=181, size=4, node="c")
    history.audit({"i": 4}, at_s=200, node="c")
    history.event("departed", "i", at_s=210, node="c")
    history.audit({"i": 4}, at_s=220, node="a")

    ledger, said = Ledger(0, 1), list[FindingRecord]()
    audit = DoubleClaims({0: ledger})
    for written in history.records:
        step = ledger.apply(*written)
        assert step is not None
        said += audit.apply(0, step)

    assert [(type(record), record.ignored) for record in said] == [(LeakSuspected, ""), (LeakConfirmed, ""), (LeakConfirmed, "known")]
    assert [(type(record), record.ignored) for record in audit.open_findings()] == [(LeakConfirmed, "known")]


def test_the_word_on_a_double_that_ended_is_none_on_one_that_arose_later() -> None:
    here, there = moved_without_a_word()
    here.say(FindingIgnored(node_id=HERE, record_id="w", finding_id="double-claim/i", reason="known"), at_s=99)
    here.audit({"i": 4}, at_s=130, node=HERE)

    found = [doubles(order(here, there))[0].open_findings()[0].ignored for order in (by_time, one_by_one)]

    assert found == ["", ""]


def test_releasing_the_old_claim_resolves_the_double() -> None:
    here, there = moved_without_a_word()
    here.audit({}, at_s=130, node=HERE)
    there.audit({"i": 4}, at_s=130, node=THERE)
    here.release("old", at_s=140, reason="migrated", node=HERE)

    audit, records = doubles(by_time(here, there))

    assert isinstance(records[-1], LeakResolved)
    assert audit.open_findings() == []


def test_a_migration_that_says_so_is_no_double_even_if_the_word_is_late() -> None:
    here, there = moved_without_a_word()
    here.event("departed", "i", at_s=110, event_s=101, node=HERE)
    for at_s in (130, 190):
        here.audit({}, at_s=at_s, node=HERE)
        there.audit({"i": 4}, at_s=at_s, node=THERE)

    audit, records = doubles(by_time(here, there))

    assert records == []
    assert audit.open_findings() == []


def test_a_guest_on_both_hosts_has_the_claims_ttl_to_finish_its_migration() -> None:
    here, there = moved_without_a_word(ttl_s=60)
    for at_s in (150, 161, 163):
        here.audit({"i": 4}, at_s=at_s, node=HERE)
        there.audit({"i": 4}, at_s=at_s, node=THERE)
        found = doubles(by_time(here, there))[1]
        assert [type(record) for record in found] == ([LeakSuspected] if at_s < 162 else [LeakSuspected, LeakConfirmed])


def test_three_nodes_are_one_double_and_it_lasts_until_one_is_left() -> None:
    here = History()
    for number, node in enumerate(("a", "b", "c")):
        here.audit({}, at_s=number, node=node)
        here.claim(f"on {node}", "i", 4, at_s=10 + number, nodes=(node,))
        here.event("started", "i", at_s=20 + number, size=4, node=node)
    here.release("on a", at_s=30, node="a")
    ledger = Ledger(0, 1)
    audit = DoubleClaims({0: ledger})
    for written in here.records:
        step = ledger.apply(*written)
        assert step is not None
        audit.apply(0, step)

    assert [finding.instance_id for finding in audit.open_findings()] == ["i"]
    step = ledger.apply(*there_released(here))
    assert step is not None
    assert isinstance(audit.apply(0, step)[0], LeakResolved)


def there_released(history: History) -> Written:
    history.release("on b", at_s=40, node="b")
    return history.records[-1]


@pytest.fixture
def quiet() -> tuple[Ledger, LeakAudit]:
    """One node, heard of at second 60 for the last time."""
    history, audit, observed = History(), LeakAudit(0), Observed(0)
    history.audit({}, at_s=0)
    history.audit({}, at_s=60)
    ledger = Ledger(0, 1)
    for written in history.records:
        fold(ledger, audit, observed, written)
    return ledger, audit


def fold(ledger: Ledger, audit: LeakAudit, observed: Observed, written: Written) -> list[FindingRecord]:
    step = ledger.apply(*written)
    assert step is not None
    observed.apply(ledger, step)
    return audit.step(ledger, observed, step)


def test_a_node_is_silent_after_three_intervals_and_confirmed_so_after_six(quiet: tuple[Ledger, LeakAudit]) -> None:
    ledger, audit = quiet

    assert audit.silences(ledger, START_MS + 239_999, 60_000) == []
    (first,) = audit.silences(ledger, START_MS + 240_000, 60_000)
    record = decode_keyed(CLAIMS, first.key, first.value)
    assert isinstance(record, NodeSilent)
    assert (record.producer, record.counter, record.silent_since_ms) == ("audits", 2, START_MS + 60_000)

    (suspected,) = fold(ledger, audit, Observed(0), Written(2, START_MS + 240_000, first.key, first.value))
    assert isinstance(suspected, LeakSuspected)
    assert audit.silences(ledger, START_MS + 300_000, 60_000) == []

    (second,) = audit.silences(ledger, START_MS + 420_000, 60_000)
    (confirmed,) = fold(ledger, audit, Observed(0), Written(3, START_MS + 420_000, second.key, second.value))
    assert isinstance(confirmed, LeakConfirmed)
    assert confirmed.since_ms == START_MS + 60_000
    assert audit.silences(ledger, START_MS + 600_000, 60_000) == []


def test_a_processor_that_was_away_for_long_says_the_second_word_once_it_confirms_and_no_third(quiet: tuple[Ledger, LeakAudit]) -> None:
    ledger, audit = quiet
    now_ms = START_MS + 86_400_000
    (first,) = audit.silences(ledger, now_ms, 10_000)
    fold(ledger, audit, Observed(0), Written(2, now_ms, first.key, first.value))

    assert audit.silences(ledger, now_ms + 2_500, 10_000) == []
    (second,) = audit.silences(ledger, now_ms + GRACE_MS, 10_000)
    (confirmed,) = fold(ledger, audit, Observed(0), Written(3, now_ms + GRACE_MS, second.key, second.value))

    assert isinstance(confirmed, LeakConfirmed)
    assert audit.silences(ledger, now_ms + 10 * GRACE_MS, 10_000) == []


def test_a_second_word_that_came_too_early_is_followed_by_one_that_counts(quiet: tuple[Ledger, LeakAudit]) -> None:
    ledger, audit = quiet
    now_ms = START_MS + 86_400_000
    (first,) = audit.silences(ledger, now_ms, 10_000)
    fold(ledger, audit, Observed(0), Written(2, now_ms, first.key, first.value))
    (early,) = audit.silences(ledger, now_ms + GRACE_MS, 10_000)
    fold(ledger, audit, Observed(0), Written(3, now_ms + 1, early.key, early.value))

    (later,) = audit.silences(ledger, now_ms + GRACE_MS, 10_000)
    (confirmed,) = fold(ledger, audit, Observed(0), Written(4, now_ms + GRACE_MS, later.key, later.value))

    assert isinstance(confirmed, LeakConfirmed)


def ahead(history: History) -> tuple[Ledger, LeakAudit]:
    """What comes of a history after which a record had a time that is a day ahead."""
    ledger, audit, observed = Ledger(0, 1), LeakAudit(0), Observed(0)
    for written in history.records:
        fold(
            ledger,
            audit,
            observed,
            written._replace(time_ms=max(written.time_ms, START_MS + 86_400_000) if written.offset else written.time_ms),
        )
    return ledger, audit


def test_a_node_whose_last_audit_has_a_time_that_is_still_to_come_is_silent_by_the_timers_own_clock() -> None:
    history = History()
    history.audit({}, at_s=0)
    history.audit({}, at_s=60)
    ledger, audit = ahead(history)
    now_ms = START_MS + 61_000

    in_time = [audit.silences(ledger, now_ms + passed_ms, 60_000, 5_000 + passed_ms) for passed_ms in (0, 90_000, 179_999)]
    (word,) = audit.silences(ledger, now_ms + 180_000, 60_000, 5_000 + 180_000)
    (said,) = fold(ledger, audit, Observed(0), Written(2, now_ms + 180_000, word.key, word.value))

    assert in_time == [[], [], []]
    record = decode_keyed(CLAIMS, word.key, word.value)
    assert isinstance(record, NodeSilent)
    assert (record.counter, record.silent_since_ms) == (2, now_ms)
    assert isinstance(said, LeakSuspected)
    assert audit.silences(ledger, now_ms + 3_600_000, 60_000, 5_000 + 3_600_000) == []


@pytest.mark.parametrize("ahead_s", [0, 60, 150, 170, 185, 3_600])
def test_how_far_a_partition_is_ahead_makes_no_difference_to_when_silence_is_found(ahead_s: int) -> None:
    history = History()
    history.audit({}, at_s=0)
    history.audit({}, at_s=60)
    ledger, audit, observed = Ledger(0, 1), LeakAudit(0), Observed(0)
    for written in history.records:
        ahead_ms = START_MS + (60 + ahead_s) * 1000
        fold(ledger, audit, observed, written._replace(time_ms=max(written.time_ms, ahead_ms)) if written.offset else written)

    looks = [second for second in range(0, 600, 15) if audit.silences(ledger, START_MS + (60 + second) * 1000, 60_000, second * 1000)]

    assert looks[0] == 180


def test_a_node_that_goes_on_reporting_in_a_partition_that_is_ahead_is_never_silent() -> None:
    history = History()
    history.audit({}, at_s=0)
    history.audit({}, at_s=60)
    ledger, audit = ahead(history)
    said = []
    for number in range(10):
        now_ms = START_MS + 61_000 + number * 60_000
        said += audit.silences(ledger, now_ms, 60_000)
        history.audit({}, at_s=120 + number * 60)
        fold(ledger, audit, Observed(0), history.records[-1])

    assert said == []


def test_a_step_of_this_hosts_clock_makes_no_node_silent_where_times_are_still_to_come() -> None:
    history = History()
    history.audit({}, at_s=0)
    history.audit({}, at_s=60)
    ledger, audit = ahead(history)
    audit.silences(ledger, START_MS + 61_000, 60_000, 5_000)

    assert audit.silences(ledger, START_MS + 3_600_000, 60_000, 6_000) == []


@pytest.mark.parametrize("ahead_s", [-600, 0, 600])
def test_a_node_whose_audits_fail_for_three_intervals_is_silent_until_one_tells_something(ahead_s: int) -> None:
    """It reports all the time, and nothing is known of it: what is placed there may never start. Its host's clock makes no difference."""
    history = History()
    for at_s in (0, 60):
        history.audit({}, at_s=at_s, taken_s=at_s + ahead_s)
    for at_s in (120, 180):
        history.audit(at_s=at_s, taken_s=at_s + ahead_s, failed="libvirtd does not answer")
    ledger, audit, _ = all_folded(history)

    in_time = audit.silences(ledger, START_MS + 239_999, 60_000)
    (word,) = audit.silences(ledger, START_MS + 240_000, 60_000)
    record = decode_keyed(CLAIMS, word.key, word.value)
    history.append(word.key, word.value, at_s=240)
    history.audit(at_s=241, taken_s=241 + ahead_s, failed="libvirtd does not answer")
    ledger, audit, _ = all_folded(history)
    still_silent = ledger.nodes["n1"].silent_since_ms
    history.audit({}, at_s=300, taken_s=300 + ahead_s, complete=False)
    ledger, audit, _ = all_folded(history)

    assert in_time == []
    assert isinstance(record, NodeSilent)
    assert (record.counter, record.silent_since_ms) == (4, START_MS + 60_000)
    assert (still_silent, ledger.nodes["n1"].silent_since_ms) == (START_MS + 60_000, None)
    assert audit.silences(ledger, START_MS + 479_999, 60_000) == []
    assert len(audit.silences(ledger, START_MS + 480_000, 60_000)) == 1


@pytest.mark.parametrize(("ahead_s", "from_s"), [(-100, 140), (0, 240), (600, 240)])
def test_who_takes_over_while_audits_fail_goes_by_the_hosts_time_which_is_never_too_late(ahead_s: int, from_s: int) -> None:
    history = History()
    history.audit({}, at_s=60, taken_s=60 + ahead_s)
    history.audit(at_s=120, taken_s=120 + ahead_s, failed="libvirtd does not answer")
    ledger, audit, _ = all_folded(history)

    taken_over = LeakAudit(0, audit.leaks)

    assert taken_over.silences(ledger, START_MS + from_s * 1000 - 1, 60_000) == []
    assert len(taken_over.silences(ledger, START_MS + from_s * 1000, 60_000)) == 1


def test_a_node_that_never_told_anything_is_not_called_silent_for_its_failures() -> None:
    """No request goes there: nothing is known of what it has."""
    history = History()
    for at_s in (0, 60, 120, 180):
        history.audit(at_s=at_s, failed="libvirtd does not answer")
    ledger, audit, _ = all_folded(history)

    assert audit.silences(ledger, START_MS + 359_999, 60_000) == []
    assert len(audit.silences(ledger, START_MS + 360_000, 60_000)) == 1


def test_audits_that_tell_something_end_what_a_failed_one_began_be_they_complete_or_not() -> None:
    history = History()
    history.audit({}, at_s=0)
    for at_s in (60, 120):
        history.audit(at_s=at_s, failed="libvirtd does not answer")
    ledger, audit, observed = all_folded(history)
    failing = [record.kind for record in audit.open_findings()]
    history.audit({}, at_s=180, complete=False)
    said = fold(ledger, audit, observed, history.records[-1])

    assert failing == ["silent-node"]
    assert [(type(each), each.finding_id) for each in said] == [(LeakResolved, "silent-node/n1")]
    assert (ledger.nodes["n1"].unknown_since_ms, ledger.nodes["n1"].audits_fail) == (START_MS + 60_000, False)


def test_two_hosts_say_the_same_silence_in_the_same_bytes(quiet: tuple[Ledger, LeakAudit]) -> None:
    ledger, audit = quiet

    (first,) = audit.silences(ledger, START_MS + 240_000, 60_000)
    (other,) = LeakAudit(0, audit.leaks).silences(ledger, START_MS + 250_000, 60_000)

    assert first == other


def test_a_finding_becomes_a_message_under_its_own_key_with_the_event_that_caused_it() -> None:
    history, audit, observed, ledger = History(), LeakAudit(0), Observed(0), Ledger(0, 1)
    history.audit({"ghost": 4}, at_s=0)
    (suspected,) = fold(ledger, audit, observed, history.records[0])

    (message,) = finding_messages(0, [suspected])

    assert (message.topic, message.key, message.partition) == (FINDINGS, b"ghost-instance/n1/ghost", 0)
    assert decode_keyed(FINDINGS, message.key, message.value) == suspected
    assert dict(message.headers)["ce_causationid"] == b"claims/0@0"


def all_folded(history: History) -> tuple[Ledger, LeakAudit, Observed]:
    ledger, audit, observed = Ledger(0, 1), LeakAudit(0), Observed(0)
    for written in history.records:
        fold(ledger, audit, observed, written)
    return ledger, audit, observed


def test_silence_is_said_after_the_newest_audit_whoever_made_it() -> None:
    history = History()
    history.audit({}, at_s=0, producer="z", epoch=1)
    history.audit({}, at_s=60, producer="a", epoch=2)
    ledger, audit, observed = all_folded(history)

    (word,) = audit.silences(ledger, START_MS + 240_000, 60_000)

    record = decode_keyed(CLAIMS, word.key, word.value)
    assert isinstance(record, NodeSilent)
    assert (record.producer, record.epoch, record.counter) == ("a", 2, 1)
    (suspected,) = fold(ledger, audit, observed, Written(2, START_MS + 240_000, word.key, word.value))
    assert isinstance(suspected, LeakSuspected)


def test_a_stranded_claim_is_confirmed_as_soon_as_it_may_be_and_nothing_is_said_of_it_later() -> None:
    history = History()
    history.audit({}, at_s=0)
    history.claim("c", "i", 4, at_s=1, ttl_s=100_000)
    history.configure(status="withdrawn", reason="scrapped", at_s=230)
    ledger, audit, observed = all_folded(history)
    (due_ms,) = [each.not_before_ms for each in audit.leaks.open["n1"].values()]

    early = audit.silences(ledger, due_ms - 1, 60_000)
    (word,) = audit.silences(ledger, due_ms, 60_000)
    (confirmed,) = fold(ledger, audit, observed, Written(3, due_ms, word.key, word.value))

    assert due_ms > START_MS + 230_000
    assert (early, type(confirmed), confirmed.kind) == ([], LeakConfirmed, "stranded-claim")
    assert [audit.silences(ledger, due_ms + number * 180_000, 60_000) for number in range(1, 4)] == [[], [], []]


def test_a_member_left_on_a_node_that_is_silent_is_confirmed_by_a_word_of_its_own() -> None:
    history = History()
    history.audit({}, at_s=0)
    history.say(GroupHomeProposed(group_id="g", record_id="h", epoch=1, node_id="n1"), at_s=1)
    history.claim("c", "i", 4, at_s=2, ttl_s=100_000, group=GroupMember(group_id="g", policy="affinity", epoch=1))
    history.silent(at_s=181, epoch=1, counter=1)
    history.say(GroupHomeClosed(node_id="n1", record_id="x", group_id="g", epoch=1, unconditional=True), at_s=185)
    ledger, audit, observed = all_folded(history)
    ledger.remembered["silent/n1/1.1/1"] = ledger.next_offset  # As the timer says it first.

    (word,) = audit.silences(ledger, START_MS + 230_000, 60_000)

    records = fold(ledger, audit, observed, Written(5, START_MS + 230_000, word.key, word.value))
    assert (LeakConfirmed, "stranded-member") in [(type(record), record.kind) for record in records]


class Timer:
    """`n1`, audited at second 0, its ledger and leak audit, and the timer: it looks every 10 s, where an audit is due every 60 s."""

    def __init__(self) -> None:
        self.history = History()
        self.history.audit({}, at_s=0)
        self.ledger, self.audit, self.observed = all_folded(self.history)
        self.said_s: list[int] = []
        """When it said a word."""

    def until(self, end_s: int) -> list[tuple[int, str, str]]:
        """What is found, in which second: of the records written meanwhile, and of the timer's words up to `end_s`."""
        found = self._folded()
        for now_s in range(self.history.now_s // 10 * 10 + 10, end_s + 1, 10):
            words = self.audit.silences(self.ledger, START_MS + now_s * 1000, 60_000)
            for word in words:
                self.history.append(word.key, word.value, now_s)
                self.said_s.append(now_s)
            found += self._folded()
        self.history.now_s = end_s
        return found

    def _folded(self) -> list[tuple[int, str, str]]:
        records: list[FindingRecord] = []
        for written in self.history.records[self.ledger.next_offset :]:
            records += fold(self.ledger, self.audit, self.observed, written)
        return [((each.time_ms - START_MS) // 1000, type(each).__name__, each.claim_id or each.kind) for each in records]


@pytest.fixture
def timer() -> Timer:
    """`c` is granted for 10 minutes at second 5, and no audit comes any more."""
    timer = Timer()
    timer.history.claim("c", "i", 4, at_s=5, ttl_s=600)
    return timer


SILENT = [(180, "LeakSuspected", "silent-node"), (360, "LeakConfirmed", "silent-node")]
EXPIRED = [(610, "LeakSuspected", "c"), (1820, "LeakConfirmed", "c")]
DAY_S = 86_400


def test_a_claim_past_its_deadline_is_found_and_confirmed_on_a_node_that_fell_silent_by_one_word_each(timer: Timer) -> None:
    found = timer.until(DAY_S)

    assert found == SILENT + EXPIRED
    assert timer.said_s == [180, 360, 610, 1820]
    expired = timer.audit.open_findings()[0]
    assert (expired.kind, expired.since_ms, expired.held) == ("expired-claim", START_MS + 605_000, Resources(memory_mib=4))


def test_a_claim_shorter_than_the_silence_is_found_and_confirmed_by_the_two_words_on_the_node() -> None:
    timer = Timer()
    timer.history.claim("c", "i", 4, at_s=5, ttl_s=60)

    found = timer.until(DAY_S)

    assert found == [(180, "LeakSuspected", "c"), SILENT[0], (360, "LeakConfirmed", "c"), SILENT[1]]
    assert timer.said_s == [180, 360]


def test_an_overdue_claim_whose_guest_starts_or_that_is_given_back_is_resolved_and_no_more_is_said(timer: Timer) -> None:
    timer.history.claim("d", "j", 4, at_s=5, ttl_s=600)
    found = timer.until(1000)
    timer.history.event("started", "i", at_s=1001, size=4)
    timer.history.release("d", at_s=1002, reason="failed")

    resolved = timer.until(DAY_S)

    assert found[2:] == [(610, "LeakSuspected", "c"), (610, "LeakSuspected", "d")]
    assert resolved == [(1001, "LeakResolved", "c"), (1002, "LeakResolved", "d")]
    assert timer.said_s == [180, 360, 610]


def test_a_renewed_claim_is_found_again_only_after_its_new_deadline(timer: Timer) -> None:
    timer.until(1000)
    timer.history.renew("c", at_s=1001, ttl_s=600)

    found = timer.until(DAY_S)

    assert found == [(1001, "LeakResolved", "c"), (1610, "LeakSuspected", "c"), (2820, "LeakConfirmed", "c")]
    assert timer.said_s == [180, 360, 610, 1610, 2820]


def test_an_overdue_claim_on_a_node_that_is_withdrawn_becomes_a_stranded_one(timer: Timer) -> None:
    timer.until(1000)
    timer.history.configure(status="withdrawn", reason="scrapped", at_s=1001)

    found = timer.until(DAY_S)

    assert found == [
        (1001, "LeakResolved", "c"),
        (1001, "LeakResolved", "silent-node"),
        (1001, "LeakSuspected", "c"),
        (1020, "LeakConfirmed", "c"),
    ]
    assert [finding.kind for finding in timer.audit.open_findings()] == ["stranded-claim"]
    assert timer.said_s == [180, 360, 610, 1020]


def test_a_node_that_was_withdrawn_before_the_deadline_is_told_nothing_of_it(timer: Timer) -> None:
    timer.history.configure(status="withdrawn", reason="scrapped", at_s=10)

    found = timer.until(DAY_S)

    assert found == [(10, "LeakSuspected", "c"), (180, "LeakConfirmed", "c")]
    assert timer.said_s == [180]


def test_an_overdue_claim_on_a_node_that_comes_back_goes_by_evidence(timer: Timer) -> None:
    found = timer.until(1000)
    for at_s in range(1020, 2000, 60):
        timer.history.audit({}, at_s=at_s)
        found += timer.until(at_s + 59)

    assert found == [*SILENT, EXPIRED[0], (1020, "LeakResolved", "silent-node"), (1620, "LeakResolved", "c")]
    assert timer.said_s == [180, 360, 610]
    assert list(timer.ledger.claims) == []


def test_a_node_that_falls_silent_again_is_told_of_the_same_claim_in_words_of_their_own(timer: Timer) -> None:
    timer.until(1000)
    timer.history.audit({}, at_s=1020)

    found = timer.until(DAY_S)

    assert found == [
        (1020, "LeakResolved", "silent-node"),
        (1200, "LeakSuspected", "silent-node"),
        (1380, "LeakConfirmed", "silent-node"),
        (1820, "LeakConfirmed", "c"),
    ]
    assert timer.said_s == [180, 360, 610, 1200, 1380, 1820]


def test_claims_that_become_overdue_one_after_another_share_their_words() -> None:
    timer = Timer()
    for number in range(60):
        timer.history.claim(f"c{number}", f"i{number}", 0, at_s=5 + number, ttl_s=600 + 10 * number)

    found = timer.until(DAY_S)

    suspected = [record for record in found if record[1:] == ("LeakSuspected", "c59")]
    assert len([record for record in found if record[1] == "LeakConfirmed"]) == 61
    assert 0 < suspected[0][0] - (5 + 59 + 600 + 590) <= 180
    assert len(timer.said_s) == len({at_s // 180 for at_s in timer.said_s})


def test_two_hosts_tell_of_an_overdue_claim_in_the_same_bytes(timer: Timer) -> None:
    timer.until(600)

    (one,) = timer.audit.silences(timer.ledger, START_MS + 610_000, 60_000)
    (other,) = LeakAudit(0, timer.audit.leaks).silences(timer.ledger, START_MS + 640_000, 60_000)

    assert one == other
