"""Where to go on carrying when nothing is stored: the ledger shows it."""

from __future__ import annotations

from producers.load import SimulatedFleet
from producers.source import said
from schemas.topics import AUDITS, CLAIMS, DEAD_LETTERS, LIFECYCLE
from streams.carried import DOUBTS_MAX, first_to_carry
from streams.cli.produce.publishing import message
from streams.dead_letters import DeadLetter, read_letter
from streams.engines import Carrier
from streams.ledger_topics import open_ledger
from streams.log.base import Message
from streams.log.memory import MemoryLog


def ledger() -> MemoryLog:
    log = MemoryLog()
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    return log


def audits(epoch: int, count: int) -> list[Message]:
    fleet = SimulatedFleet(1, epoch=epoch)
    return [message(said(AUDITS, fleet.audit(fleet.nodes[0], 1_000 * number, number))) for number in range(1, count + 1)]


def test_what_was_carried_is_not_carried_again_when_the_stored_offsets_are_forgotten() -> None:
    log = ledger()
    log.append(audits(1, 3))
    Carrier(log).turn(frozenset({0}))
    log.append(audits(1, 4)[3:])

    after = Carrier(log, "a group of which nothing is stored")
    read = after.turn(frozenset({0}))

    assert read == 1
    assert log.end(CLAIMS, 0) == 1 + 4
    assert first_to_carry(log, LIFECYCLE, 0) == 0


def test_an_id_that_somebody_else_gave_a_record_is_none_of_an_observations() -> None:
    log = ledger()
    log.append(audits(1, 1))
    log.append(audits(1, 3)[1:])
    Carrier(log).turn(frozenset({0}))

    told = []
    for offset in ("²", "1", "99999999999", "9" * 5000):
        log.append([Message(CLAIMS, b"n1", b"{}", (("ce_id", f"{AUDITS}/0@{offset}".encode()),), 0)])
        told.append(first_to_carry(log, AUDITS, 0))
    for _ in range(DOUBTS_MAX):
        log.append([Message(CLAIMS, b"n1", b"{}", (("ce_id", f"{AUDITS}/0@2".encode()),), 0)])

    assert told == [3, 3, 3, 3]
    assert first_to_carry(log, AUDITS, 0) == 0


def test_an_offset_that_has_left_is_believed_of_a_record_that_can_be_read_alone() -> None:
    log = ledger()
    log.append(audits(1, 5))
    Carrier(log).turn(frozenset({0}))
    log.truncate(AUDITS, 0, 3)
    log.append([Message(CLAIMS, b"n1", b"{}", (("ce_id", f"{AUDITS}/0@1".encode()),), 0)])

    assert first_to_carry(log, AUDITS, 0) == 5


def test_what_cannot_be_read_has_one_letter_though_the_stored_offsets_are_forgotten() -> None:
    """Behind the newest record that was carried nothing says how far it went, but the letters themselves."""
    log = ledger()
    log.append([*audits(1, 1), *(Message(AUDITS, b"node-00000", text, (), 0) for text in (b"no record", b"another"))])
    log.append([Message(LIFECYCLE, b"node-00000", b"no event", (), 0)])
    Carrier(log).turn(frozenset({0}))
    log.append([Message(AUDITS, b"node-00000", b"a new one", (), 0)])

    after = Carrier(log, "a group of which nothing is stored")
    while after.turn(frozenset({0})):
        pass

    letters = [read_letter(record) for record in log.read(DEAD_LETTERS, 0, 0)]
    assert [each.value for each in letters if isinstance(each, DeadLetter)] == [b"no record", b"another", b"no event", b"a new one"]
    assert (log.end(CLAIMS, 0), after.dead) == (1 + 1, 1)


def test_observations_of_a_topic_made_anew_are_carried_from_the_first() -> None:
    old, new = ledger(), ledger()
    old.append(audits(1, 2))
    Carrier(old).turn(frozenset({0}))
    new.append([Message(CLAIMS, r.key, r.value, r.headers, 0) for r in old.read(CLAIMS, 0, 1)])
    new.append(audits(2, 3))

    assert (first_to_carry(old, AUDITS, 0), first_to_carry(new, AUDITS, 0)) == (2, 0)
